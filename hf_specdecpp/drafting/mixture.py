"""Several sources of proposals in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from ..decoding.sequences import Sequences
from ..stopping import Plan
from ..stopping.forest import Forest
from .draft import Draft, Node
from .model import ModelDrafter, taken
from .recycling import Recycling

NOTHING = Plan(0)


class Source(Protocol):
    """Proposes without a model, at next to no cost."""

    name: str

    def propose(self, number: int, limit: int) -> list[Node]:
        """A tree behind the text of a row of those that go on, parents before children, paths of at most `limit`."""


class Mixture:
    """Drafts from all sources that are worth their time.

    Equal tokens in equal places are one node. The model drafts only where it can be expected to add more than its
    seconds would earn otherwise, given what the other sources propose; then the plan takes the likeliest nodes of all.

    Args:
        sources: those that cost next to nothing, the more trusted first.
        model (`ModelDrafter`, *optional*): the draft.
    """

    def __init__(self, sequences: Sequences, sources: Sequence[Source], model: ModelDrafter | None):
        self.sequences, self.sources, self.model = sequences, sources, model

    @property
    def unread(self) -> int:
        return 0 if self.model is None else self.model.unread

    def draft(self, plans: list[Plan]) -> Draft:
        rooms = self.sequences.rooms()
        proposed = [
            self._proposed(number, plan, room) for number, (plan, room) in enumerate(zip(plans, rooms, strict=True))
        ]
        wanted = {plan: self._wants_model(plan, plans, proposed) for plan in dict.fromkeys(plans)}
        if self.model is not None and any(wanted.values()):
            draft = self.model.grow([plan if wanted[plan] else NOTHING for plan in plans])
        else:
            draft = Draft([[] for _ in plans], ["no_room" if room < 1 else "no_draft" for room in rooms])
        for number, (plan, nodes) in enumerate(zip(plans, proposed, strict=True)):
            if nodes:
                merge(draft.nodes[number], nodes)
                if draft.stop_reasons[number] == "no_draft":
                    draft.stop_reasons[number] = nodes[0].token.source
                if isinstance(plan, Forest):
                    survive(draft.nodes[number], plan)
        taken(draft, plans)
        return draft

    def commit(self, paths: list[list[Node]], tokens: Tensor, logits: Tensor) -> None:
        if self.model is not None:
            self.model.commit(paths, tokens, logits)
        for source in self.sources:
            if isinstance(source, Recycling):
                source.learn(tokens.flatten(), logits.flatten(0, 1))

    def leave(self, going: list[int]) -> None:
        if self.model is not None:
            self.model.leave(going)

    def _proposed(self, number: int, plan: Plan, room: int) -> list[Node]:
        limit = room if plan.cap is None else min(plan.cap, room)
        if limit < 1 or not (isinstance(plan, Forest) or self.model is None):
            return []
        found: list[Node] = []
        for source in self.sources:
            merge(found, source.propose(number, limit))
        if isinstance(plan, Forest):
            survive(found, plan)
            return found
        return first_chain(found, plan)

    def _wants_model(self, plan: Plan, plans: list[Plan], proposed: list[list[Node]]) -> bool:
        if not isinstance(plan, Forest):
            return True
        own = [nodes for other, nodes in zip(plans, proposed, strict=True) if other is plan]
        return plan.drafts_beside(own)


def merge(nodes: list[Node], more: Sequence[Node]) -> None:
    """Adds to `nodes` those of `more` that are none of them yet; both have parents before children."""
    known = {(id(node.parent), node.id): node for node in nodes}
    merged: dict[int, Node] = {}
    for node in more:
        parent = None if node.parent is None else merged[id(node.parent)]
        same = known.get((id(parent), node.id))
        if same is None:
            node.parent, same = parent, node
            known[id(parent), node.id] = node
            nodes.append(node)
        elif same.token.source == "model" and node.token.source == "lookup":
            same.token = replace(same.token, evidence=node.token.evidence)
        merged[id(node)] = same


def survive(nodes: Sequence[Node], plan: Plan) -> None:
    """Gives every node its probability that it and all before it are accepted, as the plan's rule estimates it."""
    for node in nodes:
        node.survival = (1.0 if node.parent is None else node.parent.survival) * plan.factor(node.token)


def first_chain(nodes: Sequence[Node], plan: Plan) -> list[Node]:
    """The first proposal as a chain, as far as the plan of a rule that knows chains alone goes on."""
    chain: list[Node] = []
    for node in nodes:
        if node.parent is (chain[-1] if chain else None) and (not chain or plan.goes_on([n.token for n in chain])):
            chain.append(node)
    return chain
