"""The verifier: how far a draft agrees with the target. One walk along the target's own choices serves all drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafting.draft import Draft, Node
from .law import Law

NOTHING = -1  # the token of a distribution without mass


def choices(draft: Draft, logits: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the target would say behind the newest token of each text and behind each drafted token.

    Args:
        logits (`torch.FloatTensor` of shape `(rows, 1 + most, vocab_size)`): of the target.

    Returns:
        `torch.LongTensor` of shape `(rows, 1 + most)`, `NOTHING` where nothing can be chosen; the processed logits;
        and, when sampling, the probabilities, of the shape of `logits`.
    """
    rows, width, vocab_size = logits.shape
    going = law.sequences.going
    of_rows = [going[row] for row in range(rows) for _ in range(width)]

    def depths() -> list[int]:
        found = []
        for nodes in draft.nodes:
            own = [0, *(len(node.path) for node in nodes)]
            found += own + [0] * (width - len(own))
        return found

    def paths() -> list[list[int]]:
        found = []
        for nodes in draft.nodes:
            own = [[], *([n.id for n in node.path] for node in nodes)]
            found += own + [[]] * (width - len(own))
        return found

    scores = law.processed(logits.reshape(-1, vocab_size), of_rows, paths)
    ahead = depths() if law.noise is not None else []
    chosen, p = law.ranked(scores, of_rows, ahead)
    if p is not None:  # a choice among nothing, or NaN, is none
        chosen = torch.where(p.gather(-1, chosen) > 0, chosen, NOTHING)
    shape = rows, width, vocab_size
    return chosen.view(rows, width), scores.view(shape), None if p is None else p.view(shape)


def walk(nodes: list[Node], parents: list[int], chosen: list[int]) -> list[int]:
    """The numbers of the nodes that are the target's own choices, from the text on.

    Args:
        chosen (`list[int]`): what the target says behind the text, and behind each node.
    """
    children: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        children.setdefault(parent, []).append(number)
    path, at = [], -1
    while True:
        at = next((n for n in children.get(at, ()) if nodes[n].id == chosen[at + 1]), None)
        if at is None:
            return path
        path.append(at)


def recursive_rejection(
    nodes: list[Node], parents: list[int], q: dict[int, Tensor], p: Tensor
) -> tuple[list[int], Tensor]:
    """Speculative sampling of a tree whose siblings were drawn without replacement (RSD, arXiv 2402.14160).

    A chain's is that of arXiv 2211.17192. Behind each accepted node its children are tried in the order in which they
    were drawn: `x` is accepted with probability `min(1, r(x) / q(x))`, where `r` begins as the target's law; a
    rejection leaves `r <- norm (r - q)+`, and `q` without `x`. A token that was not drawn but proposed for certain, as
    lookups do, has a `q` of its own, all of it on `x`. Whatever is accepted, the output has the law of `p`.

    Args:
        q: see `Draft.q`.
        p (`torch.FloatTensor` of shape `(1 + nodes, vocab_size)`): the target's, behind the text and each node.

    Returns:
        The numbers of the accepted nodes, and the distribution of the token behind the last of them, `(vocab_size,)`.
    """
    path, at = [], -1
    while True:
        r, accepted, left = p[at + 1], None, None
        for number, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            if parent != at:
                continue
            if left is None and id(node) in q:
                left = q[id(node)].to(r.device)
            # Where `q` has fewer tokens than the node has children, what comes after them is no draw either.
            is_drawn = id(node) in q and bool(left[node.id] > 0)
            certain = torch.zeros_like(r)
            certain[node.id] = 1
            drawn_from = left if is_drawn else certain
            if torch.rand((), device=r.device) * drawn_from[node.id] < r[node.id]:
                accepted = number
                break
            r = normalised(r - drawn_from, r)
            if is_drawn:
                left = normalised(left - left * certain, torch.zeros_like(left))
        if accepted is None:
            return path, r
        path.append(accepted)
        at = accepted


def normalised(values: Tensor, otherwise: Tensor) -> Tensor:
    """What of `values` is positive, as a distribution; `otherwise` where rounding left nothing, (n,) each."""
    positive = values.clamp(min=0)
    total = positive.sum()
    return torch.where(total > 0, positive / total, otherwise)
