"""The verifier: how far a draft agrees with the target. One walk along the target's own choices serves all drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..drafting.draft import Draft, Node
from .law import Law
from .mode import no_mass

NOTHING = -1  # the token of a distribution without mass
Scores = Tensor | dict[int, Tensor]  # (vocab_size,) at places of a pass, at all of them if it is a tensor


def verified(draft: Draft, logits: Tensor, law: Law) -> tuple[list[list[int]], list[list[int]], Sequence[Scores]]:
    """How far a draft is accepted.

    On an accelerator the target chooses behind all nodes at once, and all that the host must know of a round comes to
    it in one transfer. On a CPU looking is free, and processors and noise for a whole tree cost as much as its pass:
    there the target chooses behind what was accepted alone.

    Args:
        logits (`torch.FloatTensor` of shape `(rows, 1 + most, vocab_size)`): of the target.

    Returns:
        Of each row the numbers of the accepted nodes; the new tokens, one more; and the processed logits that they
        were chosen by.

    Raises:
        ValueError: if a distribution has no mass.
    """
    if draft.q or not reads_at_once(logits.device):
        paths, tokens, scores = chosen_at_once(draft, logits, law)
    else:
        if draft.tokens is not None:
            name(draft, draft.tokens.tolist())
        found = [chosen_in_turn(draft, logits[number], law, number) for number in range(len(draft.nodes))]
        paths, tokens, scores = (list(column) for column in zip(*found, strict=True))
    if any(NOTHING in own for own in tokens):
        raise no_mass()
    return paths, tokens, scores


def reads_at_once(device: torch.device) -> bool:
    """Whether the host reads what is on `device` without waiting for it."""
    return device.type == "cpu"


def chosen_in_turn(draft: Draft, logits: Tensor, law: Law, number: int) -> tuple[list[int], list[int], Scores]:
    """`verified` of one row, (1 + most, vocab_size)."""
    row, nodes, parents = law.sequences.going[number], draft.nodes[number], draft.parents[number]
    path: list[int] = []
    tokens: list[int] = []
    scores: dict[int, Tensor] = {}
    at: int | None = -1

    def paths() -> list[list[int]]:
        return [[nodes[node].id for node in path]]

    while at is not None:
        processed = law.processed(logits[at + 1][None], [row], paths)
        chosen, p = law.ranked(processed, [row], [len(path)])
        tokens.append(NOTHING if p is not None and not p[0, chosen[0, 0]] > 0 else int(chosen))
        scores[at + 1] = processed[0]
        at = child(nodes, parents, at, tokens[-1])
        path += [] if at is None else [at]
    return path, tokens, scores


def chosen_at_once(
    draft: Draft, logits: Tensor, law: Law
) -> tuple[list[list[int]], list[list[int]], Sequence[Scores]]:
    """`verified` with one transfer to the host."""
    chosen, scores, p = choices(draft, logits, law)
    ids = [] if draft.tokens is None else [draft.tokens.to(chosen.device)]
    both = torch.cat((chosen, *ids), dim=-1).tolist()
    name(draft, [row[chosen.shape[1] :] for row in both])
    paths, tokens = [], []
    for number, (nodes, parents) in enumerate(zip(draft.nodes, draft.parents, strict=True)):
        if draft.q:
            path, rest = recursive_rejection(nodes, parents, draft.q, p[number])
            tokens.append([*(nodes[node].id for node in path), torch.multinomial(rest, 1).item()])
        else:
            path = walk(nodes, parents, both[number])
            tokens.append([both[number][node + 1] for node in [-1, *path]])
        paths.append(path)
    return paths, tokens, scores


def name(draft: Draft, ids: list[list[int]]) -> None:
    """Tells the nodes of a draft that was made on the device which tokens they are."""
    for nodes, own in zip(draft.nodes, ids, strict=True):
        for node, token in zip(nodes, own, strict=False):
            node.id = token


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
    path, at = [], child(nodes, parents, -1, chosen[0])
    while at is not None:
        path.append(at)
        at = child(nodes, parents, at, chosen[at + 1])
    return path


def child(nodes: list[Node], parents: list[int], at: int, token: int) -> int | None:
    """The number of the first node behind node `at` that is `token`."""
    return next((n for n, node in enumerate(nodes) if parents[n] == at and node.id == token), None)


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
