# /// script
# dependencies = ["hf_specdecpp[demo] @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Step 0 of the draft: let the target answer prompts, or take the set's own answers, as text to distil on.

    python recipes/smollm2-135m/sample_responses.py --target TARGET --exclude runs/fresh.jsonl --seed 1 \\
        --set dolly_train databricks/databricks-dolly-15k --output runs/dolly.jsonl

Responses are sampled at temperature 1 with top-k 50, or with `--greedy` decoded greedily. A line of the output has
`set`, `row` (the prompt's number in its source), `prompt` and `response_ids`, which is what the next step reads. Lines
are appended batch by batch; a killed run goes on where it stopped. `--reference` takes the answers that people wrote:
not what the target would say, but general prose for a third of the price, since the target need not generate.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.hub.data import load_rows, prompt_ids, prompt_text
from hf_specdecpp.training.responses import generate_responses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--set", nargs=2, required=True, metavar=("NAME", "SOURCE"))
    parser.add_argument("--exclude", type=Path, help="JSONL of prompts to leave out: those of the head's labels")
    parser.add_argument("--reference", metavar="FIELD", help="take the answer from this field of the source")
    parser.add_argument("--greedy", action="store_true", help="decode greedily instead of sampling")
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--limit", type=int, help="stop after so many prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    name, source = args.set
    excluded = set()
    if args.exclude:
        excluded = {json.loads(line)["prompt"] for line in args.exclude.read_text().splitlines()}
    work = []
    for number, row in enumerate(load_rows(source)):
        text = prompt_text(row)
        if text not in excluded and len(text) < 1500:
            work.append((number, text, prompt_ids(tokenizer, text), row))
    order = torch.randperm(len(work), generator=torch.Generator().manual_seed(args.seed)).tolist()
    work = [work[i] for i in order][: args.limit]

    # Prompts of similar length share a batch; the groups stay in the order of the draw, so a --limit is a fair sample.
    size = 4 * args.batch_size
    groups = [sorted(work[i : i + size], key=lambda w: len(w[2])) for i in range(0, len(work), size)]
    batches = [g[i : i + args.batch_size] for g in groups for i in range(0, len(g), args.batch_size)]
    # What a killed run left of its last batch is made again.
    args.output.parent.mkdir(parents=True, exist_ok=True)
    written = args.output.read_text().splitlines(keepends=True) if args.output.exists() else []
    whole = {json.loads(line)["row"]: line for line in written if line.endswith("\n")}
    done = [b for b in batches if all(w[0] in whole for w in b)]
    args.output.write_text("".join(whole[w[0]] for b in done for w in b))
    if not args.reference:
        model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16).eval()
    eos = tokenizer.eos_token_id
    tokens, start = 0, time.perf_counter()
    for number, batch in enumerate(batches):
        if batch in done:
            continue
        if args.reference:
            answers = [[*tokenizer(row[args.reference])["input_ids"][:512], eos] for *_, row in batch]
        else:
            prompts = [ids for _, _, ids, _ in batch]
            seed = args.seed * 10000 + number
            decoding = Decoding(do_sample=not args.greedy)
            answers = generate_responses(model, prompts, decoding, args.max_new_tokens, [eos], seed)
        lines = [
            json.dumps({"set": name, "row": row, "prompt": text, "response_ids": answer}) + "\n"
            for (row, text, _, _), answer in zip(batch, answers, strict=True)
        ]
        with args.output.open("a") as file:
            file.write("".join(lines))
        tokens += sum(map(len, answers))
        rate = tokens / (time.perf_counter() - start)
        print(f"{number + 1}/{len(batches)} batches, {tokens} tokens, {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
