"""Each rule against a few lines of plain Python written from its paper."""

import math
import random
from dataclasses import replace

import pytest

from hf_specdecpp.stopping import CostProfile, DraftedToken, Experience, Round
from hf_specdecpp.stopping.rules import (
    AcceptanceThreshold,
    AdaEDL,
    AllOf,
    AnyOf,
    Bounded,
    Confidence,
    CumulativeConfidence,
    DropIn,
    EntropyBound,
    FixedLength,
    Goodput,
    Heuristic,
)

MOST = 12


def some_rounds(count: int = 200, seed: int = 0) -> list[tuple[list[DraftedToken], int]]:
    """The longest draft of each round, and how many of its tokens would be accepted."""
    r = random.Random(seed)
    rounds = []
    for _ in range(count):
        acceptances = [r.random() ** 0.3 for _ in range(MOST)]
        tokens = [
            DraftedToken(k + 1, round(r.random() ** 0.4, 5), 3 * r.random() ** 2, acceptances[k]) for k in range(MOST)
        ]
        coins = [r.random() < p for p in acceptances]
        rounds.append((tokens, coins.index(False) if False in coins else MOST))
    return rounds


def lengths(rule, rounds) -> list[int]:
    """What `rule` drafts in each round, learning from one to the next."""
    result = []
    for tokens, acceptable in rounds:
        plan, drafted = rule.plan(), []
        for token in tokens[: MOST if plan.cap is None else min(plan.cap, MOST)]:
            drafted.append(token)
            if not plan.goes_on(drafted):
                break
        result.append(len(drafted))
        rule.end(Round(drafted, min(acceptable, len(drafted)), False, 0.1 * len(drafted), 1.0))
    return result


def first(tokens, stops) -> int:
    """Length of the draft that ends with the first token at which `stops(tokens so far)`."""
    return next((k for k in range(1, MOST + 1) if stops(tokens[:k])), MOST)


@pytest.mark.parametrize("h", (0.0, 0.3, 0.7, 1.0))
def test_specdecpp_stops_when_one_rejection_is_likelier_than_the_threshold(h):
    rounds = some_rounds()
    expected = [first(ts, lambda seen: 1 - math.prod(t.acceptance for t in seen) > h) for ts, _ in rounds]
    assert lengths(AcceptanceThreshold(h), rounds) == expected
    assert h == 1.0 or min(expected) == 1


def test_a_token_that_is_not_judged_yet_counts_as_accepted():
    plan, judged = AcceptanceThreshold(0.5).plan(), DraftedToken(1, acceptance=0.6)
    assert plan.goes_on([judged, DraftedToken(2)]) and not plan.goes_on([judged, DraftedToken(2, acceptance=0.8)])


@pytest.mark.parametrize("h", (0.0, 0.3, 0.7, 1.0))
def test_cumulative_confidence_multiplies_the_drafts_probabilities(h):
    rounds = some_rounds()
    expected = [first(ts, lambda seen: 1 - math.prod(t.probability for t in seen) > h) for ts, _ in rounds]
    assert lengths(CumulativeConfidence(h), rounds) == expected


def test_svip_stops_by_the_entropy_of_the_newest_token():
    rounds = some_rounds()
    expected = [first(ts, lambda seen: (0.15 * seen[-1].entropy) ** 0.5 > 0.3) for ts, _ in rounds]
    assert lengths(EntropyBound(), rounds) == expected
    assert len(set(expected)) > 3


def test_adaedl_moves_its_threshold_towards_the_wanted_acceptance():
    rounds = some_rounds()
    threshold, rate, expected = 0.3, 0.9, []
    for tokens, acceptable in rounds:
        k = first(tokens, lambda seen, h=threshold: 1 - (0.2 * seen[-1].entropy) ** 0.5 < h)
        expected.append(k)
        stopped = 1 - (0.2 * tokens[k - 1].entropy) ** 0.5 < threshold
        rate = 0.5 * rate + 0.5 * min(acceptable, k) / k
        aim = threshold + 0.01 if rate < 0.9 else threshold - 0.01 * stopped
        threshold = 0.9 * threshold + 0.1 * aim
    rule = AdaEDL(0.3)
    assert lengths(rule, rounds) == expected
    assert rule.threshold == pytest.approx(threshold) and rule.threshold != 0.3


def test_the_heuristic_is_that_of_transformers():
    rule = Heuristic(5)
    seen = []
    for accepted_all in (True, False, False, True):
        length = rule.plan().cap
        seen.append(length)
        rule.end(Round([DraftedToken(i + 1) for i in range(length)], length if accepted_all else 0))
    assert seen == [5, 7, 6, 5] and rule.plan().cap == 7
    for _ in range(20):
        rule.end(Round([DraftedToken(1)], 0))
    assert rule.plan().cap == 1


def test_the_adapted_confidence_threshold_has_the_least_cost_over_what_was_seen():
    """transformers minimises `fpr + 3 fnr` over the thresholds of the ROC curve; here by brute force."""
    rounds = some_rounds(60)
    rule, seen = Confidence(0.4), []
    for tokens, acceptable in rounds:
        drafted = tokens[: first(tokens, lambda s, h=rule.threshold: s[-1].probability < h)]
        accepted = min(acceptable, len(drafted))
        seen += [(t.probability, t.position <= accepted) for t in drafted[: accepted + 1]]
        rule.end(Round(drafted, accepted))
        good, bad = [p for p, a in seen if a], [p for p, a in seen if not a]
        if len(seen) > 5 and good and bad:

            def cost(h, good=good, bad=bad):
                return sum(p >= h for p in bad) / len(bad) + 3 * sum(p < h for p in good) / len(good)

            assert cost(rule.threshold) == pytest.approx(min(cost(p) for p, _ in seen))
    assert rule.threshold != 0.4


