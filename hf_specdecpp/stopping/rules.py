"""The stopping rules of the field, one small class each, with its formula and source. They know no models.

Every rule decides whether to draw *another* token; a token that made it stop is submitted all the same. Where a
published rule would take the token back (none here does), sampling would be biased.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

from ..costs.profile import CostProfile
from .experience import Experience
from .plan import Plan
from .round import DraftedToken, Round, Scope
from .rule import ONE_TEXT, StoppingRule, TimedRule


class FixedLength(StoppingRule):
    """Every round drafts `length` tokens."""

    reason = "length"

    def __init__(self, length: int):
        if length < 0:
            raise ValueError(f"length counts drafted tokens and must be 0 or more, got {length}")
        self.length = length

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(self.length, reason=self.reason, cap_reason=self.reason)


class Heuristic(StoppingRule):
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a full acceptance, else one less."""

    reason = "length"

    def __init__(self, length: int = 20):
        self.length = length

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(self.length, reason=self.reason, cap_reason=self.reason)

    def end(self, round: Round) -> None:
        full = round.accepted == len(round.drafted)
        self.length = self.length + 2 if full else max(1, self.length - 1)


class Confidence(StoppingRule):
    """transformers' `assistant_confidence_threshold`: stop once the draft gave a drawn token less than `threshold`.

    With `adapt`, as transformers does where scikit-learn is installed, the threshold minimises after each round
    `false positive rate + 3 x false negative rate` over the last 1,000 verified tokens of the generation (in
    transformers over all, so that its rounds grow slower and slower).
    """

    needs = frozenset({"probability"})
    reason = "confidence"
    window: ClassVar[int] = 1000

    def __init__(self, threshold: float = 0.4, adapt: bool = True):
        self.threshold, self.adapt = threshold, adapt
        self.seen: deque[tuple[float, bool]] = deque()
        self.ordered: list[tuple[float, bool]] = []  # the same, the least probable first

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        # Half a unit of the fifth decimal, see `_rounded`.
        return Plan(statistic="probability", levels=(self.threshold - 5e-6,), reason=self.reason)

    def end(self, round: Round) -> None:
        if not self.adapt:
            return
        for token in round.drafted[: round.accepted + 1]:
            self._add(self._rounded(token), token.position <= round.accepted)
        positives = sum(accepted for _, accepted in self.ordered)
        negatives = len(self.ordered) - positives
        if len(self.ordered) <= 5 or not positives or not negatives:
            return
        best, true, false = math.inf, positives, negatives  # of those that are at least as probable
        for i, (probability, accepted) in enumerate(self.ordered):
            if not i or self.ordered[i - 1][0] != probability:  # the threshold takes in all equal probabilities
                cost = false / negatives + 3 * (1 - true / positives)
                if cost < best + 1e-12:
                    best, self.threshold = cost, probability
            true, false = true - accepted, false - (not accepted)

    def _rounded(self, token: DraftedToken) -> float:
        """Equal situations must look equal, though passes of other shapes end in other last bits."""
        return round(token.probability, 5)

    def _add(self, probability: float, accepted: bool) -> None:
        self.seen.append((probability, accepted))
        insort(self.ordered, (probability, accepted))
        if len(self.seen) > self.window:
            del self.ordered[bisect_left(self.ordered, self.seen.popleft())]


class SurvivalThreshold(StoppingRule):
    """Stop once `1 - prod P_i > threshold`, the probability that at least one drafted token is rejected.

    Subclasses name in `factor` the field of `DraftedToken` that is multiplied; what is not known yet is left out.
    """

    factor: ClassVar[str]

    def __init__(self, threshold: float):
        self.threshold = threshold

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(
            statistic="survival", levels=(1 - self.threshold,), factor=attrgetter(self.factor), reason=self.reason
        )


class CumulativeConfidence(SurvivalThreshold):
    """SpecDec++'s rule with the draft's own probability for a head: `P_i = q(y_i)`."""

    needs = frozenset({"probability"})
    reason = "cumulative confidence"
    factor = "probability"

    def __init__(self, threshold: float = 0.7):
        super().__init__(threshold)


class AcceptanceThreshold(SurvivalThreshold):
    """SpecDec++ (arXiv 2405.19715, section 3.1): `P_i` from the head.

    The paper's head judges a token in the pass that draws the next one, so its product lacks the newest token.
    """

    needs = frozenset({"acceptance"})
    reason = "threshold"
    factor = "acceptance"


class EntropyBound(StoppingRule):
    """SVIP (arXiv 2411.18462): stop once `sqrt(c H(q)) > threshold`.

    Acceptance is `1 - TV(p, q)`, by Pinsker at least `1 - sqrt(KL / 2)`; the divergence is taken to be a constant
    multiple of the draft's entropy at temperature 1. The authors' code has c = 0.15, threshold 0.3 and 40 tokens.
    """

    needs = frozenset({"entropy"})
    reason = "entropy"

    def __init__(self, threshold: float = 0.3, scale: float = 0.15):
        self.threshold, self.scale = threshold, scale

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(statistic="entropy", levels=(self.threshold**2 / self.scale,), reason=self.reason)


