# /// script
# dependencies = ["hf_specdecpp[demo] @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""How often the draft agrees with the target, on the target's own responses and on responses only.

    PYTHONPATH=recipes/smollm2-135m python benchmarks/training/evaluate_draft.py --target TARGET \\
        --draft recipes/smollm2-135m/draft --set alpaca_dev alpaca_dev.jsonl 150 --responses responses.jsonl \\
        --output benchmarks/training/results/draft.json

`--set NAME SOURCE COUNT` lets the target answer the first COUNT prompts of a Hub dataset or file, sampling at
temperature 1 with top-k 50 and, as a second set, greedily. `--responses` adds the held-out rows (every 32nd prompt) of
the file that the draft was trained on. Reported: the share of positions where both models' likeliest tokens agree, and
the mean of sum_v min(p_v, q_v), the expected acceptance when sampling, at temperature 1 with and without top-k 50.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from cache_teacher import held_out, read_sequences
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specdecpp  # noqa: F401 (the shipped draft is a model class of ours)
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.hub.data import load_rows, prompt_ids, prompt_text
from hf_specdecpp.training.labels import predictions
from hf_specdecpp.training.responses import generate_responses

SAMPLING = Decoding(do_sample=True, temperature=1.0, top_k=50)


@torch.inference_mode()
def agreement(target, draft, pairs: list[tuple[list[int], list[int]]]) -> dict[str, float]:
    """Over (prompt, response) pairs of token ids."""
    sums, positions = torch.zeros(3, dtype=torch.double), 0
    for prompt, response in pairs:
        ids = torch.tensor([prompt + response])
        p, q = (predictions(m, ids, len(prompt))[0].float() for m in (target, draft))
        warped = [SAMPLING.processed(x).softmax(-1) for x in (p, q)]
        overlaps = [torch.minimum(a, b).sum() for a, b in ((p.softmax(-1), q.softmax(-1)), warped)]
        sums += torch.stack([(p.argmax(-1) == q.argmax(-1)).sum(), *overlaps]).double()
        positions += len(response)
    names = ("greedy_match", "overlap", "overlap_top_k_50")
    return dict(zip(names, (sums / positions).tolist(), strict=True)) | {"tokens": positions, "responses": len(pairs)}


def step_milliseconds(model, width: int = 1, context: int = 150, steps: int = 60) -> float:
    """Median time of a forward pass over `width` tokens after `context` tokens, batch size 1."""
    ids = torch.randint(5, 200, (1, context), generator=torch.Generator().manual_seed(0))
    times = []
    with torch.inference_mode():
        cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
        for _ in range(steps):
            start = time.perf_counter()
            model(ids[:, :width], past_key_values=cache, use_cache=True).logits.argmax(-1).tolist()
            times.append(time.perf_counter() - start)
            cache.crop(-width)
    return 1000 * torch.tensor(times).median().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--set", nargs=3, action="append", default=[], metavar=("NAME", "SOURCE", "COUNT"))
    parser.add_argument("--responses")
    parser.add_argument("--held-out-rows", type=int, default=60, help="of each set in --responses")
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(m, dtype=torch.bfloat16).eval() for m in (args.target, args.draft)
    )
    sets = {}
    for name, source, count in args.set:
        prompts = [prompt_ids(tokenizer, prompt_text(row)) for row in load_rows(source).take(int(count))]
        prompts.sort(key=len)
        for mode, decoding in (("sampled", SAMPLING), ("greedy", Decoding())):
            responses = []
            for first in range(0, len(prompts), 50):
                batch = prompts[first : first + 50]
                responses += generate_responses(target, batch, decoding, args.max_new_tokens, [tokenizer.eos_token_id])
            sets[f"{name}, {mode} responses"] = list(zip(prompts, responses, strict=True))
    if args.responses:
        rows = read_sequences(args.responses, tokenizer, ["dolly_train", "gsm8k_train"])
        for name in ("dolly_train", "gsm8k_train"):
            held = [s for s in rows if s["set"] == name and held_out(s)][: args.held_out_rows]
            pairs = [(s["input_ids"][: s["response"]], s["input_ids"][s["response"] :]) for s in held]
            sets[f"{name} held out, sampled responses"] = pairs
    target_widths = {n: step_milliseconds(target, n) for n in (1, 2, 4, 8)}
    draft_step = step_milliseconds(draft)
    result = {
        "draft_step_ms": draft_step,
        "target_pass_ms_by_tokens": target_widths,
        "draft_to_target": draft_step / target_widths[1],
        "threads": torch.get_num_threads(),
        "dtype": "bfloat16",
        "sets": {name: agreement(target, draft, pairs) for name, pairs in sets.items()},
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
