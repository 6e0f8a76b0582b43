import pytest
from models import prompt

from hf_specdecpp import GenerationStatistics, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.evidence.statistics import active_statistics
from hf_specdecpp.stopping import DraftedToken, Round


def chain(drafted: int, accepted: int, new_tokens: int, **more) -> Round:
    tokens = [DraftedToken(place) for place in range(1, drafted + 1)]
    return Round(tokens, accepted, new_tokens=new_tokens, **{"stop_reason": "threshold"} | more)


def test_counts_of_rounds_worked_out_by_hand():
    """Round 1 drafts three tokens, of which two stay; round 2 drafts nothing; in round 3 all stay."""
    stats = GenerationStatistics()
    for each in (chain(3, 2, 3), chain(0, 0, 1, stop_reason=None), chain(2, 2, 3, draft_seconds=1.0)):
        stats.hear(each)
    assert (stats.rounds, stats.tokens, stats.drafted, stats.accepted, stats.discarded) == (3, 7, 5, 4, 1)
    assert stats.verification_rate == pytest.approx(3 / 7) and stats.discard_rate == pytest.approx(1 / 7)
    assert stats.tokens_per_target_pass == pytest.approx(7 / 3) and stats.acceptance_rate == pytest.approx(4 / 5)
    assert stats.acceptance_by_position == {1: 1.0, 2: 1.0, 3: 0.0}
    assert stats.stop_reasons == {"threshold": 2, "not said": 1} and stats.draft_seconds == 1.0


def test_a_level_of_a_tree_counts_as_drafted_once():
    """Two tokens behind the text and three behind them, of which one path of two is accepted."""
    stats = GenerationStatistics()
    tokens = [DraftedToken(place) for place in (1, 1, 2, 2, 2)]
    stats.hear(Round(tokens, 2, parents=[-1, -1, 0, 1, 1], path=[1, 4], new_tokens=3))
    assert (stats.drafted, stats.accepted, stats.tokens) == (5, 2, 3)
    assert stats.acceptance_by_position == {1: 1.0, 2: 1.0}


def test_the_identities_of_the_paper_hold_in_a_real_run(target, draft):
    """N = accepted + rounds, the pass over the prompt included, but for a last round that ends in an accepted run."""
    with collect_stats() as stats:
        output = target.generate(
            prompt(), max_new_tokens=40, do_sample=False, assistant_model=draft, candidate_generator=SpecDecPP,
            stopping_config=StoppingConfig(0.5),
        )  # fmt: skip
    assert stats.tokens == output.shape[1] - 7
    assert stats.tokens - stats.accepted - stats.rounds in (0, -1)
    assert sum(stats.drafted_at.values()) == stats.drafted and sum(stats.stop_reasons.values()) == stats.rounds
    assert stats.draft_seconds > 0 and stats.target_seconds > 0
    text = str(stats)
    assert f"tokens generated        {stats.tokens}" in text and "verification rate" in text


class InTransformersLoop(SpecDecPP):
    """A subclass runs transformers' own loop, which overruns stop strings and is trimmed."""


@pytest.mark.parametrize("generator", (SpecDecPP, InTransformersLoop))
def test_tokens_that_a_stop_string_trims_are_not_counted(target, draft, tokenizer, generator):
    ours = {
        "max_new_tokens": 30, "do_sample": False, "assistant_model": draft, "candidate_generator": generator,
        "stopping_config": StoppingConfig(1.0, max_draft_length=8), "tokenizer": tokenizer,
    }  # fmt: skip
    text = tokenizer.decode(target.generate(prompt(), **ours)[0, 7:])
    trimmed = 0
    for position in range(1, len(text) - 1, 2):
        with collect_stats() as outer, collect_stats() as stats:
            output = target.generate(prompt(), **ours, stop_strings=[text[position : position + 2]])
        assert stats.tokens == output.shape[1] - 7
        assert 0 <= stats.tokens - stats.accepted <= stats.rounds and sum(stats.accepted_at.values()) == stats.accepted
        assert (outer.tokens, outer.accepted) == (stats.tokens, stats.accepted)
        trimmed += stats.tokens - stats.accepted < stats.rounds
    assert trimmed > 1


def test_an_accepted_token_that_is_trimmed_is_discarded():
    stats = GenerationStatistics()
    stats.hear(chain(3, 3, 4))
    stats.trim(2)
    assert (stats.tokens, stats.drafted, stats.accepted, stats.discarded) == (2, 3, 2, 1)
    assert stats.acceptance_by_position == {1: 1.0, 2: 1.0, 3: 0.0}


def test_nothing_is_counted_outside_a_block_and_blocks_nest(target, draft):
    ours = {"max_new_tokens": 6, "assistant_model": draft, "candidate_generator": SpecDecPP}
    assert active_statistics() == ()
    with collect_stats() as outer:
        target.generate(prompt(), **ours)
        before = outer.rounds
        assert before > 0
        with collect_stats() as inner:
            target.generate(prompt(), **ours)
    target.generate(prompt(), **ours)
    assert inner.rounds > 0 and outer.rounds == before + inner.rounds and outer.tokens == 12
    assert "no assisted decoding was counted: give generate candidate_generator=" in str(GenerationStatistics())
