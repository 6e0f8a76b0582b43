# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Labels per second, by the authors' procedure and by ours, on the same prompts in turn.

    python benchmarks/training/label_speed.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --prompts prompts.jsonl --output benchmarks/training/results/label-speed-greedy.json

The authors' procedure has five passes over the data, each over one sequence at a time (`data/gen_data.sh` of
Kaffaljidhmah2/SpecDec_pp at 844fae5): 1. the target generates the response (`gen_dataset.py`); 2. the draft reads it
and draws a token at every position (`gen_assistant.py`); 3. the draft reads it again for the probabilities of these
tokens, 4. the target likewise (`gen_log_p.py`); 5. acceptance is `min(1, p / q)` (`gen_acceptance.py`). As there,
logits are of prompt and response, distributions unwarped and in the models' dtype. Left out, in its favour: the JSON
files between the passes, loading a model for each, and mixing, which they leave to training.

Ours is `label_prompts`: batched responses, then one pass of each model, and the labels on the disk. A label is an
acceptance at one position of a response. The prompts are a seeded choice, the shortest first, so that a chunk is what
`specdecpp label` makes a batch of. Two prompts go before, as a warm-up.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from datasets import Dataset, disable_progress_bars
from torch import Tensor
from transformers import PreTrainedModel

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.hub.data import fingerprint, load_rows, tokenized_prompts
from hf_specdecpp.hub.loading import load_model, load_tokenizer
from hf_specdecpp.training.label_folder import LabelsCard, read_labels
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.pipeline import generator, label_prompts


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


@torch.inference_mode()
def authors_labels(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Dataset, decoding: Decoding, max_new_tokens: int
) -> tuple[list[dict], dict[str, float]]:
    """Rows with the authors' columns, and the seconds of each pass."""
    seconds, rows = {}, []

    def logits(model: PreTrainedModel, row: dict) -> Tensor:
        return model(torch.tensor([row["prefix"] + row["tokens"]], device=model.device)).logits[0]

    def answer(row: dict) -> slice:
        return slice(len(row["prefix"]) - 1, -1)

    with timed(seconds, "generation"):
        for prompt in prompts["prompt_ids"]:
            ids = torch.tensor([prompt], device=target.device)
            settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new_tokens}
            output = target.generate(ids, **settings, **decoding.generate_kwargs())[0].tolist()
            rows.append({"prefix": prompt, "tokens": output[len(prompt) :]})
    with timed(seconds, "drawing"):
        for row in rows:
            found = logits(draft, row)
            drawn = found.softmax(-1).multinomial(1).squeeze(-1) if decoding.do_sample else found.argmax(-1)
            row["draft"] = drawn[answer(row)].tolist()
    for name, model in (("draft", draft), ("target", target)):
        with timed(seconds, f"{name}'s probabilities"):
            for row in rows:
                index = torch.tensor(row["draft"], device=model.device)[:, None]
                log_probabilities = logits(model, row).log_softmax(-1)[answer(row)]
                row[f"log_p_{name}"] = log_probabilities.gather(-1, index)[:, 0].tolist()
    with timed(seconds, "acceptance"):
        for row in rows:
            log_p, log_q = torch.tensor(row["log_p_target"]), torch.tensor(row["log_p_draft"])
            row["p_acc"] = (log_p - log_q).clamp(max=0).exp().tolist()
    return rows, seconds


def our_labels(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Dataset, decoding: Decoding, max_new_tokens: int
) -> tuple[list[dict], dict[str, float]]:
    """Rows of `label_prompts`, and the seconds of generation and scoring."""
    card = LabelsCard.of(
        target, draft, decoding, {"own": decoding}, Rows(), states=[], max_new_tokens=max_new_tokens,
        batch_size=len(prompts), seed=0, prompts=len(prompts), prompts_sha256=fingerprint(prompts),
    )  # fmt: skip
    seconds, own = {}, generator(target, card)

    def respond(prompts: list[list[int]], seed: int) -> list[list[int]]:
        with timed(seconds, "generation"):
            return own(prompts, seed)

    with tempfile.TemporaryDirectory() as folder:
        with timed(seconds, "scoring"):
            label_prompts(target, draft, prompts, Path(folder), card, respond)
        rows = read_labels(Path(folder)).to_list()
    seconds["scoring"] -= seconds["generation"]
    return rows, seconds


