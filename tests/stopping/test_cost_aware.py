"""The cost-aware rule against brute force, and its promises on other hardware."""

import math
import random
from itertools import pairwise

import pytest
from models import slow

from hf_specdecpp.stopping import CostAware, CostProfile, DraftedToken, Round, RunningCosts
from hf_specdecpp.stopping.rules import AcceptanceThreshold, Bounded, FixedLength


def best_throughput(kinds: list[list[float]], costs: CostProfile) -> tuple[float, list[int]]:
    """Brute force: the most tokens a second over all ways to give each kind of round its length.

    A kind of round is its list of conditional acceptances, known to the rule; all kinds are equally frequent.
    """
    best, chosen = 0.0, None
    lengths = [range(len(kind) + 1) for kind in kinds]

    def search(prefix):
        nonlocal best, chosen
        if len(prefix) == len(kinds):
            tokens = sum(
                1 + sum(math.prod(kind[: j + 1]) for j in range(k)) for kind, k in zip(kinds, prefix, strict=True)
            )
            value = tokens / sum(costs.round(k) for k in prefix)
            if value > best:
                best, chosen = value, prefix
            return
        for k in lengths[len(prefix)]:
            search([*prefix, k])

    search([])
    return best, chosen


class Known(CostAware):
    """The rule with the true probabilities and the true long-run throughput in the place of its estimates."""

    def __init__(self, costs, kind, throughput):
        super().__init__(costs, max_length=len(kind), horizon=len(kind))
        self.known, self.value = costs, throughput
        self.acceptance.at = lambda position: kind[position - 1]

    throughput = property(lambda self: self.value)


@pytest.mark.parametrize("seed", range(20))
def test_with_known_probabilities_the_rule_is_the_best_there_is(seed):
    """The rule's balance, at the throughput of the best policy, chooses exactly that policy's lengths."""
    r = random.Random(seed)
    kinds = [[r.random() ** 0.5 for _ in range(4)] for _ in range(3)]
    steps = sorted(r.uniform(0, 0.6) for _ in range(4))
    costs = CostProfile(r.uniform(0.02, 0.5), (1.0, *(1 + s for s in steps)))
    throughput, expected = best_throughput(kinds, costs)
    found = []
    for kind in kinds:
        rule, drafted = Known(costs, kind, throughput), 0
        while rule.balance(drafted, math.prod(kind[:drafted])) > 1e-9:
            drafted += 1
        found.append(drafted)

    def value(lengths):
        tokens = sum(1 + sum(math.prod(k[: j + 1]) for j in range(n)) for k, n in zip(kinds, lengths, strict=True))
        return tokens / sum(map(costs.round, lengths))

    assert value(found) == pytest.approx(value(expected)) == pytest.approx(throughput)


def simulate(rule, costs: CostProfile, shape: tuple[float, float], tokens: int = 3000, seed: int = 0) -> float:
    """Speed relative to plain decoding where acceptances are Beta distributed and the head knows them."""
    r = random.Random(seed)
    acceptances = [r.betavariate(*shape) for _ in range(tokens + 60)]
    coins = [r.random() < p for p in acceptances]
    begin, seconds = 0, 0.0
    while begin < tokens:
        plan, drafted = rule.plan(), []
        while len(drafted) < (20 if plan.cap is None else min(plan.cap, 20)):
            k = begin + len(drafted)
            drafted.append(DraftedToken(len(drafted) + 1, 0.1 + 0.8 * acceptances[k], 1.0, acceptances[k]))
            if not plan.goes_on(drafted):
                break
        good = coins[begin : begin + len(drafted)]
        accepted = good.index(False) if False in good else len(good)
        seconds += costs.round(len(drafted))
        begin += accepted + 1
        times = costs.draft_seconds * len(drafted), costs.verification(len(drafted) + 1)
        rule.end(Round(drafted, accepted, False, *times))
    return begin * costs.verification(1) / seconds


FLAT = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05)
STEPPED = (1.0, 1.4, 1.4, 1.4, 1.4, 1.8, 1.8, 1.8, 1.8, 2.2)


@pytest.mark.parametrize("verify", (FLAT, STEPPED), ids=("flat", "stepped"))
@pytest.mark.parametrize("draft", (slow(0.02), slow(0.05), 0.15, slow(0.3), slow(0.5), 0.85))
def test_on_any_hardware_it_never_loses_to_plain_decoding(draft, verify):
    costs = CostProfile(draft, verify)
    for shape in ((0.5, 1.5), (2.0, 1.0), (6.0, 1.0)):
        fixed = max(simulate(FixedLength(k), costs, shape) for k in (0, 1, 2, 3, 5, 8, 12))
        tuned = max(simulate(Bounded(AcceptanceThreshold(h), 2, 20), costs, shape) for h in (0.1, 0.3, 0.5, 0.7, 0.9))
        for uses_head in (True, False):
            speed = simulate(CostAware(costs, uses_head=uses_head), costs, shape)
            assert speed > 0.98
            # 0.95 where a draft costs half a step and verification jumps by 40 %, which it learns late; else more.
            assert speed > 0.94 * max(fixed, tuned)


@pytest.mark.parametrize("draft", (0.15, 0.3, 0.5, 0.85))
def test_short_generations_lose_next_to_nothing_by_trying(draft):
    """Sixty tokens that no draft is worth its time for: each generation tries anew, and seldom."""
    costs = CostProfile(draft, STEPPED)
    rules = (CostAware(costs, mean_acceptance=0.3) for _ in range(40))
    speeds = [simulate(rule, costs, (0.5, 1.5), tokens=60, seed=seed) for seed, rule in enumerate(rules)]
    assert sum(speeds) / len(speeds) > 0.98


def test_without_a_profile_it_measures_itself():
    costs = CostProfile(0.1, FLAT)
    measured = simulate(CostAware(), costs, (2.0, 1.0))
    assert measured > 0.98 * simulate(CostAware(costs), costs, (2.0, 1.0))


def test_running_costs_find_the_profile_under_noise():
    r, costs, running = random.Random(0), CostProfile(0.1, STEPPED), RunningCosts()
    assert running.profile() is None
    for _ in range(300):
        k = r.choice([0, 1, 3, 4, 6, 8])
        noise = [r.choice([1, 1, 1, 1.02, 3]) for _ in range(2)]  # now and then something else has the machine
        running.add(k, k * costs.draft_seconds * noise[0], costs.verification(k + 1) * noise[1])
    found = running.profile()
    assert found.draft_seconds == pytest.approx(0.1, rel=0.05)
    assert all(a <= b for a, b in pairwise(found.verify_seconds))
    for n in (1, 2, 4, 5, 7, 9):
        assert found.verification(n) == pytest.approx(costs.verification(n), rel=0.05)


def test_costs_must_be_positive_and_go_on_beyond_what_was_measured():
    with pytest.raises(ValueError, match="positive draft_seconds"):
        CostProfile(0.0, (1.0,))
    with pytest.raises(ValueError, match="at least one positive verify_seconds"):
        CostProfile(0.1, ())
    costs = CostProfile(0.1, (1.0, 1.0, 1.5))
    assert costs.verification(5) == 2.5 and costs.round(0) == 1.0 and costs.round(2) == pytest.approx(1.7)
    assert CostProfile(0.1, (2.0,)).verification(9) == 2.0
