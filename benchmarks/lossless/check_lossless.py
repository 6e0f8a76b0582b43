# /// script
# dependencies = ["hf_specdecpp[demo] @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Compares SpecDec++ with plain decoding token for token, on many prompts of the real pair.

    python benchmarks/lossless/check_lossless.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --head recipes/smollm2-135m/heads/greedy --set humaneval openai/openai_humaneval:test --dtype float32 \\
        --output benchmarks/lossless/results/lossless-float32.jsonl

One line a prompt is appended as soon as it is compared, and prompts that are there are skipped, so it can be killed
and started again. In float32 every prompt must be equal; in bfloat16 a verification pass over several tokens rounds
otherwise than a pass over one, so a near-tie can flip: the gap between the two logits is recorded. With
`--reproducible` both decode in passes of one width, plain decoding as the rule that never drafts, and every prompt
must be equal in bfloat16 too; with `--sample` both sample under the same seed. Seconds are those of either, and of
plain decoding outside the mode.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig
from hf_specdecpp.hub.data import load_rows, prompt_ids, prompt_text
from hf_specdecpp.hub.loading import load_pair, load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--set", nargs=2, action="append", required=True, metavar=("NAME", "SOURCE"))
    parser.add_argument("--count", type=int, default=100, help="prompts of each set")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of them, for another process")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--reproducible", action="store_true", help="passes of one width")
    parser.add_argument("--sample", action="store_true", help="temperature 1, top-k 50, a seed a prompt")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = load_tokenizer(args.target)
    target, draft = load_pair(args.target, args.draft, args.dtype, head=args.head)
    lines = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    done = {(line["set"], line["row"]) for line in lines}
    # Round robin over the sets, so that a run cut short has seen them all.
    work = [(n, r, row) for n, source in args.set for r, row in enumerate(load_rows(source).take(args.count))]
    for name, number, row in sorted(work, key=lambda item: item[1]):
        if number < args.skip or (name, number) in done:
            continue
        ids = torch.tensor([prompt_ids(tokenizer, prompt_text(row))])
        settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": args.max_new_tokens}
        settings |= {"do_sample": True, "temperature": 1.0, "top_k": 50} if args.sample else {"do_sample": False}
        ours = {"assistant_model": draft, "candidate_generator": SpecDecPP}
        theirs = {}
        if args.reproducible:
            ours["drafting_config"] = DraftingConfig(reproducible=True)
            theirs = ours | {"stopping_config": StoppingConfig(rule="fixed", settings={"length": 0})}
        outputs, seconds = [], []
        ways = [theirs | {"return_dict_in_generate": True, "output_logits": True}, ours]
        for given in [*ways, {}] if args.reproducible else ways:
            torch.manual_seed(number)
            begin = time.perf_counter()
            outputs.append(target.generate(ids, **settings, **given))
            seconds.append(time.perf_counter() - begin)
        plain, found = outputs[0], outputs[1][0].tolist()
        expected = plain.sequences[0].tolist()
        line = {"set": name, "row": number, "tokens": len(expected) - ids.shape[1], "equal": found == expected}
        line |= {"dtype": args.dtype, "reproducible": args.reproducible, "sample": args.sample, "seconds": seconds}
        if not line["equal"]:
            first = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
            top = plain.logits[first - ids.shape[1]][0].float().topk(2)
            line |= {"first_difference": first - ids.shape[1], "logit_gap": (top.values[0] - top.values[1]).item()}
        lines.append(line)
        with args.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
    for name, _ in args.set:
        own = [line for line in lines if line["set"] == name]
        print(f"{name}: {sum(line['equal'] for line in own)} of {len(own)} prompts equal, {args.dtype}")


if __name__ == "__main__":
    main()
