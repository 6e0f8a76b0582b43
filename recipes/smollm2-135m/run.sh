#!/usr/bin/env bash
# From raw prompts to the shipped draft, heads and numbers, with every setting. Each step skips what it finds done, so
# the script can be killed and started again. See the README beside it for minutes and results.
#
#     recipes/smollm2-135m/run.sh [runs]
#
# Sources are Hub datasets; set DOLLY, GSM8K, ALPACA_DEV, ... to local JSONL files on a machine without the Hub.
set -euo pipefail
cd "$(dirname "$0")/../.."
R=recipes/smollm2-135m
RUNS=${1:-runs/smollm2-135m}
RESULTS=$RUNS/results
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}
DOLLY=${DOLLY:-databricks/databricks-dolly-15k}
GSM8K=${GSM8K:-openai/gsm8k:main:train}
GSM8K_TEST=${GSM8K_TEST:-openai/gsm8k:main:test}
ALPACA_DEV=${ALPACA_DEV:?a JSONL of the Alpaca prompts to choose on}
ALPACA_TEST=${ALPACA_TEST:?a JSONL of the Alpaca prompts to report on}
HUMANEVAL=${HUMANEVAL:-openai/openai_humaneval:test}
mkdir -p "$RUNS" "$RESULTS"

# The draft, first stage: responses of the target to part of Dolly and GSM8K, 1300 steps.
first=$RUNS/first_responses.jsonl
if [ ! -e "$first" ]; then
    python $R/sample_responses.py --target "$TARGET" --set dolly_train "$DOLLY" --limit 1600 --max-new-tokens 192 --output "$RUNS/first_dolly.jsonl"
    python $R/sample_responses.py --target "$TARGET" --set gsm8k_train "$GSM8K" --limit 3500 --max-new-tokens 192 --output "$RUNS/first_gsm8k.jsonl"
    cat "$RUNS/first_dolly.jsonl" "$RUNS/first_gsm8k.jsonl" > "$first.partial" && mv "$first.partial" "$first"
fi
python $R/cache_teacher.py --target "$TARGET" --responses "$first" --output "$RUNS/teacher"
[ -e "$RUNS/draft1/metrics.json" ] ||
    python $R/distil_draft.py --target "$TARGET" --teacher "$RUNS/teacher" --max-steps 1300 --output "$RUNS/draft1"

# Prompts that the draft never sees, for the heads and the choice of thresholds.
[ -e "$RUNS/fresh.jsonl" ] ||
    python $R/fresh_prompts.py --responses "$first" --source "$DOLLY" 640 --source "$GSM8K" 320 --output "$RUNS/fresh.jsonl"

# The draft, second stage: another response to every other Dolly prompt, and Dolly's own answers; 600 steps.
python $R/sample_responses.py --target "$TARGET" --set dolly_train "$DOLLY" --exclude "$RUNS/fresh.jsonl" --seed 1 --output "$RUNS/dolly_sampled.jsonl"
python $R/sample_responses.py --target "$TARGET" --set dolly_train "$DOLLY" --exclude "$RUNS/fresh.jsonl" --seed 2 --limit 1400 \
    --reference "${DOLLY_ANSWER:-response}" --output "$RUNS/dolly_reference.jsonl"
for part in sampled reference; do
    python $R/cache_teacher.py --target "$TARGET" --responses "$RUNS/dolly_$part.jsonl" --sets dolly_train --output "$RUNS/teacher_$part"
done
[ -e "$RUNS/draft/metrics.json" ] ||
    python $R/distil_draft.py --target "$TARGET" --init "$RUNS/draft1" --teacher "$RUNS"/teacher "$RUNS"/teacher_{sampled,reference} \
        --learning-rate 6e-4 --max-steps 600 --output "$RUNS/draft"
PYTHONPATH=$R python benchmarks/training/evaluate_draft.py --target "$TARGET" --draft "$RUNS/draft" --set alpaca_dev "$ALPACA_DEV" 100 --responses "$first" \
    --output "$RESULTS/draft.json"

# One head for each way of decoding, trained where the draft was not; then all rules, settings chosen on Alpaca dev.
python recipes/train_head.py $R.yaml --output "$RUNS" --set target="$TARGET" --set draft="$RUNS/draft" \
    --set prompts="$RUNS/fresh.jsonl" --set unseen=null --set judge.alpaca_test="$ALPACA_TEST" \
    --set judge.gsm8k_test="$GSM8K_TEST" --set judge.humaneval_test="$HUMANEVAL"
for mode in greedy sampling; do
    python benchmarks/rules/compare_rules.py --target "$TARGET" --draft "$RUNS/draft" --head "$RUNS/$mode" --set alpaca_dev "$ALPACA_DEV" \
        --set alpaca_test "$ALPACA_TEST" --set gsm8k_test "$GSM8K_TEST" --set humaneval "$HUMANEVAL" --count 24 \
        --traces "$RUNS/traces" --recommend --output "$RESULTS/rules-$mode.json"
done

# Token for token, on 100 prompts of each set.
for dtype in float32 bfloat16; do
    python benchmarks/lossless/check_lossless.py --target "$TARGET" --draft "$RUNS/draft" --head "$RUNS/greedy" --dtype $dtype \
        --set alpaca_test "$ALPACA_TEST" --set gsm8k_test "$GSM8K_TEST" --set humaneval "$HUMANEVAL" \
        --output "$RESULTS/lossless-$dtype.jsonl"
done
