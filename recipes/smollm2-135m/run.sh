#!/usr/bin/env bash
# From raw prompts to a draft that reads the target, and heads for it, with every setting. Each step skips what it finds
# done, so the script can be killed and started again. See the README beside it for minutes and results.
#
#     ALPACA_DEV=alpaca_dev.jsonl ALPACA_TEST=alpaca_test.jsonl recipes/smollm2-135m/run.sh [runs]
#
# Sources are Hub datasets; set DOLLY, GSM8K, ... to local JSONL files on a machine without the Hub.
set -euo pipefail
cd "$(dirname "$0")/../.."
R=recipes/smollm2-135m
RUNS=${1:-runs/smollm2-135m}
TARGET=${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}
DOLLY=${DOLLY:-databricks/databricks-dolly-15k}
GSM8K=${GSM8K:-openai/gsm8k:main:train}
GSM8K_TEST=${GSM8K_TEST:-openai/gsm8k:main:test}
ALPACA_DEV=${ALPACA_DEV:?a JSONL of the Alpaca prompts to choose on}
ALPACA_TEST=${ALPACA_TEST:?a JSONL of the Alpaca prompts to report on}
HUMANEVAL=${HUMANEVAL:-openai/openai_humaneval:test}
mkdir -p "$RUNS"
say() { python $R/sample_responses.py --target "$TARGET" --max-new-tokens 192 "$@"; }

# Text: the target's responses to part of Dolly and GSM8K-train, to docstrings of Python's library, and to prompts that
# it wrote itself.
python $R/docstring_prompts.py --output "$RUNS/docstrings.jsonl"
say --set dolly_train "$DOLLY" --limit 1602 --output "$RUNS/dolly.jsonl"
say --set gsm8k_train "$GSM8K" --limit 1346 --output "$RUNS/gsm8k.jsonl"
say --set docstrings "$RUNS/docstrings.jsonl" --limit 950 --greedy --output "$RUNS/code.jsonl"
python $R/self_prompts.py --target "$TARGET" --rounds 34 --output "$RUNS/self.jsonl"
say --set gsm8k_train "$GSM8K" --exclude "$RUNS/gsm8k.jsonl" --limit 2153 --output "$RUNS/gsm8k-more.jsonl"
python $R/self_prompts.py --target "$TARGET" --rounds 54 --seed 2 --output "$RUNS/self-more.jsonl"

# Other text to judge it on.
say --set alpaca_dev "$ALPACA_DEV" --limit 64 --greedy --output "$RUNS/eval_alpaca-dev.jsonl"

# The draft, and the same draft trained further on that text and as much again.
first=(--responses "$RUNS/dolly.jsonl" --responses "$RUNS/gsm8k.jsonl" --responses "$RUNS/code.jsonl" --responses "$RUNS/self.jsonl")
more=(--responses "$RUNS/gsm8k-more.jsonl" --responses "$RUNS/self-more.jsonl")
train() { python recipes/train_draft.py --target "$TARGET" --save-every 25 --evaluate alpaca-dev="$RUNS/eval_alpaca-dev.jsonl" "$@"; }
train "${first[@]}" --draft-vocab-size 11776 --epochs 2.5 --teacher "$RUNS/teacher-1" --output "$RUNS/eagle3-1"
train "${first[@]}" "${more[@]}" --start "$RUNS/eagle3-1/draft" --max-steps 720 --learning-rate 8e-4 --teacher "$RUNS/teacher" \
    --output "$RUNS/eagle3"

# One head for each way of decoding, on prompts that the draft was not trained on.
[ -e "$RUNS/fresh.jsonl" ] || {
    cat "$RUNS"/{dolly,gsm8k,gsm8k-more}.jsonl > "$RUNS/seen.jsonl"
    python $R/fresh_prompts.py --responses "$RUNS/seen.jsonl" --source "$DOLLY" 640 --source "$GSM8K" 320 --output "$RUNS/fresh.jsonl"
}
python recipes/train_head.py $R.yaml --output "$RUNS" --set target="$TARGET" --set draft="$RUNS/eagle3/draft" \
    --set prompts="$RUNS/fresh.jsonl" --set unseen=null --set judge.alpaca_test="$ALPACA_TEST" \
    --set judge.gsm8k_test="$GSM8K_TEST" --set judge.humaneval_test="$HUMANEVAL"