def test_the_adapted_confidence_threshold_forgets_what_is_long_ago():
    """What a round costs must not grow with the text; and the threshold is that of the newest tokens alone."""
    rounds = [Round(tokens, min(acceptable, MOST)) for tokens, acceptable in some_rounds(900)]
    rule, young = Confidence(), Confidence()
    for each in rounds:
        rule.end(each)
    assert len(rule.seen) == len(rule.ordered) == rule.window and sorted(rule.seen) == rule.ordered
    tokens = [(t, t.position <= r.accepted) for r in rounds for t in r.drafted[: r.accepted + 1]][-rule.window :]
    for token, accepted in tokens:
        young.end(Round([replace(token, position=1)], int(accepted)))
    assert rule.threshold == young.threshold


def test_confidence_takes_values_that_differ_in_last_bits_for_equal():
    plan = Confidence(0.7).plan()
    assert plan.goes_on([DraftedToken(1, 0.699999)]) and not plan.goes_on([DraftedToken(1, 0.69999)])


def test_goodput_has_the_most_expected_tokens_a_second():
    costs = CostProfile(0.1, (1.0, 1.02, 1.04))
    for acceptance in (0.05, 0.3, 0.6, 0.9):
        rule = Goodput(costs, max_length=MOST)
        rule.acceptance = acceptance

        def goodput(k, a=acceptance):
            return sum(a**j for j in range(k + 1)) / (0.1 * k + costs.verification(k + 1))

        assert rule.plan().cap == max(range(MOST + 1), key=goodput)


def test_goodput_learns_costs_and_acceptance_from_its_rounds():
    rule = Goodput(max_length=MOST)
    found = lengths(rule, some_rounds())
    assert found[:2] == [4, 0] and rule.acceptance != 0.7 and max(found[3:]) > 0
    expensive = Goodput(max_length=MOST)
    for _ in range(30):
        drafted = [DraftedToken(i + 1) for i in range(expensive.plan().cap)]
        expensive.end(Round(drafted, 0, False, 0.9 * len(drafted), 1.0))
    assert expensive.plan().cap == 0  # nothing is accepted, so plain decoding is best


def test_drop_in_has_the_highest_speed_at_the_recent_accuracy():
    costs, rounds = CostProfile(0.15, (1.0, 1.5, 2.0)), some_rounds(60)
    rule, expected, history = DropIn(costs, window=5, max_length=MOST), [], []
    for _, acceptable in rounds:
        accepted = 1 + sum(a for a, _ in history[-5:])
        a = accepted / (2 + sum(n for _, n in history[-5:]))
        speeds = [sum(a**j for j in range(k + 1)) / (1 + 0.15 * k) for k in range(MOST + 1)]
        k = speeds.index(max(speeds))
        expected.append(k)
        if k:
            history.append((min(acceptable, k), min(min(acceptable, k) + 1, k)))
    assert lengths(rule, rounds) == expected
    assert len(set(expected)) > 2


def test_bounds_hold_whatever_the_rule_says():
    rounds = some_rounds()
    found = lengths(Bounded(AcceptanceThreshold(0.3), 4, 6), rounds)
    bare = lengths(AcceptanceThreshold(0.3), rounds)
    assert found == [min(max(k, 4), 6) for k in bare]
    assert lengths(Bounded(FixedLength(9), 1, 3), rounds) == [3] * len(rounds)


def test_combinations_stop_at_the_first_and_at_the_last():
    rounds = some_rounds()
    parts = [lengths(rule, rounds) for rule in (EntropyBound(), CumulativeConfidence(0.5))]
    pairs = list(zip(*parts, strict=True))
    assert lengths(AnyOf(EntropyBound(), CumulativeConfidence(0.5)), rounds) == [min(p) for p in pairs]
    assert lengths(AllOf(EntropyBound(), CumulativeConfidence(0.5)), rounds) == [max(p) for p in pairs]
    assert AnyOf(FixedLength(3), EntropyBound()).plan().cap == 3
    assert AllOf(FixedLength(3), FixedLength(5)).plan().cap == 5


def test_all_of_counts_a_rule_that_caps_as_stopped_at_its_cap():
    """It used to go on for ever, since such a rule never says stop."""
    rounds = some_rounds()
    own = lengths(EntropyBound(), rounds)
    for cap in (1, 4):
        assert lengths(AllOf(FixedLength(cap), EntropyBound()), rounds) == [max(k, cap) for k in own]
    assert lengths(AllOf(EntropyBound(), FixedLength(4), FixedLength(2)), rounds) == [max(k, 4) for k in own]


def test_rules_that_share_their_costs_learn_them():
    """Each used to add the round, so the count that exploration goes by was always even."""
    experience = Experience()
    rule = AnyOf(Goodput(experience=experience), DropIn(experience=experience))
    caps = []
    for _ in range(3):
        caps.append(rule.plan().cap)
        round = Round([DraftedToken(i + 1) for i in range(caps[-1])], 0, False, 0.1 * caps[-1], 1.0)
        experience.hear(round)
        rule.end(round)
    assert caps[:2] == [4, 0] and experience.costs.rounds() == 3 and experience.costs.profile() is not None
