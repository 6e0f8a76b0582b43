#!/usr/bin/env bash
# The paper's experiment at the scale of two CPU cores: heads trained on Alpaca-train labels (never shipped: CC BY-NC),
# settings chosen on Alpaca dev, reported on Alpaca test, GSM8K test and HumanEval; then its ablations.
# Every step keeps what it made, so the script can be killed and given again. MODES=sampling does one mode alone, and
# ABLATED=sampling ablates in that one alone, the paper's.
#
#   ALPACA_TRAIN=alpaca_train.jsonl ALPACA_DEV=alpaca_dev.jsonl ALPACA_TEST=alpaca_test.jsonl \
#       benchmarks/paper/run.sh runs/paper runs/results
set -euo pipefail
cd "$(dirname "$0")/../.."
RUNS=${1:?folder for labels, heads and traces} RESULTS=${2:?folder for results}
R=recipes/smollm2-135m
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct} DRAFT=${DRAFT:-runs/draft} HEAD=${HEAD:-runs/heads/sampling} COUNT=${COUNT:-150} LABELLED=${LABELLED:-500}
GSM8K_TEST=${GSM8K_TEST:-openai/gsm8k:main:test} HUMANEVAL=${HUMANEVAL:-openai/openai_humaneval:test}
: "${ALPACA_TRAIN:?a file or Hub dataset}" "${ALPACA_DEV:?}" "${ALPACA_TEST:?}"
mkdir -p "$RUNS" "$RESULTS" runs
# The paper's labels take an ordinary draft; this one was shipped before, with its heads.
[ -e "$DRAFT" ] && [ -e "$HEAD" ] ||
    git archive 3be3ff9 recipes/smollm2-135m/draft recipes/smollm2-135m/heads | tar x --strip-components 2 -C runs
PAIR=(--target "$TARGET" --draft "$DRAFT")

[ -e "$RUNS/costs/bfloat16.json" ] || specdecpp calibrate "${PAIR[@]}" --head "$HEAD" --output "$RUNS/costs"
COSTS=$RUNS/costs/bfloat16.json

# Labels of one set of responses: read on-policy (`label on-policy`) or by the paper's procedure (`label paper-0.15`).
label() {
    specdecpp label "${PAIR[@]}" "${sample[@]}" --prompts "$RUNS/responses-$mode.jsonl" --output "$RUNS/labels/$mode-$1" "${@:2}"
}
# What every rule makes of a head; the traces that the first call leaves serve all heads.
compare() {
    python benchmarks/rules/compare_rules.py "${PAIR[@]}" --head "$1" --set alpaca_dev "$ALPACA_DEV" --set alpaca_test "$ALPACA_TEST" \
        --set gsm8k_test "$GSM8K_TEST" --set humaneval "$HUMANEVAL" --count "$COUNT" --costs "$COSTS" \
        --traces "$RUNS/traces" --output "$2"
}
AS_THE_PAPER=(--reads after --feature none --num-layers 3)
choose() { [ $1 = sampling ] && sample=(--sample) greedy=() || { sample=(); greedy=(--greedy); }; }

for mode in ${MODES:-sampling greedy}; do
    choose $mode
    python $R/sample_responses.py --target "$TARGET" --set alpaca_train "$ALPACA_TRAIN" "${greedy[@]}" \
        --max-new-tokens 192 --limit "$LABELLED" --output "$RUNS/responses-$mode.jsonl"
    label on-policy --states before --states after
    label paper-0.15 --procedure specdec++ --mixing 0.15 --states before --states after
    [ -e "$RUNS/$mode-paper/base/metrics.json" ] ||
        specdecpp train --labels "$RUNS/labels/$mode-paper-0.15" --output "$RUNS/$mode-paper/base" "${AS_THE_PAPER[@]}"
    [ -e "$RUNS/$mode-ours/base/metrics.json" ] ||
        specdecpp train --labels "$RUNS/labels/$mode-on-policy" --output "$RUNS/$mode-ours/base"
    for kind in paper ours; do compare "$RUNS/$mode-$kind/base" "$RESULTS/paper-$mode-$kind.json"; done
done

# The ablations: around the paper's head and around ours, each choice changed alone, judged by what decoding gains.
sweep() {
    specdecpp train --sweep --traces "$RUNS/traces/$mode-alpaca_dev.jsonl" --costs "$COSTS" --output "$RUNS/$mode-$1" "${@:2}"
    cp "$RUNS/$mode-$1/sweep.json" "$RESULTS/sweep-$mode-$1.json"
}
for mode in ${ABLATED:-${MODES:-sampling greedy}}; do
    choose $mode
    label paper-0 --procedure specdec++ --mixing 0 --states after
    label paper-0.5 --procedure specdec++ --mixing 0.5 --states after
    rows=(); for r in paper-0.15 paper-0 paper-0.5 on-policy; do rows+=(--labels "$RUNS/labels/$mode-$r"); done
    sweep paper "${rows[@]}" "${AS_THE_PAPER[@]}" --choice depth --choice blocks --choice rejection-weight --choice rows
    sweep ours --labels "$RUNS/labels/$mode-on-policy" --labels "$RUNS/labels/$mode-paper-0.15"
done
python benchmarks/rules/rules_report.py "$RESULTS"/paper-*.json "$RESULTS"/sweep-*.json --output "$RESULTS/paper-replay"
