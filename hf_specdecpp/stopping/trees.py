"""Trees of a fixed form, the field's own, as rules. They know no models and no costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from ..costs.profile import CostProfile
from .forest import Forest
from .plan import Plan
from .round import Scope
from .rule import ONE_TEXT, StoppingRule

if TYPE_CHECKING:
    from ..drafting.draft import Node


class Eagle2(StoppingRule):
    """EAGLE-2 (arXiv 2406.16858): the `branches` likeliest nodes of a level grow, the `nodes` likeliest are verified.

    Likely by the draft's own probability of the path. As a chain it drafts `depth` tokens.
    """

    needs = frozenset({"probability"})
    reason = "depth"

    def __init__(self, branches: int = 4, nodes: int = 15, depth: int = 4):
        for name, value in (("branches", branches), ("nodes", nodes), ("depth", depth)):
            if value < 1:
                raise ValueError(f"{name} of the rule 'eagle-2' must be 1 or more, got {value}")
        self.branches, self.nodes, self.depth = branches, nodes, depth

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        branches = self.branches if scope.branches is None else min(self.branches, scope.branches)
        if branches == 1:
            return Plan(self.depth, reason=self.reason, cap_reason=self.reason)
        # Where a second is worth nothing, all that is drafted pays: the caps alone decide.
        return Forest(
            self.depth, "survival", (0.0,), factor=attrgetter("probability"), reason=self.reason,
            cap_reason=self.reason, branches=branches, chooses=True, costs=CostProfile(1.0, (1.0,)),
            ranked=lambda depth: (1.0,), max_nodes=min(self.nodes, scope.max_nodes), expanded=self.branches,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Comb(Plan):
    """A chain with alternatives beside its tokens, the more the less likely the token is."""

    edges: tuple[float, ...] = (0.3, 0.6, 0.8)
    counts: tuple[int, ...] = (7, 5, 3, 1)

    def expand(self, level: Sequence[Node]) -> Sequence[Node]:
        return [node for node in super().expand(level) if node.token.rank == 1]

    def take(self, nodes: Sequence[Sequence[Node]]) -> Sequence[Sequence[Node]]:
        found = []
        for own in nodes:
            chain = {id(node.parent): node.token.probability for node in own if node.token.rank == 1}
            counts = {
                parent: self.counts[sum(probability > edge for edge in self.edges)]
                for parent, probability in chain.items()
            }
            found.append([node for node in own if node.token.rank <= counts[id(node.parent)]])
        return found


class Cape(StoppingRule):
    """CaPE (arXiv 2402.02082): a chain of `length` tokens, each with up to six alternatives, fewer if likely."""

    needs = frozenset({"probability"})
    reason = "length"
    most: ClassVar[int] = 7

    def __init__(self, length: int = 4):
        if length < 1:
            raise ValueError(f"length of the rule 'cape' must be 1 or more, got {length}")
        self.length = length

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        branches = self.most if scope.branches is None else min(self.most, scope.branches)
        plan: dict[str, Any] = {"reason": self.reason, "cap_reason": self.reason, "branches": branches}
        return Comb(self.length, **plan, chooses=True) if branches > 1 else Plan(self.length, **plan)
