"""What a draft that reads the target's states drafts, against passes over whole texts without caches and masks."""

from functools import cache

import pytest
import torch
from models import informed_draft, prompt, tiny_model
from test_lossless import COSTS, GREEDY, MANY_ROWS, ONE_ROW, check, informed, repeating, rule, seeded
from transformers import DynamicCache

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig
from hf_specdecpp.decoding.engine import Engine
from hf_specdecpp.decoding.taps import Taps
from hf_specdecpp.drafting.model import ModelDrafter


@pytest.fixture
def grown(monkeypatch):
    """The texts at the beginning of each round, and what was drafted behind them."""
    rounds, original = [], ModelDrafter.grow

    def grow(self, plans):
        draft = original(self, plans)
        texts = [self.sequences.texts[row][self.sequences.padding[row] :] for row in self.sequences.going]
        known = draft.tokens is None
        for row, (text, nodes) in enumerate(zip(texts, draft.nodes, strict=True)):
            ids = [node.id for node in nodes] if known else draft.tokens[row].tolist()
            rounds.append((text, list(nodes), ids))
        return draft

    monkeypatch.setattr(ModelDrafter, "grow", grow)
    return rounds


@torch.no_grad()
def behind(target, draft, text: list[int], path: list[int], first: int = 0) -> list[int]:
    """The likeliest tokens behind `path`, three of them."""
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    taps = torch.cat([states[layer] for layer in draft.config.target_layers], dim=-1)[:, first:-1]
    found = draft(torch.tensor([text[first + 1 :]]), taps=taps, use_cache=True)
    for token in path:
        found = draft(torch.tensor([[token]]), states=found.states[:, -1:], past_key_values=found.past_key_values)
    return found.logits[0, -1].topk(3).indices.tolist()


def compare(target, draft, rounds, first: int = 0, behind=behind) -> None:
    """What was drafted is likeliest `behind` what comes before it, of which siblings share a pass."""
    assert sum(len(nodes) for _, nodes, _ in rounds) > 5
    passes = cache(lambda text, path: behind(target, draft, list(text), list(path), first))
    for text, nodes, ids in rounds:
        number = {id(node): token for node, token in zip(nodes, ids, strict=False)}
        for node in nodes:
            path = [number[id(each)] for each in node.path]
            assert passes(tuple(text), tuple(path[:-1]))[(node.token.rank or 1) - 1] == path[-1]


@pytest.mark.parametrize("inputs", (ONE_ROW, MANY_ROWS), ids=("one row", "many rows"))
@pytest.mark.parametrize(("name", "branches"), [("fixed", 1), ("specdec++", 1), ("eagle-2", 3)])
def test_drafts_are_those_of_whole_passes(grown, inputs, name, branches):
    """True states for the text, its own for what it drafts; rows end at different times."""
    target, draft, headed = informed()
    drafting = DraftingConfig(("model",), branches=branches, max_nodes=8)
    check(target, headed if name == "specdec++" else draft, rule(name), drafting, **inputs, **GREEDY)
    compare(target, draft, grown)


def test_states_wait_while_other_sources_draft(grown):
    """A mixture leaves rounds to lookup; the draft then catches up with all that it missed."""
    target = repeating()[0]
    texts = [seeded(target, 0, **ONE_ROW, **GREEDY, max_new_tokens=12, eos_token_id=2)[0][0]]
    draft = informed_draft(target, texts, steps=20)
    config = StoppingConfig(rule="cost-aware", settings={"costs": COSTS, "uses_head": False})
    drafting = DraftingConfig(("model", "lookup"), branches=2)
    rounds = check(target, draft, config, drafting, **ONE_ROW, **GREEDY, max_new_tokens=120, eos_token_id=2)
    assert 0 < len(grown) < len(rounds) - 1
    compare(target, draft, grown)


def test_a_draft_begins_at_the_first_token_that_there_are_states_of(grown):
    target, draft, _ = informed()
    kept, ids = DynamicCache(config=target.config), ONE_ROW["input_ids"]
    with torch.no_grad():
        target(ids[:, :6], past_key_values=kept)
    target.generate(
        ids, **GREEDY, max_new_tokens=20, past_key_values=kept, assistant_model=draft, candidate_generator=SpecDecPP,
        stopping_config=rule("eagle-2"), drafting_config=DraftingConfig(("model",), branches=2),
    )  # fmt: skip
    compare(target, draft, grown, first=6)


@pytest.mark.parametrize("layers", ((0, 2, 1), (1, 2), (2,)))
@pytest.mark.parametrize("architecture", ("llama", "gemma3", "gpt2", "opt", "gpt_neox"))
def test_taps_are_the_hidden_states_of_kept_tokens(architecture, layers):
    """Whatever transformers counts: 0 are the embeddings, the last is normed."""
    model, text = tiny_model(architecture), prompt(9)[0].tolist()
    taps = Taps(layers, 2)
    engine = Engine(model, [0, 0], taps)
    with torch.no_grad():
        engine.read(torch.tensor([text[:5]] * 2))
        engine.keep([[*range(5)]] * 2)
        # The text goes on by numbers 0 and 2 of a tree in the first row, by none in the second, which leaves.
        engine.read(torch.tensor([[text[5], 9, text[6]], [7, 8, 9]]), torch.tensor([[-1, 0, 0], [-1, 0, 1]]))
        engine.keep([[0, 2], []])
        engine.leave([0])
        [found] = taps.take()
        states = model(torch.tensor([text[:7]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(found, torch.cat([states[i][0] for i in layers], dim=-1), atol=2e-3, rtol=1e-3)
    assert [len(own) for own in taps.kept] == [0]


def test_transformers_own_loop_is_refused():
    target, draft, _ = informed()
    with pytest.raises(ValueError, match="which transformers' own loop does not hand on: leave out"):
        target.generate(
            **ONE_ROW, assistant_model=draft, candidate_generator=SpecDecPP, output_hidden_states=True,
            return_dict_in_generate=True, stopping_config=rule("fixed"), max_new_tokens=4,
        )  # fmt: skip


def test_a_draft_for_another_target_is_refused():
    _, draft, _ = informed()
    with pytest.raises(ValueError, match="for a target with states of width 32, and this one has 48"):
        tiny_model(hidden_size=48).generate(
            **ONE_ROW,
            assistant_model=draft,
            candidate_generator=SpecDecPP,
            stopping_config=rule("fixed"),
            max_new_tokens=4,
        )
