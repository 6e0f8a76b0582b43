"""What only shows in the long run: caches that drift, memory that grows, calls that are broken off."""

import gc

import psutil
import pytest
import torch
from conftest import prompt, tiny_model
from transformers import TextStreamer

from hf_specdecpp import SpecDecPP, StoppingConfig, collect_stats

RULES = {
    "specdec++": StoppingConfig(0.6),
    "cost-aware": StoppingConfig(rule="cost-aware"),
    "fixed": StoppingConfig(rule="fixed", settings={"length": 3}),
}


@pytest.mark.parametrize("config", RULES.values(), ids=RULES)
def test_between_rounds_the_caches_hold_the_sequence_and_no_more(target, draft, config):
    lengths, rounds = [], []

    class Watched(SpecDecPP):
        def get_candidates(self, input_ids, **kwargs):
            held = self.cache.get_seq_length()
            candidates, scores = super().get_candidates(input_ids, **kwargs)
            rounds.append((held, self.cache.get_seq_length(), input_ids.shape[1], candidates.shape[1]))
            return candidates, scores

    def watch(module, args, kwargs):
        lengths.append((kwargs["past_key_values"].get_seq_length(), kwargs["input_ids"].shape[1]))

    hook = target.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        with collect_stats() as stats:
            target.generate(
                prompt(9), max_new_tokens=400, do_sample=False, eos_token_id=None, assistant_model=draft,
                candidate_generator=Watched, stopping_config=config,
            )  # fmt: skip
    finally:
        hook.remove()
    assert len(rounds) == len(lengths) == stats.rounds > 20 and 0 < stats.accepted < stats.drafted
    previous = 0
    for number, ((held, left, length, proposed), (cached, read)) in enumerate(zip(rounds, lengths, strict=True)):
        assert cached + read == proposed and cached == (length - 1 if number else 0)
        assert held == previous
        assert left == (proposed - 1 if proposed > length else min(held, length - 1))
        previous = left


def test_two_thousand_calls_leave_nothing_behind():
    target = tiny_model(num_hidden_layers=1, hidden_size=16)
    draft = tiny_model(num_hidden_layers=1, hidden_size=16, seed=1)
    ids = [prompt(length, length) for length in range(3, 9)]
    config = StoppingConfig(0.8, rule="cumulative-confidence", min_draft_length=1)

    def held() -> tuple[int, int]:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()), psutil.Process().memory_info().rss

    for call in range(2001):
        target.generate(
            ids[call % len(ids)], max_new_tokens=4, do_sample=call % 2 == 1, assistant_model=draft,
            candidate_generator=SpecDecPP, stopping_config=config,
        )  # fmt: skip
        if call == 200:
            tensors, memory = held()
    more_tensors, more_memory = held()
    assert more_tensors == tensors
    # 4 kB a call would be 7 MB: the size of one key-value cache of this pair.
    assert more_memory - memory < 7e6


class Breaks(TextStreamer):
    def __init__(self, tokenizer, error):
        super().__init__(tokenizer)
        self.error = error

    def on_finalized_text(self, text, stream_end=False):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("the terminal is gone")], ids=lambda e: repr(e)[:9])
@pytest.mark.parametrize("where", ["streamer", "draft", "target"])
def test_a_call_that_is_broken_off_leaves_all_as_it_was(target, draft, tokenizer, where, error):
    ours = {"assistant_model": draft, "candidate_generator": SpecDecPP, "stopping_config": StoppingConfig(0.6)}
    models = {"target": target, "draft": draft.get_base_model()}
    greedy = {"max_new_tokens": 30, "do_sample": False}

    def state():
        return [
            (set(vars(m)), m.config.to_dict(), m.generation_config.to_dict(), len(m._forward_pre_hooks))
            for m in models.values()
        ]

    plain, before, calls = target.generate(prompt(), **greedy), state(), []

    def break_off(module, args):
        calls.append(module)
        if len(calls) == 5:
            raise error

    with pytest.raises(type(error)):
        if where == "streamer":
            target.generate(prompt(), **greedy, **ours, streamer=Breaks(tokenizer, error))
        else:
            hook = models[where].register_forward_pre_hook(break_off)
            try:
                target.generate(prompt(), **greedy, **ours)
            finally:
                hook.remove()
    assert state() == before
    with collect_stats() as stats:
        assert target.generate(prompt(), **greedy, **ours).tolist() == plain.tolist()
    assert stats.accepted > 0
