#!/usr/bin/env bash
# Token for token: SpecDec++ beside plain decoding of the shipped pair, 100 prompts of each set: greedy in float32, and in bfloat16
# passes of one width, greedy and sampling. Two hours on two CPU cores; prompts that are in an output are skipped, so it goes
# on where it was killed.
#
#   ALPACA_TEST=alpaca_test.jsonl benchmarks/lossless/run.sh runs/lossless
set -euo pipefail
cd "$(dirname "$0")/../.."
R=recipes/smollm2-135m RUNS=${1:?a folder for the JSONL files}
mkdir -p "$RUNS"
check() {
    python benchmarks/lossless/check_lossless.py --target "${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}" --draft $R/draft \
        --head $R/heads/greedy "$@"
}
sets=(--set alpaca_test "${ALPACA_TEST:?a file or Hub dataset}" --set gsm8k_test "${GSM8K_TEST:-openai/gsm8k:main:test}" \
    --set humaneval "${HUMANEVAL:-openai/openai_humaneval:test}")
check "${sets[@]}" --dtype float32 --output "$RUNS/lossless-float32.jsonl"
check "${sets[@]}" --dtype bfloat16 --reproducible --max-new-tokens 32 --output "$RUNS/reproducible-greedy.jsonl"
check "${sets[@]}" --dtype bfloat16 --reproducible --max-new-tokens 32 --sample --output "$RUNS/reproducible-sampling.jsonl"
