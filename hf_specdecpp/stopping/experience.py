"""What rounds showed: what is accepted, and what drafting comes to. A generation begins with what earlier ones showed.

Knows no models. Only means are kept, never a text.
"""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from ..costs.profile import RunningCosts
from .round import DraftedToken, Round


class RunningAcceptance:
    """Running estimates of acceptance: by place in the draft, and by the draft's own probability of the token.

    Beta priors of `prior` tokens; old rounds fade, so that a change of topic is followed.

    Args:
        mean (`float`): expected before any.
        before (`RunningAcceptance`, *optional*): of earlier generations, the prior if it has seen any token.
    """

    edges: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
    fading: ClassVar[float] = 0.995

    def __init__(self, mean: float = 0.6, before: RunningAcceptance | None = None, prior: float = 8.0):
        self.prior, self.has_seen = prior, False
        self.before = before if before is not None and before.has_seen else None
        expected = [(a + b) / 2 for a, b in zip((0.0, *self.edges), (*self.edges, 1.0), strict=True)]
        if self.before:
            mean, expected = before.mean, [accepted / seen for accepted, seen in before.bins]
        self.overall = [mean * prior, prior]
        self.places: dict[int, list[float]] = {}
        self.bins: list[list[float]] = [[rate * prior, prior] for rate in expected]

    def add(self, token: DraftedToken, accepted: bool) -> None:
        """A verified token, all before it having been accepted."""
        self.has_seen = True
        place = self.places.setdefault(token.position, [0.0, 0.0])
        counts = [self.overall, place]
        if token.probability is not None:
            counts.append(self.bins[self._bin(token.probability)])
        for count in counts:
            count[0] = self.fading * count[0] + accepted
            count[1] = self.fading * count[1] + 1

    @property
    def mean(self) -> float:
        return self.overall[0] / self.overall[1]

    def at(self, position: int) -> float:
        """The probability that a token is accepted there, all before it having been."""
        accepted, seen = self.places.get(position, (0.0, 0.0))
        expected = self.mean
        if self.before:  # places differ as they did, from a mean that is today's
            expected = min(expected * self.before.at(position) / self.before.mean, 0.99)
        return (accepted + self.prior * expected) / (seen + self.prior)

    def given(self, probability: float) -> float:
        """The probability that a token is accepted to which the draft gave `probability`."""
        accepted, seen = self.bins[self._bin(probability)]
        return accepted / seen

    def _bin(self, probability: float) -> int:
        return sum(probability >= edge for edge in self.edges)


class RunningProposals:
    """Running estimates of the acceptance of tokens that no model proposed, by source, evidence and place.

    Args:
        before (`RunningProposals`, *optional*): of earlier generations, the prior.
    """

    fading: ClassVar[float] = 0.99
    prior: ClassVar[float] = 4.0
    edges: ClassVar[tuple[int, ...]] = (2, 3, 4, 6, 9, 13, 20)
    # Of lookups by the number of tokens that agree, the first token and later ones; of tables by the rank.
    first: ClassVar[tuple[float, ...]] = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.9, 0.95)
    later: ClassVar[tuple[float, ...]] = (0.5, 0.6, 0.7, 0.75, 0.85, 0.9, 0.95, 0.98)
    ranks: ClassVar[tuple[float, ...]] = (0.3, 0.1, 0.06, 0.04, 0.03, 0.02, 0.02)

    def __init__(self, before: RunningProposals | None = None):
        self.before = before
        self.counts: dict[tuple[str, int, bool], list[float]] = {}

    def given(self, token: DraftedToken) -> float:
        """The probability that the token is accepted, all before it having been, where all places agree on it.

        Of one that a share of them proposes it is that share.
        """
        accepted, seen = self._of(token)
        return accepted / seen

    def add(self, token: DraftedToken, accepted: bool) -> None:
        count = self._of(token)
        count[0] = self.fading * count[0] + accepted
        count[1] = self.fading * count[1] + (1.0 if token.source == "model" else token.probability)

    def _of(self, token: DraftedToken) -> list[float]:
        by_rank = token.source == "recycling"
        level = min(token.evidence, 7) - 1 if by_rank else sum(token.evidence >= edge for edge in self.edges)
        key = token.source if by_rank else "lookup", level, token.position == 1
        if key not in self.counts:
            rate = (self.ranks if by_rank else self.first if token.position == 1 else self.later)[level]
            if self.before:
                rate = self.before.given(token)
            self.counts[key] = [rate * self.prior, self.prior]
        return self.counts[key]


class Acceptances:
    """Running estimates of acceptance of all that is proposed.

    Args:
        mean (`float`): the acceptance of a draft model's tokens expected before any.
        before (`Acceptances`, *optional*): of earlier generations, the prior.
    """

    ranks: ClassVar[int] = 4

    def __init__(self, mean: float = 0.6, before: Acceptances | None = None):
        # Of second, third and fourth choices: about half of what is left each time.
        means = [mean, *((1 - mean) / 2**rank for rank in range(1, self.ranks))]
        earlier = before.of_model if before else [None] * self.ranks
        self.of_model: list[RunningAcceptance] = [RunningAcceptance(m, b) for m, b in zip(means, earlier, strict=True)]
        self.of_text: RunningProposals = RunningProposals(before.of_text if before else None)

    def of_rank(self, rank: int) -> RunningAcceptance:
        """Of a model's so manieth choice, from 1."""
        return self.of_model[min(rank, self.ranks) - 1]

    def add(self, token: DraftedToken, accepted: bool) -> None:
        """A verified token, all before it having been accepted."""
        if token.source != "model" or token.evidence:
            self.of_text.add(token, accepted)
        if token.source == "model":
            self.of_rank(token.rank).add(token, accepted)


class Worth:
    """Tokens and time, in steps of plain decoding, of a round: means over the last rounds."""

    fading: ClassVar[float] = 1 - 1 / 64

    def __init__(self):
        self.tokens = self.steps = self.rounds = 0.0

    def add(self, tokens: float, steps: float) -> None:
        self.tokens = self.fading * self.tokens + tokens
        self.steps = self.fading * self.steps + steps
        self.rounds = self.fading * self.rounds + 1

    @property
    def mean(self) -> tuple[float, float] | None:
        """Of a round; `None` before any."""
        return (self.tokens / self.rounds, self.steps / self.rounds) if self.rounds else None


class Experience:
    """What the generations of a pair showed so far. All of them add to it.

    Attributes:
        costs (`RunningCosts`): of its rounds.
        seen (`Acceptances`): what was accepted.
        rounds, drafting (`dict[tuple, Worth]`): by the number of texts and the sources, what rounds that draft come
            to, and what a model's draft adds beside other sources.
        idle (`int`): rounds since drafting that seems not to pay was tried.
    """

    def __init__(self) -> None:
        self.costs, self.seen = RunningCosts(), Acceptances()
        self.rounds: defaultdict[tuple[int, tuple[str, ...]], Worth] = defaultdict(Worth)
        self.drafting: defaultdict[tuple[int, tuple[str, ...]], Worth] = defaultdict(Worth)
        self.idle = 0

    def hear(self, round: Round) -> None:
        """Learns from a finished round."""
        self.costs.hear(round)
        for token, accepted in round.verdicts():
            self.seen.add(token, accepted)
