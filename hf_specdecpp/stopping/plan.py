"""A rule's decision for one round, as numbers. Knows no models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .round import DraftedToken

if TYPE_CHECKING:
    from ..drafting.draft import Node

Statistic = Literal["probability", "entropy", "survival"]


@dataclass(frozen=True, eq=False)
class Plan:
    """How far a round drafts: while a statistic of what was drafted keeps its level.

    Attributes:
        cap (`int`, *optional*): the most tokens on a path; 0 is plain decoding, `None` no bound.
        statistic (`str`, *optional*): `"probability"` or `"entropy"` of the newest token, or `"survival"`, the product
            of `factor` over the path. `None` goes on to the cap.
        levels (`tuple[float, ...]`): after `k` tokens drafting goes on while the statistic is at least the `k`-th
            level (for the entropy: at most), beyond the last that one.
        strict (`bool`): while it is above the level, not at it.
        factor: of a drafted token, its probability of acceptance; `None` leaves it out.
        floor (`int`): below so many tokens the statistic is not asked.
        parts (`tuple[Plan, ...]`), every (`bool`): goes on while any part does if `every`, else while all do.
        reason (`str`), cap_reason (`str`): why a round ended that the statistic or the cap ended, for `collect_stats`.
        branches (`int`): children drafted behind each node.
        chooses (`bool`): `take` may leave nodes out.
    """

    cap: int | None = None
    statistic: Statistic | None = None
    levels: tuple[float, ...] = ()
    strict: bool = False
    factor: Callable[[DraftedToken], float | None] | None = None
    floor: int = 0
    parts: tuple[Plan, ...] = ()
    every: bool = False
    reason: str = "rule"
    cap_reason: str = "max_draft_length"
    branches: int = 1
    chooses: bool = False

    @property
    def is_blind(self) -> bool:
        """Whether it looks at nothing that was drafted: chains up to the cap."""
        return self.cap is not None and self.statistic is None and not self.parts and self.branches == 1

    def goes_on(self, drafted: Sequence[DraftedToken]) -> bool:
        """Whether another token is drawn behind `drafted`, which are submitted either way."""
        if self.cap is not None and len(drafted) >= self.cap:
            return False
        if len(drafted) < self.floor:
            return True
        if self.every:  # what has stopped stays stopped
            ended = (any(not p.goes_on(drafted[:k]) for k in range(1, len(drafted) + 1)) for p in self.parts)
            return not all(ended)
        return self._holds(drafted) and all(part.goes_on(drafted) for part in self.parts)

    def _holds(self, drafted: Sequence[DraftedToken]) -> bool:
        if self.statistic is None:
            return True
        level = self.levels[min(len(drafted), len(self.levels)) - 1]
        if self.statistic == "survival":
            factors = map(self.factor, drafted)
            value = math.prod(factor for factor in factors if factor is not None)
        elif self.statistic == "entropy":
            value, level = -drafted[-1].entropy, -level
        else:
            value = drafted[-1].probability
        return value > level if self.strict else value >= level

    def expand(self, level: Sequence[Node]) -> Sequence[Node]:
        """Those of the newest nodes, of any rows, behind which more is drafted."""
        return [node for node in level if self.goes_on([before.token for before in node.path])]

    def take(self, nodes: Sequence[Sequence[Node]]) -> Sequence[Sequence[Node]]:
        """Of the nodes of each row those that are worth verifying, parents before children."""
        return nodes
