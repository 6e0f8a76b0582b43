"""Labels of a draft that reads the target's states, which depend on where the round began.

The first token of a response is never drafted, for beside the prompt there are no states yet; it has no label. Behind
accepted tokens such a draft reads its own states, so the state and the law that a token is drawn from differ
with its place in a round. Teacher-forced, a head would learn of first places alone. So rounds are gone through as
drafting does: each begins behind a rejection with the target's states, and goes on, unrolled, until the next. Drafts
from all positions are made side by side, and what rounds meet is kept.

A round of a draft of blocks ends with its block at the latest; the token that the target then adds was not drafted
and has no label either.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..decoding import Decoding, draw_beside
from ..decoding.taps import read_whole
from ..drafting.informed.config import layers_read
from ..evidence.trace import Blocks, Branches, branches_of
from .head_inputs import UNLABELLED
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
    """
    generator = torch.Generator(draft.device).manual_seed(seed)
    layers = layers_read(draft.config, target.config)
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        known, begin = torch.tensor([prompt + response]), len(prompt) + 1  # of the first token that can be drafted
        nothing = {"drawn": -1, "acceptance": UNLABELLED, "probability": 0.0, "overlap": 0.0, "entropy": 0.0}
        nothing |= {reads: torch.zeros(draft.config.hidden_size, dtype=torch.float16) for reads in states}
        kept = [nothing]
        if len(response) > 1:
            logits, taps = read_whole(target, known, layers)
            vocab_size = min(logits.shape[-1], draft.config.vocab_size)
            p = decoding.probabilities(logits[0, begin - 1 : -1, :vocab_size].to(draft.device).float())
            branches = branches_of(draft, known[:, :-1].to(draft.device), vocab_size, taps[:, :-1])
            text = known[0, begin:].to(draft.device)
            found = drafted(branches, p, text, begin, decoding, states, generator)
            depths = rounds([[fact["drawn"] for fact in level] for level in found], text.tolist())
            kept += [nothing if depth is None else found[depth][place] for place, depth in enumerate(depths)]
        row = {"prompt_ids": prompt, "response_ids": response, "entropy": [fact["entropy"] for fact in kept]}
        for fact in ("drawn", "acceptance", "probability", "overlap"):
            row[f"{name}_{fact}"] = [each[fact] for each in kept]
        for reads in states:
            row[f"{name}_{reads}"] = torch.cat([each[reads] for each in kept]).numpy()
        rows.append(row)
    return rows


def drafted(
    branches: Branches | Blocks,
    p: Tensor,
    text: Tensor,
    begin: int,
    decoding: Decoding,
    states: list[str],
    generator: torch.Generator,
) -> list[list[dict]]:
    """Of each depth and place of `text`, which begins at token `begin`, what the draft that began so much before says.

    A draft goes on as long as its tokens are the target's and it can; beyond that its facts are empty.
    """
    logits, before = branches.begin(torch.arange(len(text), device=text.device) + begin)
    alive, found = torch.arange(len(text), device=text.device), []  # by where they began
    while len(alive):
        depth, raw = len(found), logits[alive].softmax(-1)
        at = alive + depth
        q, x = decoding.probabilities(logits[alive]), text[at]
        drawn = draw_beside(q, p[at], x, generator, decoding.coupling)
        facts = {
            "drawn": drawn, "acceptance": acceptance(p[at], q, drawn, decoding.coupling), "overlap": overlap(p[at], q),
            "probability": (q if decoding.do_sample else raw).gather(-1, drawn[:, None]).squeeze(-1),
            "entropy": torch.special.entr(raw).sum(-1),
        }  # fmt: skip
        level = [{"drawn": None} for _ in text]
        for place, *values in zip(at.tolist(), *(fact.tolist() for fact in facts.values()), strict=True):
            level[place] = dict(zip(facts, values, strict=True))
        if "after" in states:
            own = torch.zeros_like(text)
            own[alive] = drawn
            after = branches.beside(own)
        for began in alive.tolist():
            level[began + depth] |= {"before": before[began]} | ({"after": after[began]} if "after" in states else {})
        found.append(level)
        alive = alive[(drawn == x) & (at < len(text) - 1) & (len(found) < branches.reach)]
        if len(alive):
            logits, before = branches.read(torch.cat((text[depth:], text.new_zeros(depth))))
    return found


def rounds(drawn: list[list[int | None]], text: list[int]) -> list[int | None]:
    """The depth at which rounds that draft until a rejection come to each place of `text`; `None` where a round had
    drafted all that it can before.

    Args:
        drawn: by depth and place.
    """
    found, depth = [], 0
    for place, token in enumerate(text):
        is_drafted = depth < len(drawn)
        found.append(depth if is_drafted else None)
        depth = depth + 1 if is_drafted and drawn[depth][place] == token else 0
    return found