class AdaEDL(StoppingRule):
    """AdaEDL (arXiv 2410.18351): stop once `1 - sqrt(gamma H(q)) < lambda`, lambda led to a rate of acceptance.

    After each round, with `r <- r/2 + accepted/drafted/2`: below `target_rate` lambda aims `step` higher, else, if the
    round ended before its cap, `step` lower; it moves a tenth of the way, `lambda <- 0.9 lambda + 0.1 aim`.
    """

    needs = frozenset({"entropy"})
    reason = "entropy"

    def __init__(self, threshold: float = 0.4, gamma: float = 0.2, target_rate: float = 0.9, step: float = 0.01):
        self.threshold, self.gamma, self.target_rate, self.step = threshold, gamma, target_rate, step
        self.rate = target_rate

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        bound = (1 - self.threshold) ** 2 / self.gamma if self.threshold <= 1 else -math.inf
        return Plan(statistic="entropy", levels=(bound,), reason=self.reason)

    def end(self, round: Round) -> None:
        if not round.drafted:
            return
        stopped = not self.plan().goes_on(round.drafted)
        self.rate = 0.5 * self.rate + 0.5 * round.accepted / len(round.drafted)
        aim = self.threshold
        if self.rate < self.target_rate:
            aim += self.step
        elif stopped:
            aim -= self.step
        self.threshold = 0.9 * self.threshold + 0.1 * aim


class Goodput(TimedRule):
    """SmartSpec (arXiv 2406.14066): the length with the most expected tokens a second.

    `E(k) = (1 - a^(k+1)) / (1 - a)` tokens in `round(k)` seconds, `a` the moving average of acceptance, from 0.7; the
    search goes up from k = 0 and ends at the first decrease.
    """

    reason = "length"
    average: ClassVar[float] = 0.9  # weight of the past

    def __init__(self, costs: CostProfile | None = None, experience: Experience | None = None, max_length: int = 20):
        super().__init__(costs, experience)
        self.max_length = max_length
        self.acceptance = 0.7

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(self.length(scope.rows, scope.block), reason=self.reason, cap_reason=self.reason)

    def length(self, rows: int = 1, block: int = 1) -> int:
        """Tokens to draft next; `block` of them take one pass of the draft."""
        costs = self.current_costs(rows)
        if costs is None:
            return (4, 0)[self.experience.costs.rounds() % 2]
        best, chosen = 0.0, 0
        for k in range(self.max_length + 1):
            a = min(self.acceptance, 0.999)
            goodput = (1 - a ** (k + 1)) / (1 - a) / costs.round(math.ceil(k / block), k + 1)
            if goodput <= best:
                break
            best, chosen = goodput, k
        return chosen

    def end(self, round: Round) -> None:
        super().end(round)
        tried = min(round.accepted + 1, len(round.drafted))
        if tried and not round.censored:
            rate = round.accepted / tried
            self.acceptance = self.average * self.acceptance + (1 - self.average) * rate


class DropIn(TimedRule):
    """On-the-fly adaptation (Liu, Park and Shen, ACL 2025): the length with the highest speed at the running accuracy.

    `(1 - a^(k+1)) / ((1 - a) (k c + 1))` with `a` accepted per verified token over the last `window` rounds, and
    `c = t_draft / t_verify(1)` as measured: verification is taken to cost the same for every length, which is what
    sets it apart from `Goodput`. Written from the abstract and notes on the paper, not from its code.
    """

    reason = "length"

    def __init__(
        self,
        costs: CostProfile | None = None,
        experience: Experience | None = None,
        window: int = 16,
        max_length: int = 20,
    ):
        super().__init__(costs, experience)
        self.max_length = max_length
        self.recent: deque[tuple[int, int]] = deque(maxlen=window)

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(self.length(scope.rows, scope.block), reason=self.reason, cap_reason=self.reason)

    def length(self, rows: int = 1, block: int = 1) -> int:
        """Tokens to draft next; `block` of them take one pass of the draft."""
        costs = self.current_costs(rows)
        if costs is None:
            return (4, 0)[self.experience.costs.rounds() % 2]
        # One verified token of prior either way, so that nothing is ever certain.
        accepted, verified = (sum(column) for column in zip((1, 2), *self.recent, strict=True))
        a, c = accepted / verified, costs.draft_seconds / costs.verification(1)
        return max(range(self.max_length + 1), key=lambda k: (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)))

    def end(self, round: Round) -> None:
        super().end(round)
        if round.drafted and not round.censored:
            self.recent.append((round.accepted, min(round.accepted + 1, len(round.drafted))))


class Bounded(StoppingRule):
    """`rule`, asked only from `min_length` drafted tokens on, and for no more than `max_length`."""

    def __init__(self, rule: StoppingRule, min_length: int = 1, max_length: int | None = None):
        self.rule, self.min_length, self.max_length = rule, min_length, max_length
        self.needs, self.reason, self.shared = rule.needs, rule.reason, rule.shared

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        plan = self.rule.plan(scope)
        if self.max_length is not None and (plan.cap is None or plan.cap >= self.max_length):
            plan = replace(plan, cap=self.max_length, cap_reason="max_draft_length")
        return replace(plan, floor=self.min_length)

    def end(self, round: Round) -> None:
        self.rule.end(round)


class AnyOf(StoppingRule):
    """Stops once any of `rules` would."""

    def __init__(self, *rules: StoppingRule):
        self.rules = rules
        self.needs = frozenset().union(*(rule.needs for rule in rules))
        self.shared = any(rule.shared for rule in rules)

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        plans = tuple(rule.plan(replace(scope, branches=1)) for rule in self.rules)
        caps = [plan.cap for plan in plans if plan.cap is not None]
        return Plan(min(caps, default=None), parts=plans, reason=self.reason, cap_reason=self.reason)

    def end(self, round: Round) -> None:
        for rule in self.rules:
            rule.end(round)


class AllOf(AnyOf):
    """Stops once all of `rules` would have."""

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        plan = super().plan(scope)
        caps = [part.cap for part in plan.parts]
        return replace(plan, cap=None if None in caps else max(caps), every=True)
