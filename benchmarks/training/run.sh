#!/usr/bin/env bash
# What making a head and a draft costs, and how good they are. Two hours on two CPU cores.
#
#   ALPACA_DEV=alpaca_dev.jsonl PROMPTS=prompts.jsonl TEXT=runs/smollm2-135m/responses.jsonl \
#       RESPONSES=alpaca-dev=runs/smollm2-135m/eval_alpaca-dev.jsonl benchmarks/training/run.sh runs/training
#
# PROMPTS are some that the draft never saw; RESPONSES, NAME=FILE NAME=FILE ..., the target's to others, which
# drafts are judged on; TEXT the target's to prompts of the training text.
set -euo pipefail
cd "$(dirname "$0")/../.."
RUNS=${1:?folder for what is measured} S=benchmarks/training R=recipes/smollm2-135m
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}
mkdir -p "$RUNS" runs
# The speeds are of the ordinary draft that was shipped before: the authors' procedure takes no other.
ordinary=runs/draft
[ -e $ordinary ] || git archive 3be3ff9 recipes/smollm2-135m/draft | tar x --strip-components 2 -C runs
PAIR=(--target "$TARGET" --draft $ordinary)

python $S/label_speed.py "${PAIR[@]}" --prompts "${PROMPTS:?}" --chunks 3 --chunk-size 64 --max-new-tokens 96 --output "$RUNS/label-speed-greedy.json"
python $S/label_memory.py --target $ordinary --draft $ordinary --prompts "$PROMPTS" --states before --output "$RUNS/label-memory.json"
specdecpp label "${PAIR[@]}" --prompts "$PROMPTS" --limit 320 --max-new-tokens 96 --states before --states after --output "$RUNS/labels"
for reads in before after; do
    python $S/training_speed.py --labels "$RUNS/labels" --draft $ordinary --reads $reads --epochs 2 --limit 320 --output "$RUNS/training-speed-$reads.json"
done
judged=() evaluated=()
for each in ${RESPONSES:?}; do judged+=(--responses "$each") evaluated+=(--evaluate "$each"); done
python $S/evaluate_draft.py "${PAIR[@]}" --draft $R/draft "${judged[@]}" --output "$RUNS/drafts.json"
python $S/evaluate_draft.py "${PAIR[@]}" --draft $R/draft "${judged[@]:0:2}" --limit 64 --output "$RUNS/drafts-${RESPONSES%%=*}.json"
# Drafts of other forms on the same text, at equal training.
python $S/forms.py --target "$TARGET" --responses "${TEXT:?}" --teacher "$RUNS/teacher" "${evaluated[@]}" \
    --output "$RUNS/forms.json"
python recipes/train_head.py $R.yaml --output "$RUNS/heads"

# What a temperature for each position would add to the head.
traces=()
for set in alpaca-dev="${ALPACA_DEV:?a file or Hub dataset}" gsm8k-test="${GSM8K_TEST:-openai/gsm8k:main:test}" humaneval="${HUMANEVAL:-openai/openai_humaneval:test}"; do
    traces+=("$RUNS/${set%%=*}.jsonl")
    specdecpp trace --target "$TARGET" --draft $R/draft --head $R/heads/greedy --prompts "${set#*=}" --limit 24 --max-draft-length 8 \
        --max-new-tokens 64 --output "$RUNS/${set%%=*}.jsonl"
done
python $S/temperatures.py --fit "${traces[0]}" --judge "${traces[@]:1}" --output "$RUNS/temperatures.json"
