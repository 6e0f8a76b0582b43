"""What a round costs: seconds for a drafted token, and for a target pass over n tokens. Knows no models."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, ClassVar

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

    Batches of different sizes cost differently, so each size has its own. A size that was not seen drafting yet costs
    what the nearest size does for as many tokens, whatever texts they are of.

    Args:
        window (`int`): rounds remembered for each length.
    """

    enough: ClassVar[int] = 4  # rounds whose median one slow round does not move

    def __init__(self, window: int = 32):
        self.window = window
        self.draft: dict[int, deque[float]] = {}
        self.verify: dict[int, dict[int, deque[float]]] = {}
        self.count = 0
        self.first: set[tuple[int, int]] = set()  # sizes and lengths of which one round was heard

    def hear(self, round: Round) -> None:
        """Adds a round, unless its times are unknown or not those of a step of decoding.

        The first one over so many tokens counts until there is a second: a CPU makes its kernels then, which takes as
        long again.
        """
        if round.target_seconds is None or round.reads_prompt:
            return
        key, is_first = (round.rows, round.width), round.width not in self.verify.get(round.rows, {})
        self.add(round.passes, round.draft_seconds or 0.0, round.target_seconds, round.width, round.rows)
        if is_first:
            self.first.add(key)
            return
        with suppress(KeyError):  # raised for all but one of the threads that may be here
            self.first.remove(key)
            self.verify[round.rows][round.width].popleft()

    def add(
        self, drafted: int, draft_seconds: float, target_seconds: float, width: int | None = None, rows: int = 1
    ) -> None:
        """One round of so many passes of the draft; see `CostProfile.round`."""
        self.count += 1
        if drafted:
            self.draft.setdefault(rows, deque(maxlen=self.window)).append(draft_seconds / drafted)
        lengths = self.verify.setdefault(rows, {})
        lengths.setdefault(drafted + 1 if width is None else width, deque(maxlen=self.window)).append(target_seconds)

    def begin(self, profile: CostProfile) -> None:
        """Begins with what was measured before, as if it had been seen in as few rounds as are enough."""
        for width, seconds in enumerate(profile.verify_seconds, 1):
            for _ in range(self.enough):
                self.add(int(width == 1), profile.draft_seconds, seconds, width)

    def rounds(self) -> int:
        """How many rounds were added."""
        return self.count

    def profile(self, rows: int = 1, drafts: bool = True) -> CostProfile | None:
        """What is known so far; `None` before plain rounds and drafted ones were both seen.

        Without `drafts` no model drafts, and what its passes would cost need not be known.
        """
        known = [n for n, seen in self.verify.items() if 1 in seen and (n in self.draft if drafts else len(seen) > 1)]
        if not known:
            return None
        nearest = min(known, key=lambda n: abs(math.log(n / rows)))
        costs = self._verification(nearest)
        if nearest != rows:
            costs = scaled(costs, rows / nearest)
            own = self.verify.get(rows, {})
            if 1 in own:
                costs = [max(cost + median(own[1]) - costs[0], costs[0] / 2) for cost in costs]
        return CostProfile(median(self.draft[nearest]) if nearest in self.draft else math.inf, tuple(costs))

    def _verification(self, rows: int) -> list[float]:
        """Of passes over 1, 2, ... tokens of so many texts.

        More tokens never cost less, and what disturbs a machine only slows it: so of each length the least of the
        medians of as many tokens or more. What fewer than four rounds say counts in part, for a length that seems dear
        is not tried once more. Between measured lengths costs are interpolated.
        """
        least, medians = math.inf, []
        for n, seconds in sorted(self.verify[rows].items(), reverse=True):
            least = min(least, median(seconds))
            medians.append((n, least, len(seconds)))
        known: list[tuple[int, float]] = []
        for n, cost, rounds in reversed(medians):
            before = known[-1][1] if known else cost
            known.append((n, before + (cost - before) * min(rounds / self.enough, 1.0)))
        costs = []
        for (a, s), (b, t) in pairwise(known):
            costs += [s + (t - s) * (n - a) / (b - a) for n in range(a, b)]
        (first, least), (last, most) = known[0], known[-1]
        if least < most:  # it rises as all do on the average: the last two may be alike, or on both sides of a step
            return [*costs, most, most + (most - least) / (last - first)]
        return [*costs, most]


def scaled(costs: list[float], ratio: float) -> list[float]:
    """What `ratio` times 1, 2, ... tokens cost, given the costs of 1, 2, ...; their lines go on at the ends."""
    costs, found = costs if len(costs) > 1 else costs * 2, []
    for n in range(1, max(math.ceil(len(costs) / ratio), 2) + 1):
        place = n * ratio - 1
        before = min(max(math.floor(place), 0), len(costs) - 2)
        found.append(costs[before] + (place - before) * (costs[before + 1] - costs[before]))
    return [max(cost, costs[0] / 2) for cost in found]
