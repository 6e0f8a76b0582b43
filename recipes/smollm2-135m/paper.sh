#!/usr/bin/env bash
# The paper's experiment at the scale of two CPU cores: heads trained on Alpaca-train labels (never shipped: CC BY-NC),
# settings chosen on Alpaca dev, reported on Alpaca test, GSM8K test and HumanEval; and its ablations. About 3 hours.
# Every step keeps what it made, so the script can be killed and given again. MODES=sampling does one mode alone.
#
#   ALPACA_TRAIN=alpaca_train.jsonl ALPACA_DEV=alpaca_dev.jsonl ALPACA_TEST=alpaca_test.jsonl \
#       recipes/smollm2-135m/paper.sh runs/paper benchmarks/results
set -euo pipefail
RUNS=${1:?folder for labels, heads and traces} RESULTS=${2:?folder for results}
R=recipes/smollm2-135m
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct} DRAFT=${DRAFT:-$R/draft} COUNT=${COUNT:-150} LABELLED=${LABELLED:-700}
GSM8K_TEST=${GSM8K_TEST:-openai/gsm8k:main:test} HUMANEVAL=${HUMANEVAL:-openai/openai_humaneval:test}
: "${ALPACA_TRAIN:?a file or Hub dataset}" "${ALPACA_DEV:?}" "${ALPACA_TEST:?}"
mkdir -p "$RUNS" "$RESULTS"
PAIR=(--target "$TARGET" --draft "$DRAFT")

[ -e "$RUNS/costs/bfloat16.json" ] || specdecpp calibrate "${PAIR[@]}" --head $R/heads/sampling --output "$RUNS/costs"
COSTS=$RUNS/costs/bfloat16.json

for mode in ${MODES:-sampling greedy}; do
    sample=(--sample) greedy=()
    [ $mode = sampling ] || { sample=(); greedy=(--greedy); }
    # One set of responses, read on-policy, and by the paper's procedure with three shares of mixing.
    responses=$RUNS/responses-$mode.jsonl
    python $R/sample_responses.py --target "$TARGET" --set alpaca_train "$ALPACA_TRAIN" "${greedy[@]}" \
        --max-new-tokens 192 --limit "$LABELLED" --output "$responses"
    label() { specdecpp label "${PAIR[@]}" "${sample[@]}" --prompts "$responses" --output "$RUNS/labels/$mode-$1" "${@:2}"; }
    label on-policy --states before --states after
    label paper-0.15 --procedure specdec++ --mixing 0.15 --states before --states after
    label paper-0 --procedure specdec++ --mixing 0 --states after
    label paper-0.5 --procedure specdec++ --mixing 0.5 --states after

    # What every rule makes of the shipped head; the traces that this leaves serve all heads.
    compare() {
        python $R/compare_rules.py "${PAIR[@]}" --head "$1" --set alpaca_dev "$ALPACA_DEV" --set alpaca_test "$ALPACA_TEST" \
            --set gsm8k_test "$GSM8K_TEST" --set humaneval "$HUMANEVAL" --count "$COUNT" --costs "$COSTS" \
            --traces "$RUNS/traces" --output "$2"
    }
    compare $R/heads/$mode "$RESULTS/rules-$mode.json"

    # The ablations: around the paper's head and around ours, each choice changed alone.
    sweep() { specdecpp train --sweep --traces "$RUNS/traces/$mode-alpaca_dev.jsonl" --costs "$COSTS" --output "$RUNS/$mode-$1" "${@:2}"; }
    sweep paper --labels "$RUNS/labels/$mode-paper-0.15" --labels "$RUNS/labels/$mode-paper-0" \
        --labels "$RUNS/labels/$mode-paper-0.5" --labels "$RUNS/labels/$mode-on-policy" --reads after --feature none --num-layers 3
    sweep ours --labels "$RUNS/labels/$mode-on-policy" --labels "$RUNS/labels/$mode-paper-0.15"
    for kind in paper ours; do
        cp "$RUNS/$mode-$kind/sweep.json" "$RESULTS/sweep-$mode-$kind.json"
        compare "$RUNS/$mode-$kind/base" "$RESULTS/paper-$mode-$kind.json"
    done
done
python $R/rules_report.py "$RESULTS"/paper-*-paper.json --output "$RESULTS/paper"
