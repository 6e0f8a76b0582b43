"""What a round costs: seconds for a drafted token, and for a target pass over n tokens. Knows no models."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..stopping.round import Round


@dataclass(frozen=True)
class CostProfile:
    """Measured costs of a pair on a machine.

    Args:
        draft_seconds (`float`): one forward pass of the draft over one token, with the drawing.
        verify_seconds (`tuple[float, ...]`): the target's pass over 1, 2, ... tokens; the first is a step of plain
            decoding. Beyond the last, the line through the last two goes on.

    Raises:
        ValueError: unless all costs are positive.
    """

    draft_seconds: float
    verify_seconds: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "verify_seconds", tuple(self.verify_seconds))
        if not self.verify_seconds or min(self.draft_seconds, *self.verify_seconds) <= 0:
            raise ValueError(
                "a cost profile needs a positive draft_seconds and at least one positive verify_seconds, got "
                f"{self.draft_seconds} and {self.verify_seconds}"
            )

    def verification(self, tokens: int) -> float:
        """Seconds of a target pass over `tokens` tokens, at least 1."""
        known = self.verify_seconds
        if tokens <= len(known):
            return known[tokens - 1]
        slope = max(known[-1] - known[-2], 0.0) if len(known) > 1 else 0.0
        return known[-1] + (tokens - len(known)) * slope

    def round(self, drafted: int, width: int | None = None) -> float:
        """Seconds of a round of so many passes of the draft, 0 being plain decoding.

        Args:
            width (`int`, *optional*): tokens that the target reads; left out, one more than passes, as for a chain.
        """
        drafting = drafted * self.draft_seconds if drafted else 0.0  # without a draft a pass of it has no end
        return drafting + self.verification(drafted + 1 if width is None else width)


class RunningCosts:
    """Learns a `CostProfile` from the rounds of a run, by running medians, which one slow round does not move.

    Batches of different sizes cost differently, so each size has its own.

    Args:
        window (`int`): rounds remembered for each length.
    """

    def __init__(self, window: int = 32):
        self.window = window
        self.draft: dict[int, deque[float]] = {}
        self.verify: dict[int, dict[int, deque[float]]] = {}

    def hear(self, round: Round) -> None:
        """Adds a round, unless its times are unknown or not those of a step of decoding."""
        if round.target_seconds is not None and not round.reads_prompt:
            self.add(round.passes, round.draft_seconds or 0.0, round.target_seconds, round.width, round.rows)

    def add(
        self, drafted: int, draft_seconds: float, target_seconds: float, width: int | None = None, rows: int = 1
    ) -> None:
        """One round of so many passes of the draft; see `CostProfile.round`."""
        if drafted:
            self.draft.setdefault(rows, deque(maxlen=self.window)).append(draft_seconds / drafted)
        lengths = self.verify.setdefault(rows, {})
        lengths.setdefault(drafted + 1 if width is None else width, deque(maxlen=self.window)).append(target_seconds)

    def rounds(self, rows: int = 1) -> int:
        """How many rounds of so many texts are remembered."""
        return sum(map(len, self.verify.get(rows, {}).values()))

    def profile(self, rows: int = 1, drafts: bool = True) -> CostProfile | None:
        """What is known so far; `None` before plain rounds and drafted ones were both seen.

        Without `drafts` no model drafts, and what its passes would cost need not be known.

        More tokens never cost less: medians that say so are pooled (isotonic regression by pooling adjacent
        violators, weighted by the number of rounds). Between measured lengths the costs are interpolated.
        """
        verify = self.verify.get(rows, {})
        if (drafts and rows not in self.draft) or 1 not in verify or (not drafts and len(verify) < 2):
            return None
        pools: list[tuple[float, int, list[int]]] = []
        for n, seconds in sorted(verify.items()):
            pool = (median(seconds), len(seconds), [n])
            while pools and pools[-1][0] >= pool[0]:
                mean, weight, lengths = pools.pop()
                total = weight + pool[1]
                pool = ((mean * weight + pool[0] * pool[1]) / total, total, lengths + pool[2])
            pools.append(pool)
        known = sorted((n, mean) for mean, _, lengths in pools for n in lengths)
        costs = []
        for (a, s), (b, t) in pairwise(known):
            costs += [s + (t - s) * (n - a) / (b - a) for n in range(a, b)]
        draft = median(self.draft[rows]) if rows in self.draft else math.inf
        return CostProfile(draft, (*costs, known[-1][1]))
