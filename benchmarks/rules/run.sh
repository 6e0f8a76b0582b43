#!/usr/bin/env bash
# The stopping rules by replay of drafts recorded once, and trees against chains. Settings are chosen on Alpaca dev.
# About an hour on two CPU cores; every step but the last goes on where it was killed.
#
#   ALPACA_DEV=alpaca_dev.jsonl ALPACA_TEST=alpaca_test.jsonl benchmarks/rules/run.sh runs/paper runs/results
#
# The traces and costs in the first folder serve other heads of the draft too.
set -euo pipefail
cd "$(dirname "$0")/../.."
RUNS=${1:?folder for traces and costs} RESULTS=${2:?folder for results}
S=benchmarks/rules R=recipes/smollm2-135m
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct} DRAFT=${DRAFT:-$R/draft} COUNT=${COUNT:-24}
GSM8K_TEST=${GSM8K_TEST:-openai/gsm8k:main:test}
HUMANEVAL=${HUMANEVAL:-openai/openai_humaneval:test}
: "${ALPACA_DEV:?a file or Hub dataset}" "${ALPACA_TEST:?}"
mkdir -p "$RUNS" "$RESULTS"
PAIR=(--target "$TARGET" --draft "$DRAFT")

[ -e "$RUNS/costs/bfloat16.json" ] || specdecpp calibrate "${PAIR[@]}" --head $R/heads/sampling --output "$RUNS/costs"
for mode in ${MODES:-sampling greedy}; do
    python $S/compare_rules.py "${PAIR[@]}" --head $R/heads/$mode --set alpaca_dev "$ALPACA_DEV" \
        --set alpaca_test "$ALPACA_TEST" --set gsm8k_test "$GSM8K_TEST" --set humaneval "$HUMANEVAL" --count "$COUNT" \
        --max-new-tokens 128 --costs "$RUNS/costs/bfloat16.json" --traces "$RUNS/traces" --hardware \
        --output "$RESULTS/rules-$mode.json"
done

traces=()
for set in alpaca-dev="$ALPACA_DEV" alpaca-test="$ALPACA_TEST" gsm8k-test="$GSM8K_TEST" humaneval="$HUMANEVAL"; do
    traces+=("$RUNS/${set%%=*}-greedy.jsonl")
    specdecpp trace "${PAIR[@]}" --head $R/heads/greedy --prompts "${set#*=}" --limit 12 --branches 3 --max-draft-length 6 \
        --max-new-tokens 128 --output "$RUNS/${set%%=*}-greedy.jsonl"
done
python $S/trees.py --traces "${traces[@]}" --costs "$RUNS/costs/bfloat16.json" --output "$RESULTS/trees-replay.json"
python $S/rules_report.py "$RESULTS"/rules-*.json --output "$RESULTS/rules-replay"

# What a replay promises, and what the clock gives.
python $S/clock.py "${PAIR[@]}" --head $R/heads/greedy --set alpaca="$ALPACA_TEST" --set gsm8k="$GSM8K_TEST" \
    --set humaneval="$HUMANEVAL" --traces "$RUNS/clock" --output "$RESULTS/clock-greedy.json"
