"""Trees by the rule of their worth: which nodes to draft behind, and which to verify. Knows no models.

A node pays if the tokens that it can be expected to add are worth its seconds (DySpec's greedy expansion,
arXiv 2410.11744, with measured costs). Nodes of one level of a text are alternatives, of which the target follows
one at most, so their survivals add up to the probability that the level is reached; over the texts of a batch they
add up to expected tokens, and all texts share the passes. With one text and one branch this is the rule for chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..costs.profile import CostProfile
from .plan import Plan

if TYPE_CHECKING:
    from ..drafting.draft import Node


@dataclass(frozen=True, eq=False)
class Forest(Plan):
    """The plan of a tree for each text of a batch.

    Attributes:
        value (`float`): tokens a second of the batch in the long run, what a second must earn.
        costs (`CostProfile`): of rounds of this batch.
        ranked: of a depth, the probabilities that the first, second, ... token drafted behind an accepted one is
            accepted, for looking ahead.
        horizon (`int`): levels looked ahead.
        max_nodes (`int`): the most nodes of a text that are verified.
        rows (`int`): texts.
        expanded (`int`): the most nodes of a level and text that are drafted behind.
        drafted (`float`), price (`float`): tokens of a text that a draft of the model can be expected to add, and what
            its seconds are worth in tokens.
        tries (`bool`): draft with the model in any case.
        block (`int`): levels that a pass of the model drafts; within it another level takes none.
    """

    value: float = 0.0
    costs: CostProfile | None = None
    ranked: Callable[[int], Sequence[float]] = lambda depth: ()
    horizon: int = 6
    max_nodes: int = 32
    rows: int = 1
    expanded: int = 4
    drafted: float = 0.0
    price: float = 0.0
    tries: bool = True
    block: int = 1

    def drafts_beside(self, nodes: Sequence[Sequence[Node]]) -> bool:
        """Whether the model drafts as well where these nodes of each text are proposed already.

        What it adds counts where none of them is right.
        """
        left = sum(max(1 - sum(n.survival for n in own if n.parent is None), 0.0) for own in nodes)
        return self.tries or left * self.drafted > self.rows * self.price

    def expand(self, level: Sequence[Node]) -> Sequence[Node]:
        texts: dict[int, list[Node]] = {}
        for node in level:
            before = 1.0 if node.parent is None else node.parent.survival
            node.survival = before * self.factor(node.token)
            texts.setdefault(node.row, []).append(node)
        depth = level[0].token.position
        if self.cap is not None and depth >= self.cap:
            return []
        likeliest = [sorted(nodes, key=lambda n: -n.survival)[: self.expanded] for nodes in texts.values()]
        best = [node for nodes in likeliest for node in nodes if node.survival > self._share or node is nodes[0]]
        return best if depth < self.floor or self._gain([n.survival for n in best], depth) > 0 else []

    def take(self, nodes: Sequence[Sequence[Node]]) -> Sequence[Sequence[Node]]:
        if self.branches == 1:
            nodes = [best_path(own) for own in nodes]
        # Survival never rises along a path, so the likeliest so many hold with each node its parents.
        likeliest = [sorted(own, key=lambda n: (-n.survival, n.token.position)) for own in nodes]
        most = min(max(map(len, likeliest)), self.max_nodes)
        plain, gained, best, count = self.costs.verification(1), 0.0, 0.0, 0
        for n in range(1, most + 1):
            gained += sum(own[n - 1].survival for own in likeliest if len(own) >= n)
            worth = gained - self.value * (self.costs.verification(n + 1) - plain)
            if worth > best:
                best, count = worth, n
        kept = [{id(node) for node in own[:count]} for own in likeliest]
        return [[node for node in depth_first(own) if id(node) in k] for own, k in zip(nodes, kept, strict=True)]

    @property
    def _share(self) -> float:
        """What another node of one text must earn to be verified, on the average."""
        rise = self.costs.verification(self.max_nodes + 1) - self.costs.verification(1)
        return self.value * rise / self.max_nodes / self.rows

    def _gain(self, survivals: list[float], depth: int) -> float:
        """The best expected gain, in tokens, of drafting some more levels behind nodes with these survivals."""
        best, gained, share = 0.0, 0.0, self._share
        for more in range(1, self.horizon + 1):
            if self.cap is not None and depth + more > self.cap:
                break
            acceptances = self.ranked(depth + more)[: self.branches]
            children = sorted((s * a for s in survivals for a in acceptances), reverse=True)
            gained += sum(child - share for child in children if child > share)
            passes = more if self.block == 1 else 0
            best = max(best, gained - (self.value * passes * self.costs.draft_seconds if passes else 0.0))
            survivals = children[: self.expanded * self.rows]
        return best


def depth_first(nodes: Sequence[Node]) -> list[Node]:
    """Parents before children, the likeliest child next to its parent, so that most accepted paths lie together."""
    children: dict[int | None, list[Node]] = {}
    for node in sorted(nodes, key=lambda n: n.survival):
        children.setdefault(None if node.parent is None else id(node.parent), []).append(node)
    found, waiting = [], children.get(None, [])
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += children.get(id(node), [])
    return found


def best_path(nodes: Sequence[Node]) -> list[Node]:
    """Of a text's nodes the path that can be expected to be accepted the farthest."""
    return max((node.path for node in nodes), key=lambda path: sum(n.survival for n in path), default=[])
