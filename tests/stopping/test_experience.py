"""What a generation begins with: what earlier ones showed."""

import pytest

from hf_specdecpp.stopping import CostAware, CostProfile, DraftedToken, Experience, Round, RunningCosts, Scope
from hf_specdecpp.stopping.experience import Acceptances

WRONG = DraftedToken(1, 0.9), False
RIGHT = DraftedToken(1, 0.9), True


def test_rates_begin_with_those_of_earlier_generations_and_leave_them_fast():
    before = Acceptances()
    for _ in range(100):
        before.add(*WRONG)
        before.add(DraftedToken(1, 1.0, source="lookup", evidence=3), True)
    fresh, later = Acceptances(), Acceptances(before=before)
    assert later.of_rank(1).mean == pytest.approx(before.of_rank(1).mean)
    assert later.of_rank(1).mean < 0.1 < fresh.of_rank(1).mean
    assert later.of_rank(1).given(0.9) < 0.1 and later.of_rank(1).at(1) < 0.2 < fresh.of_rank(1).at(1)
    assert later.of_text.given(DraftedToken(1, 1.0, source="lookup", evidence=3)) > 0.9
    assert later.of_rank(3).mean == fresh.of_rank(3).mean  # of which nothing was seen
    for _ in range(30):
        later.add(*RIGHT)
    assert later.of_rank(1).mean > 0.7 and before.of_rank(1).mean < 0.1


def rounds(rule, experience, costs, count, accepted):
    passes = 0
    for _ in range(count):
        plan, drafted = rule.plan(), []
        while len(drafted) < (plan.cap or 0):
            drafted.append(DraftedToken(len(drafted) + 1, 0.5))
            if not plan.goes_on(drafted):
                break
        right = min(accepted, len(drafted))
        seconds = len(drafted) * costs.draft_seconds, costs.verification(len(drafted) + 1)
        round = Round(drafted, right, False, *seconds)
        experience.hear(round)
        rule.end(round)
        passes += round.passes
    return passes


def test_a_draft_that_never_paid_is_not_tried_anew_in_every_generation():
    costs, experience = CostProfile(0.3, (1.0, 1.02, 1.04, 1.06)), Experience()
    passes = [rounds(CostAware(experience=experience, uses_head=False), experience, costs, 40, 0) for _ in range(6)]
    assert passes[0] > 3 * max(passes[3:]) and sum(passes[3:]) > 0  # it is tried, at a hundredth of the time
    fresh = [rounds(CostAware(costs, uses_head=False), Experience(), costs, 40, 0) for _ in range(6)]
    assert sum(fresh) > 2 * sum(passes)


def test_a_new_text_tries_the_model_beside_lookups_whatever_earlier_texts_say():
    """A run over texts that repeat themselves showed it next to nothing, and on others it was hardly asked again."""
    scope, experience = Scope(sources=("model", "lookup"), unread=60), Experience()
    kind = scope.rows, scope.sources
    experience.drafting[kind].add(0.1, 0.3)
    experience.rounds[kind].add(3.0, 1.2)
    rule, tried = CostAware(CostProfile(0.1, (1.0, 1.02, 1.04)), experience, uses_head=False), []
    for _ in range(12):
        plan = rule.plan(scope)
        tried.append(plan.drafts_beside([[]]))
        token = DraftedToken(1, 0.1)
        rule.end(Round([token], 0, passes=int(tried[-1]), width=2))
    assert tried == [True] + [False] * 11


