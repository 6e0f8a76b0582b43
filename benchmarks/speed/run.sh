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
peers() { "$RUNS/peers/bin/python" $S/peers.py --target "$TARGET" --peers-draft $ordinary --count 24 --repeats 0 --max-new-tokens 64 "$@"; }
peers "${THREE[@]}" --set "$MT_BENCH" --output "$RUNS/compiled-greedy.json"
eager=(); for m in plain lookup assisted flashspec text recommended; do eager+=(--method $m); done
peers "${THREE[@]}" --set "$MT_BENCH" --set "$SUMMARIES" "${eager[@]}" --output "$RUNS/peers-greedy.json"

python $S/batches.py "${PAIR[@]}" --prompts "$ALPACA" --prompts "$GSM8K" --batches 3 --output "$RUNS/batches-greedy.json"

# What each part of the method adds, and sampling.
parts=(); for m in plain transformers-loop chain tree recommended text lookup; do parts+=(--method $m); done
specdecpp bench "${THREE[@]}" "${parts[@]}" --count 24 --repeats 0 --output "$RUNS/loop-greedy.json"
specdecpp bench "${THREE[@]}" --method assisted --method assisted=1 --method lookup --method recommended --method specdec++ \
    --count 12 --repeats 0 --sample --output "$RUNS/bench-sampling.json"
reads=(); for m in plain lookup recommended compiled:fixed=0 compiled:recommended; do reads+=(--method $m); done
specdecpp bench "${THREE[@]}" "${reads[@]}" --count 8 --repeats 0 --sample --output "$RUNS/informed-sampling.json"
compiled=(); for m in plain compiled assisted lookup recommended compiled:fixed=0 compiled:recommended; do compiled+=(--method $m); done
specdecpp bench --set "$ALPACA" --set "$GSM8K" "${compiled[@]}" --count 8 --repeats 0 --sample --output "$RUNS/compiled-sampling.json"
specdecpp bench report "$RUNS/loop-greedy.json" "$RUNS/bench-sampling.json" --output "$RUNS/bench"

python $S/context_length.py "${PAIR[@]}" --prompts "$CHAT" --output "$RUNS/context-length.json"
