#!/usr/bin/env bash
# An ordinary draft, for whoever wants an `assistant_model` that needs no loop of ours: two layers of the target behind a
# compact vocabulary, distilled. It was shipped before the draft that reads the target, and is what the peers were
# measured with:
#
#     git archive 3be3ff9 recipes/smollm2-135m/draft | tar x --strip-components 2 -C runs
#
# Each step skips what it finds done, so the script can be killed and started again.
#
#     recipes/smollm2-135m/ordinary_draft.sh [runs]
#
# Sources are Hub datasets; set DOLLY and GSM8K to local JSONL files on a machine without the Hub.
set -euo pipefail
cd "$(dirname "$0")/../.."
R=recipes/smollm2-135m
RUNS=${1:-runs/smollm2-135m-ordinary}
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}
DOLLY=${DOLLY:-databricks/databricks-dolly-15k}
GSM8K=${GSM8K:-openai/gsm8k:main:train}
mkdir -p "$RUNS"

# First stage: responses of the target to part of Dolly and GSM8K, 1300 steps.
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

# Second stage: another response to every other Dolly prompt, and Dolly's own answers; 600 steps.
python $R/sample_responses.py --target "$TARGET" --set dolly_train "$DOLLY" --exclude "$RUNS/fresh.jsonl" --seed 1 --output "$RUNS/dolly_sampled.jsonl"
python $R/sample_responses.py --target "$TARGET" --set dolly_train "$DOLLY" --exclude "$RUNS/fresh.jsonl" --seed 2 --limit 1400 \
    --reference "${DOLLY_ANSWER:-response}" --output "$RUNS/dolly_reference.jsonl"
for part in sampled reference; do
    python $R/cache_teacher.py --target "$TARGET" --responses "$RUNS/dolly_$part.jsonl" --sets dolly_train --output "$RUNS/teacher_$part"
done
[ -e "$RUNS/draft/metrics.json" ] ||
    python $R/distil_draft.py --target "$TARGET" --init "$RUNS/draft1" --teacher "$RUNS"/teacher "$RUNS"/teacher_{sampled,reference} \
        --learning-rate 6e-4 --max-steps 600 --output "$RUNS/draft"
