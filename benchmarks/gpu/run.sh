#!/usr/bin/env bash
# The same by the clock on a GPU, beside compiled plain decoding, which is what there is to beat there.
#
#   benchmarks/gpu/run.sh runs/gpu                                      # the shipped pair
#   TARGET=org/target DRAFT=org/draft benchmarks/gpu/run.sh runs/gpu    # another
set -euo pipefail
cd "$(dirname "$0")/../.."
RUNS=${1:?folder for what is measured}
R=recipes/smollm2-135m
pair=(--target HuggingFaceTB/SmolLM2-135M-Instruct --draft $R/draft --head $R/heads/greedy)
[ -z "${TARGET:-}" ] || pair=(--target "$TARGET" --draft "${DRAFT:?}")
mkdir -p "$RUNS"
methods=(); for m in compiled assisted lookup text recommended compiled:fixed=0 compiled:recommended; do methods+=(--method $m); done
specdecpp bench "${pair[@]}" --set alpaca --set gsm8k --set humaneval --method plain "${methods[@]}" --count 24 --repeats 1 --output "$RUNS/bench-greedy.json"
specdecpp bench report "$RUNS/bench-greedy.json" --output "$RUNS/report"
methods=(); for m in compiled recommended compiled:fixed=0 compiled:recommended; do methods+=(--method $m); done
python benchmarks/speed/batches.py "${pair[@]}" --prompts alpaca --prompts gsm8k "${methods[@]}" --sizes 1 8 \
    --batches 3 --output "$RUNS/batches-greedy.json"
