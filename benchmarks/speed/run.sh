#!/usr/bin/env bash
# Speed by the clock: beside the peers, in batches, by the parts of the method, when sampling, behind long contexts.
# About three hours on two CPU cores; every step goes on where it was killed.
#
#   benchmarks/speed/run.sh runs/speed
#
# Sets come from the Hub; ALPACA=alpaca=alpaca_test.jsonl and so on name files instead.
set -euo pipefail
cd "$(dirname "$0")/../.."
RUNS=${1:?folder for what is measured} S=benchmarks/speed R=recipes/smollm2-135m
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}
ALPACA=${ALPACA:-alpaca} GSM8K=${GSM8K:-gsm8k} HUMANEVAL=${HUMANEVAL:-humaneval}
MT_BENCH=${MT_BENCH:-mt-bench} SUMMARIES=${SUMMARIES:-summaries} CHAT=${CHAT:-openai/gsm8k:main:test}
PAIR=(--target "$TARGET" --draft $R/draft --head $R/heads/greedy)
THREE=(--set "$ALPACA" --set "$GSM8K" --set "$HUMANEVAL")
mkdir -p "$RUNS"

# Beside prompt lookup, assisted generation and flashspec, in an environment of its own.
[ -e "$RUNS/peers/bin/python" ] || { python -m venv "$RUNS/peers" && "$RUNS/peers/bin/pip" install -c constraints.txt flashspec==0.3.1 -e .; }
# They cannot take a draft that reads its target: theirs is the ordinary one that was shipped before.
ordinary=runs/draft
[ -e $ordinary ] || { mkdir -p runs && git archive 3be3ff9 recipes/smollm2-135m/draft | tar x --strip-components 2 -C runs; }
"$RUNS/peers/bin/python" $S/peers.py --target "$TARGET" --peers-draft $ordinary "${THREE[@]}" --set "$MT_BENCH" --set "$SUMMARIES" \
    --count 24 --repeats 0 --max-new-tokens 64 --output "$RUNS/peers-greedy.json"

ours=(); for m in recommended compiled:fixed=0 compiled:recommended; do ours+=(--method $m); done
"$RUNS/peers/bin/python" $S/peers.py --target "$TARGET" --peers-draft $ordinary --set "$ALPACA" --set "$GSM8K" "${ours[@]}" \
    --count 24 --repeats 0 --max-new-tokens 64 --output "$RUNS/compiled-greedy.json"

python $S/batches.py "${PAIR[@]}" --prompts "$ALPACA" --prompts "$GSM8K" --batches 3 --output "$RUNS/batches-greedy.json"

bench() { # NAME METHODS OPTION...
    local methods=() && for method in $2; do methods+=(--method "$method"); done
    specdecpp bench --target "$TARGET" "${THREE[@]}" "${methods[@]}" --repeats 0 --output "$RUNS/$1.json" "${@:3}"
}
# The draft alone in chains and trees, and all sources; the same sampling; the ordinary draft in transformers' loop and in ours.
bench parts-greedy "plain chain tree recommended" --draft $R/draft --head $R/heads/greedy --count 24
bench sampling "plain lookup fixed=0 chain tree recommended compiled:fixed=0 compiled:recommended" \
    --draft $R/draft --head $R/heads/sampling --count 12 --sample
bench loop-greedy "plain transformers-loop chain" --draft $ordinary --count 12
specdecpp bench report "$RUNS/parts-greedy.json" "$RUNS/sampling.json" --output "$RUNS/bench"

python $S/context_length.py "${PAIR[@]}" --prompts "$CHAT" --output "$RUNS/context-length.json"
