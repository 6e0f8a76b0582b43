"""Medians, intervals and counts against computation by hand."""

from collections import Counter

import pytest

from hf_specdecpp.bench.measure import Row
from hf_specdecpp.bench.methods import Method
from hf_specdecpp.bench.summary import finished, first_acceptance, interval, summarise, summarise_replay, total
from hf_specdecpp.evidence.statistics import GenerationStatistics
from hf_specdecpp.evidence.trace import Draft, Trace
from hf_specdecpp.stopping import CostProfile, DraftedToken, Round, StoppingConfig

STATS = GenerationStatistics(
    4, 10, 8, 6, Counter({1: 4, 2: 4}), Counter({1: 4, 2: 2}), Counter(length=4), 0.5, 1.0,
    Counter(model=5, lookup=3), Counter(model=4, lookup=2),
)  # fmt: skip
METHODS = [Method("plain", "plain generate", {}), Method("fast", "fast one", {}, {})]


def rows():
    """Three prompts, two repeats: plain takes 1 and 3 s for 10 tokens, the other half, a third and a quarter."""
    found = []
    for prompt, factor in enumerate((2, 3, 4)):
        for name, share in (("plain", 1), ("fast", factor)):
            different = {"first_difference": 5, "logit_gap": 0.25} if name == "fast" and prompt == 2 else {}
            stats = STATS if name == "fast" else GenerationStatistics(rounds=10, tokens=10)
            found.append(Row("s", prompt, 0, name, 9.9, 10, [1] * 10, stats, 10**6 * (prompt + 1), **different))
            found += [Row("s", prompt, repeat, name, seconds / share, 10) for repeat, seconds in ((1, 1.0), (2, 3.0))]
    return found


def test_speed_is_the_median_over_prompts_of_tokens_by_seconds_of_all_repeats():
    plain, fast = summarise(rows(), METHODS).values()
    assert plain["tokens_per_second"] == 20 / 4 and plain["speedup"] == 1.0 and plain["speedup_interval"] == [1.0, 1.0]
    assert fast["tokens_per_second"] == 15.0 and fast["speedup"] == 3.0
    assert fast["speedup_interval"] == [2.0, 4.0]
    by_prompt = fast["by_prompt"]
    assert by_prompt["prompt"] == [0, 1, 2] and by_prompt["speedup"] == [2.0, 3.0, 4.0]
    assert by_prompt["new_tokens"][0] == [10, 10] and by_prompt["seconds"][0] == [0.5, 1.5]


def test_counts_are_summed_over_prompts():
    plain, fast = summarise(rows(), METHODS).values()
    assert (plain["verif"], plain["discard"], plain["tokens_per_target_pass"]) == (1.0, 0.0, 1.0)
    assert (fast["verif"], fast["discard"], fast["tokens_per_target_pass"]) == (12 / 30, 6 / 30, 30 / 12)
    assert fast["acceptance_by_position"] == [1.0, 0.5] and fast["drafted_by_position"] == [12, 12]
    assert fast["draft_seconds"] == 1.5 and fast["peak_mb"] == 3.0 and fast["stop_reasons"] == {"length": 12}
    assert (fast["drafted_by"], fast["accepted_by"]) == ({"model": 15, "lookup": 9}, {"model": 12, "lookup": 6})
    assert fast["equal_to_plain"] == 2 and plain["equal_to_plain"] == 3
    assert fast["differences"] == [{"prompt": 2, "position": 5, "logit_gap": 0.25}]
    assert total([STATS]) == STATS


def test_only_prompts_that_went_through_everything_count():
    found = rows()
    assert finished(found, METHODS, 2) == found
    assert {row.prompt for row in finished(found[:-1], METHODS, 2)} == {0, 1}
    assert {row.method for row in finished(found, METHODS[:1], 2)} == {"plain"}


def test_the_interval_of_a_median_is_the_bootstraps():
    values = [float(n) for n in range(101)]
    low, high = interval(values)
    # Order statistics: the median of 101 lies between the 41st and the 61st value with 95 %.
    assert low == pytest.approx(40, abs=2) and high == pytest.approx(60, abs=2)
    assert interval(values) == [low, high] and interval([2.0]) == [2.0, 2.0]


def test_the_replay_knows_fixed_lengths_thresholds_and_hindsight():
    def draft(accepted):
        return Draft([DraftedToken(k, 0.9 if k <= accepted else 0.1, 0.5, 0.5) for k in (1, 2)], accepted)

    traces = [Trace([1, 2, 3, 4, 5, 6], 6, [draft(a) for a in (0, 2, 0, 0, 1, 0)])]
    costs = CostProfile(0.1, (1.0, 1.0, 1.0))
    fixed = StoppingConfig(None, 1, 20, "fixed", {"length": 2})
    found = summarise_replay(traces, costs, 2, fixed, with_head=False)
    # Beside the prompt a draft of 2 fails, drafts of 2 and 1 (there is no more room) make rounds of 3 and 2.
    assert found["recommended"] == {"verif": 3 / 6, "discard": 2 / 6, "speedup": pytest.approx(5 / 2.5)}
    assert found["fixed"][1] == {"length": 2} | found["recommended"]
    assert found["oracle"]["speedup"] == pytest.approx(5 / 2.3) and found["oracle"]["discard"] == 0
    assert set(found["thresholds"]) == {"cumulative-confidence", "svip", "adaedl"}
    assert found["first_acceptance"] == first_acceptance(traces) == 2 / 6
    assert found["accepted_only_verif"] == 3 / 6


def test_the_path_through_a_tree_tells_who_proposed_what_was_accepted():
    tokens = [DraftedToken(1), DraftedToken(1, rank=2, source="lookup"), DraftedToken(2, source="lookup")]
    stats = GenerationStatistics()
    stats.hear(Round(tokens, 2, parents=[-1, -1, 0], path=[0, 2], new_tokens=3))
    assert stats.drafted_by == {"model": 1, "lookup": 2} and stats.accepted_by == {"model": 1, "lookup": 1}
    assert "lookup 2 (1 accepted), model 1 (1 accepted)" in str(stats)
    stats.trim(2)  # a stop string ended the text before the second
    assert stats.accepted_by == {"model": 1}
