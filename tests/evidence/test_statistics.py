import pytest
import torch
from conftest import prompt

from hf_specdecpp import GenerationStatistics, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.evidence.statistics import active_statistics


class Script:
    """A generator that proposes what it is told."""

    stop_reason = "threshold"

    def __init__(self, drafts):
        self.drafts = iter(drafts)

    def get_candidates(self, input_ids):
        return torch.cat((input_ids, torch.tensor([next(self.drafts)], dtype=torch.long)), dim=-1), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        pass


def test_counts_of_rounds_worked_out_by_hand():
    """Round 1 drafts 5 6 7, of which 5 6 stay and 8 replaces 7; round 2 drafts nothing; in round 3 all stay."""
    stats = GenerationStatistics()
    generator = Script([[5, 6, 7], [], [3, 4]])
    stats.watch(generator)
    ids = torch.tensor([[1]])
    for new in ([5, 6, 8], [9], [3, 4, 2]):
        generator.get_candidates(ids)
        ids = torch.cat((ids, torch.tensor([new])), dim=-1)
        generator.update_candidate_strategy(ids, None, len(new) - 1)
    assert (stats.rounds, stats.tokens, stats.drafted, stats.accepted, stats.discarded) == (3, 7, 5, 4, 1)
    assert stats.verification_rate == pytest.approx(3 / 7) and stats.discard_rate == pytest.approx(1 / 7)
    assert stats.tokens_per_target_pass == pytest.approx(7 / 3) and stats.acceptance_rate == pytest.approx(4 / 5)
    assert stats.acceptance_by_position == {1: 1.0, 2: 1.0, 3: 0.0}
    assert stats.stop_reasons == {"threshold": 3}


def test_an_accepted_end_of_sequence_counts_as_accepted():
    stats = GenerationStatistics()
    generator = Script([[5, 2]])
    stats.watch(generator)
    generator.get_candidates(torch.tensor([[1]]))
    generator.update_candidate_strategy(torch.tensor([[1, 5, 2]]), None, 1)
    assert stats.accepted == 2 and stats.discarded == 0


def test_the_identities_of_the_paper_hold_in_a_real_run(target, draft):
    """N = accepted + rounds, but for a last round that ends inside an accepted run."""
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


def test_tokens_that_a_stop_string_trims_are_not_counted(target, draft, tokenizer):
    ours = {
        "max_new_tokens": 30, "do_sample": False, "assistant_model": draft, "candidate_generator": SpecDecPP,
        "stopping_config": StoppingConfig(1.0, max_draft_length=8), "tokenizer": tokenizer,
    }  # fmt: skip
    text = tokenizer.decode(target.generate(prompt(), **ours)[0, 7:])
    trimmed = 0
    for position in range(1, len(text) - 1):
        with collect_stats() as outer, collect_stats() as stats:
            output = target.generate(prompt(), **ours, stop_strings=[text[position : position + 2]])
        assert stats.tokens == output.shape[1] - 7
        assert 0 <= stats.tokens - stats.accepted <= stats.rounds and sum(stats.accepted_at.values()) == stats.accepted
        assert (outer.tokens, outer.accepted) == (stats.tokens, stats.accepted)
        trimmed += stats.tokens - stats.accepted < stats.rounds
    assert trimmed > 3


def test_an_accepted_token_that_is_trimmed_is_discarded():
    stats = GenerationStatistics()
    generator = Script([[5, 6, 7]])
    stats.watch(generator)
    generator.get_candidates(torch.tensor([[1]]))
    generator.update_candidate_strategy(torch.tensor([[1, 5, 6, 7, 8]]), None, 3)
    stats.trim(2)  # 7 and 8
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
