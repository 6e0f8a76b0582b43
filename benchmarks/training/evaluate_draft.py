# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""How often drafts agree with the target by position, on the target's own responses; drafts of every kind.

    python benchmarks/training/evaluate_draft.py --target TARGET --draft recipes/smollm2-135m/draft --draft OTHER \\
        --responses alpaca-dev=responses.jsonl --output benchmarks/training/results/DATE-drafts.json

Responses are JSONL as `recipes/smollm2-135m/sample_responses.py` makes them, of prompts that no draft was trained on.
A draft begins at every token of a response but the first, which a draft that reads its target cannot say. `match`: the
share of positions where draft and target have the same likeliest token, of those where the draft would have said the
tokens of the text since it began; `overlap`: the mean of `sum_v min(p_v, q_v)` behind the text's own tokens;
`first_four`: how often the target's likeliest token is among the draft's first four, at the first position.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import PreTrainedModel

from hf_specdecpp.decoding.taps import read_whole
from hf_specdecpp.drafting.informed.config import layers_read
from hf_specdecpp.evidence.conditions import public, write_result
from hf_specdecpp.evidence.trace import branches_of
from hf_specdecpp.hub.loading import DTYPES, load_draft, load_model, load_tokenizer
from hf_specdecpp.training.informed_draft import Text, named_texts

POSITIONS = 5


@torch.inference_mode()
def judge(target: PreTrainedModel, draft: PreTrainedModel, texts: list[Text]) -> dict:
    counts, first_four = torch.zeros(4, POSITIONS, dtype=torch.double), 0
    vocab_size = min(target.config.get_text_config().vocab_size, draft.config.vocab_size)
    layers = layers_read(draft.config, target.config)
    for text in texts:
        ids = torch.tensor([text.ids], device=target.device)
        begins = torch.arange(text.response + 1, len(text.ids), device=target.device)
        if not len(begins):
            continue
        if layers:
            logits, taps = read_whole(target, ids, layers)
        else:
            logits, taps = target(ids).logits, None
        p = logits[0, :, :vocab_size].float().softmax(-1)
        best = p.argmax(-1)
        branches = branches_of(draft, ids[:, :-1], vocab_size, None if taps is None else taps[:, :-1])
        going = torch.ones_like(begins, dtype=torch.bool)
        said, _ = branches.begin(begins)
        positions = min(POSITIONS, branches.reach)
        for position in range(positions):
            at = begins + position
            inside = at < len(text.ids)
            at = at.clamp(max=len(text.ids) - 1)
            own, overlap = said.argmax(-1), torch.minimum(said.softmax(-1), p[at - 1]).sum(-1)
            judged = inside & going
            right = judged & (own == best[at - 1])
            counts[:, position] += torch.stack([right.sum(), judged.sum(), overlap[inside].sum(), inside.sum()]).cpu()
            if not position:
                first_four += (said.topk(4, -1).indices == best[at - 1, None]).any(-1).sum().item()
            going = judged & (own == ids[0, at])
            if position + 1 < positions:
                said, _ = branches.read(ids[0, at])
    right, judged, overlap, count = counts
    return {
        "match": (right / judged.clamp(min=1)).tolist(), "overlap": (overlap / count.clamp(min=1)).tolist(),
        "first_four": first_four / max(count[0].item(), 1), "tokens": int(count[0]), "responses": len(texts),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", action="append", required=True, dest="drafts")
    parser.add_argument("--responses", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--limit", type=int, default=48, help="responses of each file")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer, target = load_tokenizer(args.target), load_model(args.target, args.dtype)
    sets = {name: texts[: args.limit] for name, texts in named_texts(args.responses, tokenizer).items()}
    found: dict[str, dict] = {name: {} for name in sets}
    for name in args.drafts:
        draft = load_draft(name, target, dtype=DTYPES[args.dtype])
        for of_set, texts in sets.items():
            found[of_set][public(name)] = judge(target, draft, texts)
            print(of_set, public(name), found[of_set][public(name)], flush=True)
    write_result(args.output, {"dtype": args.dtype, "sets": found}, target=target.config)


if __name__ == "__main__":
    main()
