# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Time and memory of a generated token after prompts of growing length, plain and with SpecDec++.

    python benchmarks/speed/context_length.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --head recipes/smollm2-135m/heads/greedy --prompts openai/gsm8k:main:test \\
        --output benchmarks/speed/results/context-length.json

A prompt is as many turns of one chat as fit, each a prompt of the set and its answer, then one more prompt. Both ways
to decode take turns at each length. The time of a token leaves the reading of the prompt out: it begins when the
first tokens come. In every pass the caches must hold as many tokens as the text; memory is that of keys and values
at the end, of both models, with the room that they have to grow.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

import torch
from datasets import Dataset
from torch import Tensor
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from hf_specdecpp import SpecDecPP, collect_stats
from hf_specdecpp.drafting.informed.config import ReadsTarget
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.hub.data import load_rows, prompt_text
from hf_specdecpp.hub.loading import load_pair, load_tokenizer


class Clock(BaseStreamer):
    """Notes when tokens come."""

    def __init__(self):
        self.times: list[tuple[float, int]] = []

    def put(self, value: Tensor) -> None:
        self.times.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass

    @property
    def tokens(self) -> int:
        """Of the text so far, the prompt included."""
        return sum(count for _, count in self.times)

    def seconds_per_token(self) -> float:
        """From the first tokens after the prompt to the last."""
        _, (first, _), *others = self.times
        return (others[-1][0] - first) / sum(tokens for _, tokens in others)


def long_prompt(tokenizer: PreTrainedTokenizerBase, rows: Dataset, length: int) -> Tensor:
    """At most `length` tokens, (1, n)."""
    messages, ids = [], []
    for row in rows:
        asked = [*messages, {"role": "user", "content": prompt_text(row)}]
        found = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
        if len(found) > length:
            break
        ids, messages = found, [*asked, {"role": "assistant", "content": row.get("answer") or row.get("output") or ""}]
    return torch.tensor([ids or found[:length]])


def bytes_of(cache: Cache) -> int:
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


@contextmanager
def checked(target: PreTrainedModel, draft: PreTrainedModel, clock: Clock) -> Iterator[dict[PreTrainedModel, Cache]]:
    """Asserts in every pass that the caches hold the text and no more; yields them, each by its model.

    The target's lacks the text's last token when a round is verified. The draft's reaches to the text's end, and holds
    besides what was drafted in the round; one that reads its target has no entry for the first token.
    """
    unsaid = int(isinstance(draft.config, ReadsTarget))
    caches: dict[PreTrainedModel, Cache] = {}
    drafted: int | None = None  # tokens of the round that the draft read; None before its first pass

    def check(model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
        nonlocal drafted
        cache, read, text = kwargs["past_key_values"], kwargs["input_ids"].shape[1], clock.tokens
        caches[model] = cache
        if model is target:
            assert cache.get_seq_length() in (0, text - 1)
            drafted = None
        else:
            drafted = 0 if drafted is None else drafted + read
            assert cache.get_seq_length() + read == text - unsaid + drafted

    hooks = [model.register_forward_pre_hook(check, with_kwargs=True) for model in (target, draft)]
    try:
        yield caches
    finally:
        for hook in hooks:
            hook.remove()


def generate(target: PreTrainedModel, ids: Tensor, new_tokens: int, draft: PreTrainedModel | None) -> dict:
    """One generation of exactly `new_tokens` tokens, with SpecDec++ if there is a draft."""
    clock = Clock()
    ours = {"assistant_model": draft, "candidate_generator": SpecDecPP} if draft else {}
    start = time.perf_counter()
    with collect_stats() as stats, checked(target, draft, clock) if draft else nullcontext() as caches:
        output = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
            do_sample=False, streamer=clock, return_dict_in_generate=True, **ours,
        )  # fmt: skip
    kept = output.past_key_values.get_seq_length()
    assert ids.shape[1] + new_tokens - 1 <= kept <= ids.shape[1] + new_tokens
    found = {
        "prompt_seconds": clock.times[1][0] - start,
        "token_seconds": clock.seconds_per_token(),
        "cache_mb": bytes_of(output.past_key_values) / 1e6,
        "output": output.sequences[0, ids.shape[1] :].tolist(),
    }
    if draft:
        found["tokens_per_target_pass"] = stats.tokens / stats.rounds
        found["cache_mb"] = sum(map(bytes_of, caches.values())) / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--prompts", required=True, help="JSONL file or Hub dataset with answers")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 2048, 4096, 8000])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    target, draft = load_pair(args.target, args.draft, args.dtype, head=args.head)
    tokenizer, rows = load_tokenizer(args.target), load_rows(args.prompts)
    ways = {"plain": None, "specdec++": draft}
    table = []
    for length in args.lengths:
        ids = long_prompt(tokenizer, rows, length).to(target.device)
        runs = {name: [] for name in ways}
        for _ in range(args.repeats):
            for name, own in ways.items():
                runs[name].append(generate(target, ids, args.new_tokens, own))
        row = {"prompt_tokens": ids.shape[1], "equal": runs["plain"][0]["output"] == runs["specdec++"][0]["output"]}
        for name, found in runs.items():
            row[name] = {key: median(f[key] for f in found) for key in found[0] if key != "output"}
            row[name]["token_seconds_range"] = [pick(f["token_seconds"] for f in found) for pick in (min, max)]
        row["speedup"] = median(a["token_seconds"] / b["token_seconds"] for a, b in zip(*runs.values(), strict=True))
        table.append(row)
        times = ", ".join(f"{name} {1000 * row[name]['token_seconds']:.1f} ms" for name in ways)
        print(f"{ids.shape[1]} tokens: {times} a token, {row['speedup']:.2f}x, equal: {row['equal']}", flush=True)
    result = {"dtype": args.dtype, "new_tokens": args.new_tokens, "repeats": args.repeats, "lengths": table}
    write_result(args.output, result, target=target.config, draft=draft.config)


if __name__ == "__main__":
    main()
