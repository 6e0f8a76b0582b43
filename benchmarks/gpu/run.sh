#!/usr/bin/env bash
# The same by the clock on a GPU, beside compiled plain decoding, which is what there is to beat there.
#
#   benchmarks/gpu/run.sh runs/gpu                                      # the shipped pair
#   TARGET=org/target DRAFT=org/draft benchmarks/gpu/run.sh runs/gpu    # another
set -euo pipefail
cd "$(dirname "$0")/../.."
RUNS=${1:?folder for what is measured}
pair=(); [ -z "${TARGET:-}" ] || pair=(--target "$TARGET" --draft "${DRAFT:?}")
mkdir -p "$RUNS"
methods=(); for m in plain compiled assisted lookup text chain tree recommended; do methods+=(--method $m); done
specdecpp bench "${pair[@]}" --set alpaca --set gsm8k --set humaneval "${methods[@]}" --count 24 --repeats 1 --output "$RUNS/bench-greedy.json"
specdecpp bench report "$RUNS/bench-greedy.json" --output "$RUNS/report"