def compare(target: PreTrainedModel, draft: PreTrainedModel, prompts: Dataset, decoding: Decoding, *settings) -> dict:
    """Both procedures on `prompts`, one after the other."""
    found = {"prompts": len(prompts)}
    theirs, their_seconds = authors_labels(target, draft, prompts, decoding, *settings)
    ours, our_seconds = our_labels(target, draft, prompts, decoding, *settings)
    for name, labels, seconds in (
        ("authors", [row["p_acc"] for row in theirs], their_seconds),
        ("ours", [row["own_acceptance"] for row in ours], our_seconds),
    ):
        count = sum(map(len, labels))
        found[name] = {"labels": count, "labels_per_second": count / sum(seconds.values()), "seconds": seconds}
    found["ratio"] = found["ours"]["labels_per_second"] / found["authors"]["labels_per_second"]
    if not decoding.do_sample:  # in bfloat16 a near-tie can flip with the shape of the batch
        equal = [(a, b) for a, b in zip(theirs, ours, strict=True) if a["tokens"] == b["response_ids"]]
        same = [x == y for a, b in equal for x, y in zip(a["draft"], b["own_drawn"], strict=True)]
        found |= {"equal_responses": len(equal), "their_tokens": len(same), "equal_drafted_tokens": sum(same)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", required=True, help="JSONL file or Hub dataset; responses in it are not used")
    parser.add_argument("--chunks", type=int, default=5)
    parser.add_argument("--chunk-size", type=int, default=64, help="prompts, which are our batch")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sample", action="store_true", help="temperature 1, top-k 50, instead of greedy decoding")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    disable_progress_bars()
    source = load_rows(args.prompts).shuffle(seed=0).take(args.chunks * args.chunk_size)
    source = source.remove_columns([name for name in source.column_names if name == "response_ids"])
    prompts = tokenized_prompts(load_tokenizer(args.target), source)
    models = [load_model(name, args.dtype) for name in (args.target, args.draft)]
    settings = Decoding(args.sample), args.max_new_tokens
    torch.manual_seed(0)
    compare(*models, prompts.take(2), *settings)
    chunks = []
    for first in range(0, len(prompts), args.chunk_size):
        chunks.append(compare(*models, prompts.skip(first).take(args.chunk_size), *settings))
        print(f"{len(prompts)} prompts, {json.dumps(chunks[-1])}", flush=True)
    ratios = [chunk["ratio"] for chunk in chunks]
    names = "authors", "ours"
    result = {
        "dtype": args.dtype,
        "decoding": asdict(settings[0]),
        "max_new_tokens": args.max_new_tokens,
        "labels_per_second": {name: median(chunk[name]["labels_per_second"] for chunk in chunks) for name in names},
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "seconds": {
            name: {kind: sum(chunk[name]["seconds"][kind] for chunk in chunks) for kind in chunks[0][name]["seconds"]}
            for name in names
        },
        "chunks": chunks,
    }
    write_result(args.output, result, target=models[0].config, draft=models[1].config)
    for name in names:
        seconds = result["seconds"][name]
        shares = ", ".join(f"{kind} {value / sum(seconds.values()):.0%}" for kind, value in seconds.items())
        print(f"{name:<8}{result['labels_per_second'][name]:.1f} labels/s, of the time: {shares}")
    print(
        f"ours is {median(ratios):.2f} times as fast, {min(ratios):.2f} to {max(ratios):.2f} in {len(chunks)} chunks"
    )


if __name__ == "__main__":
    main()
