#!/usr/bin/env bash
# Token for token: SpecDec++ beside plain greedy decoding of the shipped pair in float32, 100 prompts of each set.
# An hour and a half on two CPU cores; prompts that are in the output are skipped, so it goes on where it was killed.
#
#   ALPACA_TEST=alpaca_test.jsonl benchmarks/lossless/run.sh runs/lossless-float32.jsonl
set -euo pipefail
cd "$(dirname "$0")/../.."
R=recipes/smollm2-135m
python benchmarks/lossless/check_lossless.py --target "${TARGET:-HuggingFaceTB/SmolLM2-135M-Instruct}" --draft $R/draft --head $R/heads/greedy \
    --set alpaca_test "${ALPACA_TEST:?a file or Hub dataset}" --set gsm8k_test "${GSM8K_TEST:-openai/gsm8k:main:test}" \
    --set humaneval "${HUMANEVAL:-openai/openai_humaneval:test}" --dtype float32 --output "${1:?a JSONL file}"
