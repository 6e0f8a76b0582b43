# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Prompts for the head's labels: those of the training sets whose responses the draft has not been trained on.

    python recipes/smollm2-135m/fresh_prompts.py --responses responses.jsonl --output runs/fresh.jsonl \\
        --source databricks/databricks-dolly-15k 640 --source openai/gsm8k:main:train 320

A draft agrees with its target too often on text that it has memorised, and a head trained there would be too sure.
Each source is a Hub dataset or a local file, with the number of prompts to take from it. A list of the chosen prompts,
`fresh.txt`, tells others which they are without repeating them: the `unseen` of a recipe.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from hf_specdecpp.hub.data import load_rows, prompt_digest, prompt_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=Path, required=True, help="the JSONL that the draft was trained on")
    parser.add_argument("--source", nargs=2, action="append", required=True, metavar=("SOURCE", "COUNT"))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    seen = {json.loads(line)["prompt"] for line in args.responses.read_text().splitlines()}
    chosen = []
    for source, count in args.source:
        fresh = [text for text in map(prompt_text, load_rows(source)) if text not in seen and len(text) < 1500]
        chosen += random.Random(0).sample(fresh, int(count))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in chosen))
    digests = sorted(set(map(prompt_digest, chosen)))
    args.output.with_suffix(".txt").write_text("".join(digest + "\n" for digest in digests))
    print(f"{len(chosen)} prompts in {args.output}")


if __name__ == "__main__":
    main()
