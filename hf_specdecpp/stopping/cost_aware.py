"""The library's default rule: draft one more token while it is worth its time. Knows no models.

Tokens a second over a long run are a renewal reward: rounds are independent cycles with some reward (tokens) and
length (seconds). The best rule maximises `E[tokens] / E[seconds]`; with `v` for that maximum it also maximises
`E[tokens] - v E[seconds]` for each round alone (Dinkelbach 1967). So within a round each further token earns the
probability that it and all before it are accepted, and costs `v` times the seconds that it adds:

    S_k P_{k+1}  >=  v (T(k+1) - T(k)),      T(k) = k t_draft + t_verify(k+1)

If the left side never rises and the right side never falls in k, stopping at the first violation is optimal. Neither
need hold (verification has steps), so the rule looks ahead: it goes on if drafting some m more has a positive balance.
Assumptions: rounds are alike in the long run, costs depend on lengths alone, and the probabilities are calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from ..costs.profile import CostProfile, RunningCosts
from .forest import Forest
from .plan import Plan
from .round import DraftedToken, Round, Scope
from .rule import ONE_TEXT, TimedRule


class RunningAcceptance:
    """Running estimates of acceptance: by place in the draft, and by the draft's own probability of the token.

    Beta priors of `prior` tokens; old rounds fade, so that a change of topic is followed.
    """

    edges: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
    fading: ClassVar[float] = 0.995

    def __init__(self, mean: float = 0.6, prior: float = 8.0):
        self.prior = prior
        self.overall = [mean * prior, prior]
        self.places: dict[int, list[float]] = {}
        centres = [(a + b) / 2 for a, b in zip((0.0, *self.edges), (*self.edges, 1.0), strict=True)]
        self.bins = [[centre * prior, prior] for centre in centres]

    def add(self, token: DraftedToken, accepted: bool) -> None:
        """A verified token, all before it having been accepted."""
        place = self.places.setdefault(token.position, [0.0, 0.0])
        for count in (self.overall, place, self.bins[self._bin(token.probability)]):
            count[0] = self.fading * count[0] + accepted
            count[1] = self.fading * count[1] + 1

    @property
    def mean(self) -> float:
        return self.overall[0] / self.overall[1]

    def at(self, position: int) -> float:
        """The probability that a token is accepted there, all before it having been."""
        accepted, seen = self.places.get(position, (0.0, 0.0))
        return (accepted + self.prior * self.mean) / (seen + self.prior)

    def given(self, probability: float) -> float:
        """The probability that a token is accepted to which the draft gave `probability`."""
        accepted, seen = self.bins[self._bin(probability)]
        return accepted / seen

    def _bin(self, probability: float) -> int:
        return sum(probability >= edge for edge in self.edges)


class RunningProposals:
    """Running estimates of the acceptance of tokens that no model proposed, by source, evidence and place."""

    fading: ClassVar[float] = 0.99
    prior: ClassVar[float] = 4.0
    edges: ClassVar[tuple[int, ...]] = (2, 3, 4, 6, 9, 13)
    # Of lookups by the number of tokens that agree, the first token and later ones; of tables by the rank.
    first: ClassVar[tuple[float, ...]] = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.9)
    later: ClassVar[tuple[float, ...]] = (0.5, 0.6, 0.7, 0.75, 0.85, 0.9, 0.95)
    ranks: ClassVar[tuple[float, ...]] = (0.3, 0.1, 0.06, 0.04, 0.03, 0.02, 0.02)

    def __init__(self):
        self.counts: dict[tuple[str, int, bool], list[float]] = {}

    def given(self, token: DraftedToken) -> float:
        """The probability that the token is accepted, all before it having been."""
        accepted, seen = self._of(token)
        return accepted / seen

    def add(self, token: DraftedToken, accepted: bool) -> None:
        count = self._of(token)
        count[0] = self.fading * count[0] + accepted
        count[1] = self.fading * count[1] + 1

    def _of(self, token: DraftedToken) -> list[float]:
        by_rank = token.source == "recycling"
        level = min(token.evidence, 7) - 1 if by_rank else sum(token.evidence >= edge for edge in self.edges)
        key = token.source if by_rank else "lookup", level, token.position == 1
        if key not in self.counts:
            prior = (self.ranks if by_rank else self.first if token.position == 1 else self.later)[level]
            self.counts[key] = [prior * self.prior, self.prior]
        return self.counts[key]


class CostAware(TimedRule):
    """Drafts one more token while its expected gain is worth more than its time.

    Args:
        costs (`CostProfile`, *optional*): left out, the rule measures in its first rounds.
        running (`RunningCosts`, *optional*): what the pair cost so far, see `TimedRule`.
        mean_acceptance (`float`): the acceptance expected before any round, in [0, 1].
        uses_head (`bool`): ask the head, and weigh its word against the draft's own probability, calibrated as the
            generation runs, by how well each predicted so far; else the latter alone.
        horizon (`int`): how many further tokens it looks ahead.
        max_length (`int`): the longest draft.
    """

    reason = "not worth its time"
    fading: ClassVar[float] = 0.995  # weight of the past against the newest round
    probing: ClassVar[float] = 0.01  # share of the time that may be lost to trying what seems not to pay
    branches: ClassVar[int] = 3  # drafted behind a token where trees are free to be

    def __init__(
        self,
        costs: CostProfile | None = None,
        running: RunningCosts | None = None,
        uses_head: bool = True,
        mean_acceptance: float = 0.6,
        horizon: int = 6,
        max_length: int = 20,
    ):
        super().__init__(costs, running)
        self.needs = frozenset({"probability", "seconds"} | ({"acceptance"} if uses_head else set()))
        self.uses_head, self.horizon, self.max_length = uses_head, horizon, max_length
        self.acceptance = RunningAcceptance(mean_acceptance)
        # Of second, third and fourth choices: about half of what is left each time.
        self.others = [RunningAcceptance((1 - mean_acceptance) / 2**rank) for rank in (1, 2, 3)]
        self.known: CostProfile | None = None
        self.tokens = self.steps = 0.0  # of a text, and of rounds, in steps of plain decoding
        self.rows, self.is_mixed, self.tried = 1, False, False
        self.drafted = self.draft_steps = 0.0  # of a text: tokens that a draft of the model adds, and its steps
        self.proposals = RunningProposals()
        self.idle = 0
        self.head_loss = self.own_loss = 0.0

    @property
    def throughput(self) -> float:
        """Tokens a second of rounds that draft, in the long run, of all texts together."""
        return self.rows * self.tokens / (self.steps * self.known.verification(1))

    def expect(self, drafts: bool = True, rounds: float = 8.0) -> None:
        """Begins the long run with what the best fixed length should do, worth so many rounds of experience."""
        tokens, steps = max(self.fixed_lengths(), key=lambda reward: reward[0] / reward[1]) if drafts else (1.0, 1.0)
        self.tokens, self.steps = rounds * tokens, rounds * steps
        self.drafted, self.draft_steps = tokens - 1, steps - 1

    def fixed_lengths(self) -> Iterator[tuple[float, float]]:
        """Of a round that drafts 1, 2, ... tokens whatever they are: expected tokens of a text, and time in steps."""
        survival, tokens = 1.0, 1.0
        for length in range(1, self.max_length + 1):
            survival *= self.acceptance.at(length)
            tokens += survival
            yield tokens, self.known.round(length) / self.known.verification(1)

    def balance(self, drafted: int, survival: float) -> float:
        """The best expected gain, in tokens, of drafting some more after `drafted` tokens."""
        best, gained = 0.0, 0.0
        for more in range(1, min(self.horizon, self.max_length - drafted) + 1):
            survival *= self.acceptance.at(drafted + more)
            gained += survival
            added = self.known.round(drafted + more) - self.known.round(drafted)
            best = max(best, gained - self.throughput * added)
        return best

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        self.known, self.rows = self.current_costs(scope.rows, "model" in scope.sources), scope.rows
        self.is_mixed = scope.is_mixed
        if self.known is None:
            return Plan((4, 0, 2)[self.running.rounds(scope.rows) % 3], reason=self.reason, cap_reason=self.reason)
        if not self.steps:
            self.expect("model" in scope.sources)
        pays = self._pays()
        if not pays and not scope.is_mixed:
            return Plan(0, reason=self.reason, cap_reason=self.reason)
        chain = Plan(
            self.max_length, "survival", self.levels(), strict=True, factor=self.expected, reason=self.reason,
            cap_reason=self.reason,
        )  # fmt: skip
        branches = scope.branches or self.branches
        if branches == 1 and scope.rows == 1 and not scope.is_mixed:
            return chain
        return Forest(
            **vars(chain) | {"branches": branches, "chooses": branches > 1 or scope.is_mixed},
            value=self.throughput, costs=self.known,
            ranked=self.ranked, horizon=self.horizon, max_nodes=scope.max_nodes, rows=scope.rows,
            drafted=self.drafted if pays else 0.0, price=self.draft_steps * self.tokens / self.steps,
            tries=pays and self.tried,
        )  # fmt: skip

    def _pays(self) -> bool:
        """Whether to draft in this round. Where it does not pay it is tried, at a hundredth of the time."""
        worth, loss = self.tokens - self.steps, min(steps - tokens for tokens, steps in self.fixed_lengths())
        if self.is_mixed:  # beside lookups: what the model's drafts add, against what else their time would earn
            worth = self.drafted - self.draft_steps * self.tokens / self.steps
            loss = -worth
        self.tried = worth < 0
        if not self.tried:
            self.idle = 0
            return True
        self.idle += 1
        if self.probing * self.idle < loss:
            return False
        self.idle = 0
        return True

    def levels(self) -> tuple[float, ...]:
        """After `k` tokens drafting pays while their survival is above the `k`-th of these.

        `balance` is positive iff for some `m` the survival times `sum_i prod_j a(k + j)`, the tokens that `m` more can
        be expected to add, exceeds the value of their time.
        """
        found = []
        for drafted in range(1, self.max_length + 1):
            reach, gained, least = 1.0, 0.0, math.inf
            for more in range(1, min(self.horizon, self.max_length - drafted) + 1):
                reach *= self.acceptance.at(drafted + more)
                gained += reach
                added = self.known.round(drafted + more) - self.known.round(drafted)
                if gained > 0:
                    least = min(least, self.throughput * added / gained)
            found.append(least)
        return tuple(found)

    def ranked(self, depth: int) -> list[float]:
        """The probabilities that the first, second, ... token drafted behind an accepted one is accepted."""
        return [self.acceptance.at(depth), *(rank.mean for rank in self.others)]

    def expected(self, token: DraftedToken) -> float:
        """The probability of acceptance, of two opinions weighted by Bayes' rule as two models of what was seen."""
        if token.source != "model":
            return token.probability * self.proposals.given(token)
        if token.evidence:
            return max(self._of_model(token), self.proposals.given(token))
        return self._of_model(token)

    def _of_model(self, token: DraftedToken) -> float:
        if token.rank > 1:
            return self._of_rank(token.rank).given(token.probability)
        own = self.acceptance.given(token.probability)
        if not self.uses_head or token.acceptance is None:
            return own
        weight = 1 / (1 + math.exp(min(self.head_loss - self.own_loss, 50.0)))
        return weight * token.acceptance + (1 - weight) * own

    def _of_rank(self, rank: int) -> RunningAcceptance:
        return self.acceptance if rank == 1 else self.others[min(rank - 2, len(self.others) - 1)]

    def end(self, round: Round) -> None:
        super().end(round)
        for token, accepted in round.verified():
            if accepted or not round.censored:
                if token.source != "model" or token.evidence:
                    self.proposals.add(token, accepted)
                if token.source != "model":
                    continue
                if token.rank == 1 and self.uses_head and token.acceptance is not None:
                    own = self.acceptance.given(token.probability)
                    self.head_loss = self.fading * self.head_loss + log_loss(token.acceptance, accepted)
                    self.own_loss = self.fading * self.own_loss + log_loss(own, accepted)
                self._of_rank(token.rank).add(token, accepted)
        if self.known is not None and (round.passes or self.is_mixed):
            self.tokens = self.fading * self.tokens + round.accepted + 1
            steps = self.known.round(round.passes, round.width) / self.known.verification(1)
            self.steps = self.fading * self.steps + steps
            if self.is_mixed and round.passes:
                self._learn_drafts(round)

    def _learn_drafts(self, round: Round) -> None:
        """What the model's own tokens could be expected to add in a round, and what they cost."""
        survival, added, count = [], 0.0, 0
        parents = range(-1, len(round.drafted) - 1) if round.parents is None else round.parents
        for token, parent in zip(round.drafted, parents, strict=True):
            survival.append((1.0 if parent < 0 else survival[parent]) * self.expected(token))
            if token.source == "model":
                added, count = added + survival[-1], count + 1
        step = self.known.verification(1)
        cost = round.passes * self.known.draft_seconds
        cost += self.known.verification(round.width) - self.known.verification(max(round.width - count, 1))
        weight = 1 / 16
        self.drafted += weight * (added - self.drafted)
        self.draft_steps += weight * (cost / step - self.draft_steps)


def log_loss(probability: float, accepted: bool) -> float:
    """Of a prediction, in nats; no prediction is taken to be certain."""
    return -math.log(max(probability if accepted else 1 - probability, 1e-3))
