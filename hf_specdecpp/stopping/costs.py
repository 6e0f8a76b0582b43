"""What a round costs: seconds for a drafted token, and for a target pass over n tokens. Knows no models."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median


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

    def round(self, drafted: int) -> float:
        """Seconds of a round that drafts so many tokens, 0 being plain decoding."""
        return drafted * self.draft_seconds + self.verification(drafted + 1)


class RunningCosts:
    """Learns a `CostProfile` from the rounds of a run, by running medians, which one slow round does not move.

    A round that reads a prompt is no step of decoding and must not be added.

    Args:
        window (`int`): rounds remembered for each length.
    """

    def __init__(self, window: int = 32):
        self.window = window
        self.draft: deque[float] = deque(maxlen=window)
        self.verify: dict[int, deque[float]] = {}

    def add(self, drafted: int, draft_seconds: float, target_seconds: float) -> None:
        """One round."""
        if drafted:
            self.draft.append(draft_seconds / drafted)
        self.verify.setdefault(drafted + 1, deque(maxlen=self.window)).append(target_seconds)

    @property
    def rounds(self) -> int:
        """How many rounds are remembered."""
        return sum(map(len, self.verify.values()))

    def profile(self) -> CostProfile | None:
        """What is known so far; `None` before plain rounds and drafted ones were both seen.

        More tokens never cost less: medians that say so are pooled (isotonic regression by pooling adjacent
        violators, weighted by the number of rounds). Between measured lengths the costs are interpolated.
        """
        if not self.draft or 1 not in self.verify:
            return None
        pools: list[tuple[float, int, list[int]]] = []
        for n, seconds in sorted(self.verify.items()):
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
        return CostProfile(median(self.draft), (*costs, known[-1][1]))
