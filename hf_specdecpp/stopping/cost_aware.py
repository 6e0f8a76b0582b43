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

from ..costs.profile import CostProfile
from .experience import Acceptances, Experience
from .forest import Forest
from .plan import Plan
from .round import DraftedToken, Round, Scope
from .rule import ONE_TEXT, TimedRule


class CostAware(TimedRule):
    """Drafts one more token while its expected gain is worth more than its time.

    Args:
        costs (`CostProfile`, *optional*): left out, the rule measures in its first rounds.
        experience (`Experience`, *optional*): what the pair showed so far, see `TimedRule`.
        mean_acceptance (`float`): the acceptance expected before any round of the pair, in [0, 1].
        uses_head (`bool`): ask the head, and weigh its word against the draft's own probability, calibrated as the
            generation runs, by how well each predicted so far; else the latter alone.
        horizon (`int`): how many further tokens it looks ahead.
        max_length (`int`): the longest draft.
    """

    reason = "not worth its time"
    fading: ClassVar[float] = 0.995  # weight of the past against the newest round
    probing: ClassVar[float] = 0.01  # share of the time that may be lost to trying what seems not to pay
    tries: ClassVar[int] = 1  # rounds with a model's draft before a text is believed to be as earlier ones were
    branches: ClassVar[int] = 3  # drafted behind a token where trees are free to be

    def __init__(
        self,
        costs: CostProfile | None = None,
        experience: Experience | None = None,
        uses_head: bool = True,
        mean_acceptance: float = 0.6,
        horizon: int = 6,
        max_length: int = 20,
    ):
        super().__init__(costs, experience)
        self.needs = frozenset({"probability", "seconds"} | ({"acceptance"} if uses_head else set()))
        self.uses_head, self.horizon, self.max_length = uses_head, horizon, max_length
        self.seen = Acceptances(mean_acceptance, self.experience.seen)
        self.acceptance = self.seen.of_rank(1)
        self.known: CostProfile | None = None
        self.tokens = self.steps = 0.0  # of a text, and of rounds, in steps of plain decoding
        self.scope, self.tried = ONE_TEXT, False
        self.drafted = self.draft_steps = 0.0  # of a text: tokens that a draft of the model adds, and its steps
        self.model_rounds = 0  # with such a draft, in this generation
        self.head_loss = self.own_loss = 0.0

    @property
    def kind(self) -> tuple[int, tuple[str, ...]]:
        """Of rounds that are alike in the long run."""
        return self.scope.rows, self.scope.sources

    @property
    def throughput(self) -> float:
        """Tokens a second in the long run, of all texts together: of rounds that draft, or of plain decoding."""
        return self.scope.rows * max(self.tokens / self.steps, 1.0) / self.known.verification(1)

    @property
    def longest(self) -> int:
        """The most tokens of a draft: of a draft of blocks, those of one pass."""
        return self.max_length if self.scope.block == 1 else min(self.max_length, self.scope.block)

    def seconds(self, drafted: int) -> float:
        """Of a round of a chain of so many tokens. The pass of a block is one, however many of it are verified."""
        return self.known.round(math.ceil(drafted / self.scope.block), drafted + 1)

    def expect(self, drafts: bool = True, rounds: float = 8.0) -> None:
        """Begins the long run with what earlier ones came to, or else with what the best fixed length should do.

        It is worth so many rounds.
        """
        tokens, steps = max(self.fixed_lengths(), key=lambda reward: reward[0] / reward[1]) if drafts else (1.0, 1.0)
        self.drafted, self.draft_steps = self.experience.drafting[self.kind].mean or (tokens - 1, steps - 1)
        tokens, steps = self.experience.rounds[self.kind].mean or (tokens, steps)
        self.tokens, self.steps = rounds * tokens, rounds * steps

    def fixed_lengths(self) -> Iterator[tuple[float, float]]:
        """Of a round that drafts 1, 2, ... tokens whatever they are: expected tokens of a text, and time in steps."""
        survival, tokens = 1.0, 1.0
        for length in range(1, self.longest + 1):
            survival *= self.acceptance.at(length)
            tokens += survival
            yield tokens, self.seconds(length) / self.known.verification(1)

    def balance(self, drafted: int, survival: float) -> float:
        """The best expected gain, in tokens, of drafting some more after `drafted` tokens."""
        best, gained = 0.0, 0.0
        for more in range(1, min(self.horizon, self.longest - drafted) + 1):
            survival *= self.acceptance.at(drafted + more)
            gained += survival
            added = self.seconds(drafted + more) - self.seconds(drafted)
            best = max(best, gained - self.throughput * added)
        return best

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        self.known, self.scope = self.current_costs(scope.rows, "model" in scope.sources), scope
        if self.known is None:
            tried = (4, 0, 2)[self.experience.costs.rounds() % 3]
            return Plan(tried, reason=self.reason, cap_reason=self.reason)
        if not self.steps:
            self.expect("model" in scope.sources)
        pays = self._pays()
        if not pays and not scope.is_mixed:
            return Plan(0, reason=self.reason, cap_reason=self.reason)
        branches = scope.branches or self.branches
        if branches == 1 and scope.rows == 1 and not scope.is_mixed:
            return Plan(
                self.longest, "survival", self.levels(), strict=True, factor=self.expected, reason=self.reason,
                cap_reason=self.reason,
            )  # fmt: skip
        return Forest(
            self.longest, "survival", factor=self.expected, reason=self.reason, cap_reason=self.reason,
            branches=branches, chooses=branches > 1 or scope.is_mixed, value=self.throughput, costs=self.known,
            ranked=self.ranked, horizon=self.horizon, max_nodes=scope.max_nodes, rows=scope.rows,
            drafted=self.drafted if pays else 0.0, price=self.draft_steps * self.tokens / self.steps,
            tries=pays and self.tried, block=scope.block,
        )  # fmt: skip

    def _pays(self) -> bool:
        """Whether to draft in this round. Where it does not pay it is tried, at a hundredth of the time.

        A draft that did not read the text so far must do so then, which takes longer the longer the target would take.
        """
        worth, loss = self.tokens - self.steps, min(steps - tokens for tokens, steps in self.fixed_lengths())
        if self.scope.is_mixed:  # beside lookups: what the model's drafts add, against what else their time would earn
            worth = self.drafted - self.draft_steps * self.tokens / self.steps
            loss = -worth
        step = self.known.verification(1)
        loss += (self.known.verification(1 + self.scope.unread) / step - 1) * self.known.draft_seconds / step
        self.tried = worth < 0
        is_new_text = self.scope.is_mixed and self.model_rounds < self.tries and loss < 1
        if not self.tried or is_new_text:
            self.experience.idle = 0
            return True
        self.experience.idle += 1
        if self.probing * self.experience.idle < loss:
            return False
        self.experience.idle = 0
        return True

    def levels(self) -> tuple[float, ...]:
        """After `k` tokens drafting pays while their survival is above the `k`-th of these.

        `balance` is positive iff for some `m` the survival times `sum_i prod_j a(k + j)`, the tokens that `m` more can
        be expected to add, exceeds the value of their time.
        """
        found = []
        for drafted in range(1, self.longest + 1):
            reach, gained, least = 1.0, 0.0, math.inf
            for more in range(1, min(self.horizon, self.longest - drafted) + 1):
                reach *= self.acceptance.at(drafted + more)
                gained += reach
                added = self.seconds(drafted + more) - self.seconds(drafted)
                if gained > 0:
                    least = min(least, self.throughput * added / gained)
            found.append(least)
        return tuple(found)

    def ranked(self, depth: int) -> list[float]:
        """The probabilities that the first, second, ... token drafted behind an accepted one is accepted."""
        return [self.acceptance.at(depth), *(rank.mean for rank in self.seen.of_model[1:])]

    def expected(self, token: DraftedToken) -> float:
        """The probability of acceptance, of two opinions weighted by Bayes' rule as two models of what was seen."""
        if token.source != "model":
            return min(token.probability * self.seen.of_text.given(token), 0.99)
        if token.evidence:
            return max(self._of_model(token), min(self.seen.of_text.given(token), 0.99))
        return self._of_model(token)

    def _of_model(self, token: DraftedToken) -> float:
        if token.rank > 1:
            return self.seen.of_rank(token.rank).given(token.probability)
        own = self.acceptance.given(token.probability)
        if not self.uses_head or token.acceptance is None:
            return own
        weight = 1 / (1 + math.exp(min(self.head_loss - self.own_loss, 50.0)))
        return weight * token.acceptance + (1 - weight) * own

    def end(self, round: Round) -> None:
        super().end(round)
        for token, accepted in round.verdicts():
            if self.uses_head and token.source == "model" and token.rank == 1 and token.acceptance is not None:
                own = self.acceptance.given(token.probability)
                self.head_loss = self.fading * self.head_loss + log_loss(token.acceptance, accepted)
                self.own_loss = self.fading * self.own_loss + log_loss(own, accepted)
            self.seen.add(token, accepted)
        if self.known is not None and (round.passes or self.scope.is_mixed):
            steps = self.known.round(round.passes, round.width) / self.known.verification(1)
            self.tokens = self.fading * self.tokens + round.accepted + 1
            self.steps = self.fading * self.steps + steps
            self.experience.rounds[self.kind].add(round.accepted + 1, steps)
            if self.scope.is_mixed and round.passes:
                self._learn_drafts(round)

    def _learn_drafts(self, round: Round) -> None:
        """What the model's own tokens could be expected to add in a round, and what they cost."""
        survival: list[float] = []
        added, count = 0.0, 0
        parents = range(-1, len(round.drafted) - 1) if round.parents is None else round.parents
        for token, parent in zip(round.drafted, parents, strict=True):
            survival.append((1.0 if parent < 0 else survival[parent]) * self.expected(token))
            if token.source == "model":
                added, count = added + survival[-1], count + 1
        step = self.known.verification(1)
        cost = round.passes * self.known.draft_seconds
        cost += self.known.verification(round.width) - self.known.verification(max(round.width - count, 1))
        self.model_rounds += 1
        weight = max(1 / (self.model_rounds + 3), 1 / 16)  # what earlier generations showed counts for three rounds
        self.drafted += weight * (added - self.drafted)
        self.draft_steps += weight * (cost / step - self.draft_steps)
        self.experience.drafting[self.kind].add(added, cost / step)


def log_loss(probability: float, accepted: bool) -> float:
    """Of a prediction, in nats; no prediction is taken to be certain."""
    return -math.log(max(probability if accepted else 1 - probability, 1e-3))
