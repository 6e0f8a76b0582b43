"""What only shows in the long run: caches that drift, memory that grows, calls that are broken off."""

import gc

import psutil
import pytest
import torch
from models import prompt, ragged, similar_draft, tiny_model, with_head
from transformers import DynamicCache, TextStreamer

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.decoding.loop import Speculation

COSTS = {"draft_seconds": 0.05, "verify_seconds": [1.0, 1.001]}
DRAFTS = {
    "specdec++": (StoppingConfig(0.6), DraftingConfig(branches=1)),
    "fixed": (StoppingConfig(rule="fixed", settings={"length": 3}), DraftingConfig(branches=1)),
    "tree": (StoppingConfig(rule="eagle-2", settings={"nodes": 6, "depth": 3}), DraftingConfig(branches=2)),
    "mixed": (StoppingConfig(rule="cost-aware", settings={"costs": COSTS}), DraftingConfig(("model", "lookup"), 2)),
}


def assert_holds(engine, rows, texts, padding) -> None:
    """The cache holds what a fresh pass over the first `engine.lengths` tokens of each text leaves in one."""
    for place, (row, length) in enumerate(zip(rows, engine.lengths, strict=True)):
        fresh = DynamicCache()
        engine.model(torch.tensor([texts[row][padding[row] : length]]), past_key_values=fresh)
        for ours, theirs in zip(engine.cache.layers, fresh.layers, strict=True):
            for a, b in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                assert torch.allclose(a[place : place + 1, :, padding[row] : length], b, atol=1e-3, rtol=1e-3)


ROWS = {"one": ("llama", {"input_ids": prompt(9)}), "many": ("gemma3", ragged(3, 9, 6))}


@pytest.mark.parametrize(("architecture", "inputs"), ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", DRAFTS)
def test_after_every_round_the_caches_hold_what_a_fresh_pass_over_the_text_leaves(
    monkeypatch, architecture, kind, inputs
):
    target = tiny_model(architecture)
    draft = with_head(similar_draft(target))
    config, drafting = DRAFTS[kind]
    padding = (inputs["input_ids"] == 0).sum(-1).tolist()
    advance, rounds = Speculation._advance, []

    def checked(self, *args, **kwargs):
        advance(self, *args, **kwargs)
        texts, rows = self.sequences.texts, self.sequences.going
        if rows:
            model = getattr(self.drafter, "model", self.drafter)
            assert self.target.lengths == [len(texts[row]) - 1 for row in rows]
            assert all(held < len(texts[row]) for held, row in zip(model.engine.lengths, rows, strict=True))
            for engine in (self.target, model.engine):
                if any(engine.lengths):  # the draft reads the prompt when it first drafts
                    assert_holds(engine, rows, texts, padding)
            rounds.append(sum(model.engine.lengths))

    monkeypatch.setattr(Speculation, "_advance", checked)
    with collect_stats() as stats:
        target.generate(
            **inputs, max_new_tokens=20, do_sample=True, top_k=8, eos_token_id=[2, 100, 200], assistant_model=draft,
            candidate_generator=SpecDecPP, stopping_config=config, drafting_config=drafting,
        )  # fmt: skip
    assert len(rounds) > 5 and max(rounds) > rounds[0] and 0 < stats.accepted < stats.drafted


@pytest.mark.slow
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