def test_a_batch_of_another_size_costs_what_its_tokens_cost():
    running = RunningCosts()
    for drafted, seconds in ((0, 1.0), (1, 1.2), (3, 1.6)):  # 0.1 for 8 tokens more
        for _ in range(RunningCosts.enough):
            running.add(drafted, 0.05 * drafted, seconds, rows=2)
    one, two, four = (running.profile(rows) for rows in (1, 2, 4))
    assert two.verify_seconds[:4] == pytest.approx((1.0, 1.2, 1.4, 1.6))
    assert four.verification(1) == pytest.approx(1.2) and four.verification(2) == pytest.approx(1.6)
    assert one.verification(1) == pytest.approx(0.9) and one.verification(3) == pytest.approx(1.1)
    assert one.draft_seconds == four.draft_seconds == pytest.approx(0.05)
    running.add(0, 0.0, 2.0, rows=4)  # a plain round of its own says where its line lies
    assert running.profile(4).verification(1) == pytest.approx(2.0)
    assert running.profile(4).verification(2) == pytest.approx(2.4)
    for _ in range(RunningCosts.enough):
        running.add(2, 0.4, 5.0, rows=4)  # once it drafted it has costs of its own
    assert running.profile(4).verification(3) == pytest.approx(5.0)
    assert running.profile(4).draft_seconds == pytest.approx(0.2)


def test_what_was_not_measured_is_not_free():
    """Noise made the widest passes look alike; the line through them said that any width costs the same."""
    running = RunningCosts()
    for drafted, seconds in 4 * ((0, 1.0), (1, 1.5), (4, 2.1), (6, 1.9)):
        running.add(drafted, 0.1, seconds)
    found = running.profile()
    assert found.verification(5) == found.verification(7) == pytest.approx(1.9)
    assert found.verification(31) == pytest.approx(1.9 + 24 * 0.9 / 6)


def test_one_slow_round_does_not_keep_a_rule_from_trying_again():
    """The first pass over so many tokens took three times as long, for it made its kernels: wide trees never came."""
    running = RunningCosts()
    for drafted, seconds in (*[(0, 1.0), (4, 1.1)] * 5, (9, 3.0)):
        running.hear(Round([DraftedToken(1)] * drafted, 0, False, 0.1 * drafted, seconds))
    assert running.profile().verification(5) == pytest.approx(1.1)
    assert running.profile().verification(10) < 1.6  # not 3.0
    running.hear(Round([DraftedToken(1)] * 9, 0, False, 0.9, 1.2))
    assert running.profile().verification(10) < 1.2  # the first one is forgotten
    for _ in range(RunningCosts.enough):
        running.hear(Round([DraftedToken(1)] * 9, 0, False, 0.9, 1.2))
    assert running.profile().verification(10) == pytest.approx(1.2)


def test_costs_of_other_sizes_stay_positive():
    running = RunningCosts()
    running.add(0, 0.0, 1.0, rows=8)
    running.add(1, 0.1, 2.0, rows=8)
    assert min(running.profile(1).verify_seconds) >= 0.5
    assert RunningCosts().profile(3) is None and running.rounds() == 2


def test_what_rounds_came_to_is_known_by_what_they_may_be():
    experience = Experience()
    mixed = Scope(1, sources=("model", "lookup"))
    kind = mixed.rows, mixed.sources
    for _ in range(300):
        experience.rounds[kind].add(3.0, 1.5)
    assert experience.rounds[kind].mean == pytest.approx((3.0, 1.5)) and experience.rounds[1, ("model",)].mean is None
    costs = CostProfile(0.1, (1.0, 1.1))
    rule = CostAware(costs, Experience(), uses_head=False)
    rule.plan(mixed)
    begun = rule.tokens / rule.steps
    rule = CostAware(costs, experience, uses_head=False)
    rule.plan(mixed)
    assert rule.tokens / rule.steps == pytest.approx(2.0) != begun


def test_a_step_between_the_last_two_widths_is_no_slope():
    """Compiled passes cost the same up to 8 tokens and more from 9: a prompt seemed to take a draft whole rounds."""
    running = RunningCosts()
    for drafted, seconds in 4 * ((0, 1.0), (7, 1.0), (8, 1.2)):
        running.add(drafted, 0.1, seconds)
    assert running.profile().verification(101) == pytest.approx(1.2 + 92 * 0.2 / 8)
