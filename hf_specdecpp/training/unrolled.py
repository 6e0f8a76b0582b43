"""Labels of a draft that reads the target's states, which depend on where the round began.

Behind accepted tokens such a draft reads its own states, so the state and the law that a token is drawn from differ
with its place in a round. Teacher-forced, a head would learn of first places alone. So rounds are gone through as
drafting does: each begins behind a rejection with the target's states, and goes on, unrolled, until the next. Drafts
from all positions are made side by side, and what rounds meet is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..decoding import Decoding, draw_beside
from ..decoding.taps import read_whole
from ..drafting.informed.config import layers_read
from ..evidence.trace import Branches, check_prompt
from .labels import acceptance, overlap


@torch.inference_mode()
def label_unrolled(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: list[list[int]],
    responses: list[list[int]],
    name: str,
    decoding: Decoding,
    states: list[str],
    seed: int,
) -> list[dict]:
    """Rows for the head, see `label_responses`, with the hidden states that training needs.

    Args:
        name (`str`), decoding (`Decoding`): the mode that is labelled.
        states (`list[str]`): of `"before"` and `"after"`.

    Raises:
        ValueError: for a prompt of one token.
    """
    generator = torch.Generator(draft.device).manual_seed(seed)
    layers = layers_read(draft.config, target.config)
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        check_prompt(prompt)
        known, first = torch.tensor([prompt + response]), len(prompt)
        logits, taps = read_whole(target, known, layers)
        vocab_size = min(logits.shape[-1], draft.config.vocab_size)
        p = decoding.probabilities(logits[0, first - 1 : -1, :vocab_size].to(draft.device).float())
        branches = Branches(draft, known[:, :-1].to(draft.device), vocab_size, taps[:, :-1])
        found = drafted(branches, p, torch.tensor(response, device=draft.device), first, decoding, states, generator)
        kept = [
            found[depth][place] for place, depth in rounds([[fact["drawn"] for fact in d] for d in found], response)
        ]
        row = {"prompt_ids": prompt, "response_ids": response, "entropy": [fact["entropy"] for fact in kept]}
        for fact in ("drawn", "acceptance", "probability", "overlap"):
            row[f"{name}_{fact}"] = [each[fact] for each in kept]
        for reads in states:
            row[f"{name}_{reads}"] = torch.cat([each[reads] for each in kept]).numpy()
        rows.append(row)
    return rows


def drafted(
    branches: Branches,
    p: Tensor,
    response: Tensor,
    first: int,
    decoding: Decoding,
    states: list[str],
    generator: torch.Generator,
) -> list[list[dict]]:
    """Of each depth and place of `response` what is drafted there by the draft that began `depth` tokens before.

    A draft goes on as long as its tokens are the target's; beyond that its facts are empty.
    """
    logits, before = branches.begin(torch.arange(len(response), device=response.device) + first)
    alive, found = torch.arange(len(response), device=response.device), []  # by where they began
    while len(alive):
        depth, raw = len(found), logits[alive].softmax(-1)
        at = alive + depth
        q, x = decoding.probabilities(logits[alive]), response[at]
        drawn = draw_beside(q, p[at], x, generator, decoding.coupling)
        facts = {
            "drawn": drawn, "acceptance": acceptance(p[at], q, drawn, decoding.coupling), "overlap": overlap(p[at], q),
            "probability": (q if decoding.do_sample else raw).gather(-1, drawn[:, None]).squeeze(-1),
            "entropy": torch.special.entr(raw).sum(-1),
        }  # fmt: skip
        level = [{"drawn": None} for _ in response]
        for place, *values in zip(at.tolist(), *(fact.tolist() for fact in facts.values()), strict=True):
            level[place] = dict(zip(facts, values, strict=True))
        if "after" in states:
            own = torch.zeros_like(response)
            own[alive] = drawn
            after = branches.beside(own)
        for began in alive.tolist():
            level[began + depth] |= {"before": before[began]} | ({"after": after[began]} if "after" in states else {})
        found.append(level)
        alive = alive[(drawn == x) & (at < len(response) - 1)]
        if len(alive):
            logits, before = branches.read(
                response[(torch.arange(len(response)) + depth).clamp(max=len(response) - 1)]
            )
    return found


def rounds(drawn: list[list[int | None]], response: list[int]) -> list[tuple[int, int]]:
    """Each place of `response` with the depth at which rounds that draft until a rejection come to it.

    Args:
        drawn: by depth and place.
    """
    found, depth = [], 0
    for place, token in enumerate(response):
        found.append((place, depth))
        depth = depth + 1 if drawn[depth][place] == token else 0
    return found
