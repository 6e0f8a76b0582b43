"""Drafts of blocks: the law of the library, and what they draft against passes over whole texts without caches."""

import copy
from functools import cache

import pytest
import torch
from datasets import Dataset
from models import VOCAB, block_draft, slow, tiny_model, with_head
from test_informed import compare, grown  # noqa: F401
from test_lossless import FREE, GREEDY, HEAD, MANY_ROWS, ONE_ROW, SAMPLING, accepted, check, drafted, rule, seeded
from transformers import DynamicCache

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig
from hf_specdecpp.costs.measure import measure_costs
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.decoding.taps import read_whole
from hf_specdecpp.drafting.informed.config import layers_read
from hf_specdecpp.drafting.informed.dflash import DFlashForCausalLM, DSparkForCausalLM
from hf_specdecpp.drafting.model import ModelDrafter
from hf_specdecpp.drafting.pair import Pair
from hf_specdecpp.evidence import trace
from hf_specdecpp.evidence.trace import branches_of
from hf_specdecpp.training.head_inputs import places_in_rounds
from hf_specdecpp.training.label_folder import LabelsCard
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.pipeline import label_prompts
from hf_specdecpp.training.unrolled import label_unrolled

KINDS = {
    "dflash": (DFlashForCausalLM, {}),
    "windows": (DFlashForCausalLM, {
        "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "use_sliding_window": True,
        "sliding_window": 6,
    }),
    "dspark": (DSparkForCausalLM, {}),
    "rnn": (DSparkForCausalLM, {"markov_head_type": "rnn", "sample_from_anchor": False}),
}  # fmt: skip


@cache
def models(name: str):
    """A target and a draft, which learns from texts like those that are compared."""
    target, texts = tiny_model(), []
    for mode in (GREEDY, SAMPLING):
        for inputs, lengths in ((ONE_ROW, (11,)), (MANY_ROWS, (4, 19, 11))):
            found, _ = seeded(target, 0, **inputs, **mode, max_new_tokens=20, eos_token_id=[2, 100])
            texts += [row[max(lengths) - length :] for row, length in zip(found, lengths, strict=True)]
    kind, settings = KINDS[name]
    return target, block_draft(target, texts, kind, **settings)


@pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
@pytest.mark.parametrize("name", (slow("dflash"), "windows", slow("dspark"), "rnn"))
def test_the_output_is_the_targets(name, mode):
    """Chains and trees, one row and many, alone and mixed with lookup; rows end and leave."""
    target, draft = models(name)
    costs = StoppingConfig(rule="cost-aware", settings={"costs": FREE, "uses_head": False})
    rounds = []
    for inputs in (ONE_ROW, MANY_ROWS):
        for config, branches, sources in (
            (rule("fixed"), 1, ("model",)), (rule("svip"), 1, ("model",)), (rule("eagle-2"), 3, ("model",)),
            (costs, 1, ("model",)), (costs, 3, ("model",)), (costs, 2, ("model", "lookup", "recycling")),
        ):  # fmt: skip
            drafting = DraftingConfig(sources, branches=branches, max_nodes=8)
            found = check(target, draft, config, drafting, **inputs, **mode)
            assert drafted(found) > 0 and max(each.passes for each in found) == 1
            rounds += found
    assert 0 < accepted(rounds) < drafted(rounds)


@torch.no_grad()
def last_place(target, draft, text: list[int], path: list[int], first: int) -> tuple[torch.Tensor, float | None]:
    """Logits behind `path`, and how sure the draft is of what it draws there, by a pass without a cache."""
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    taps = torch.cat([states[layer] for layer in draft.config.target_layers], dim=-1)[:, first:-1]
    masks = [draft.config.mask_token_id] * (draft.config.block_size - 1)
    found = draft(torch.tensor([text[first:] + masks]), taps=taps)
    before, memory = [text[-1], *path], None
    if not draft.config.sample_from_anchor:
        before.insert(0, text[-1])
    for place, token in enumerate(before):
        logits, memory = draft.biased(found.logits[:, place], torch.tensor([token]), found.states[:, place], memory)
    if draft.confidence_head is None:
        return logits[0], None
    return logits[0], draft.confidence(torch.tensor([token]), found.states[:, place]).sigmoid().item()


def behind(*args) -> list[int]:
    """The likeliest tokens behind a path, three of them."""
    return last_place(*args)[0].topk(3).indices.tolist()


@pytest.mark.parametrize("inputs", (ONE_ROW, MANY_ROWS), ids=("one row", "many rows"))
@pytest.mark.parametrize(("name", "config", "branches"), [
    ("dflash", "fixed", 1), ("windows", "eagle-2", 3), slow("dspark", "eagle-2", 3), slow("rnn", "fixed", 1),
    ("rnn", "eagle-2", 3),
])  # fmt: skip
def test_drafts_are_those_of_whole_passes(grown, inputs, name, config, branches):  # noqa: F811
    """Rows end at different times; a block leaves nothing behind."""
    target, draft = models(name)
    drafting = DraftingConfig(("model",), branches=branches, max_nodes=8)
    check(target, draft, rule(config), drafting, **inputs, **GREEDY)
    compare(target, draft, grown, behind=behind)


def test_a_draft_begins_at_the_first_token_that_there_are_states_of(grown):  # noqa: F811
    target, draft = models("dflash")
    kept, ids = DynamicCache(config=target.config), ONE_ROW["input_ids"]
    with torch.no_grad():
        target(ids[:, :6], past_key_values=kept)
    target.generate(
        ids, **GREEDY, max_new_tokens=20, past_key_values=kept, assistant_model=draft, candidate_generator=SpecDecPP,
        stopping_config=rule("fixed"), drafting_config=DraftingConfig(("model",)),
    )  # fmt: skip
    compare(target, draft, grown, 6, behind)


def test_of_a_block_the_rule_weighs_verification_alone():
    """A pass of the draft takes as long as four of the target: token by token nothing pays, a block does."""
    target, draft = models("dspark")
    costs = {"draft_seconds": 1.0, "verify_seconds": [1.0, 1.0001]}
    config = StoppingConfig(rule="cost-aware", settings={"costs": costs, "uses_head": False})
    rounds = check(target, draft, config, DraftingConfig(("model",), branches=1), **ONE_ROW, **GREEDY)
    assert max(len(each.drafted) for each in rounds) == draft.config.drafted
    dear = StoppingConfig(rule="cost-aware", settings={
        "costs": {"draft_seconds": 0.01, "verify_seconds": [1.0, 1.3, 3.0]}, "uses_head": False,
    })  # fmt: skip
    rounds = check(target, draft, dear, DraftingConfig(("model",), branches=1), **ONE_ROW, **GREEDY)
    assert max(len(each.drafted) for each in rounds) == 1


@pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
@pytest.mark.parametrize("name", ("goodput", "cost-aware"))
def test_a_rule_that_learns_its_costs(name, mode):
    """What it decides depends on the clock, the text does not; all sources serve."""
    target, draft = models("rnn")
    config = StoppingConfig(rule=name, settings={"uses_head": False} if name == "cost-aware" else {})
    for inputs in (ONE_ROW, MANY_ROWS):
        check(target, draft, config, **inputs, **mode, max_new_tokens=30)


@cache
def confident(name: str):
    """Like `models`, with a confidence head of many opinions."""
    target, draft = models(name)
    draft = copy.deepcopy(draft)
    with torch.no_grad():
        draft.confidence_head.proj.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return target, draft


@pytest.mark.parametrize(
    ("name", "config", "branches", "inputs"),
    [("dspark", "specdec++", 1, MANY_ROWS), ("rnn", "cost-aware", 3, ONE_ROW)],
    ids=("chains", "trees"),
)
def test_a_confidence_head_is_what_a_rule_hears(grown, name, config, branches, inputs):  # noqa: F811
    """Of each token before it is drawn, so siblings have one probability."""
    target, draft = confident(name)
    drafting = DraftingConfig(("model",), branches=branches, max_nodes=8)
    check(target, draft, rule(config), drafting, **inputs, **GREEDY)
    heard, passes = set(), cache(lambda text, path: last_place(target, draft, list(text), list(path), 0)[1])
    for text, nodes, _ in grown:
        for node in nodes:
            before = tuple(each.id for each in node.path[:-1])
            assert node.token.acceptance == pytest.approx(passes(tuple(text), before), abs=1e-5)
            heard.add(round(node.token.acceptance, 3))
    assert len(heard) > 10 and max(heard) - min(heard) > 0.1


def test_a_confidence_head_stops_drafts():
    """A round goes on as long as the product of what it says is above 1 - threshold."""
    target, draft = confident("dspark")
    drafting = DraftingConfig(("model",), branches=1)
    lengths = {}
    for threshold in (0.0, 0.5, 1.0):
        rounds = check(target, draft, StoppingConfig(threshold), drafting, **ONE_ROW, **GREEDY)
        rounds = rounds[1:-2]  # nothing is drafted beside the prompt
        lengths[threshold] = sum(len(each.drafted) for each in rounds) / len(rounds)
    assert lengths[0.0] == 1 < lengths[0.5] < lengths[1.0]


@pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
def test_a_draft_with_a_confidence_head_needs_no_setting(mode):
    """The cost-aware rule serves, which asks the head."""
    target, draft = confident("rnn")
    settings = Pair.of(draft, None).settings(target.generation_config)
    assert settings.rule == "cost-aware" and settings.needs_head
    for inputs in (ONE_ROW, MANY_ROWS):
        check(target, draft, **inputs, **mode)


def test_a_mounted_head_comes_before_a_confidence_head():
    target, draft = confident("dspark")
    headed = with_head(copy.deepcopy(draft), **HEAD)
    drafting = DraftingConfig(("model",), branches=1)
    ours, own = (
        check(target, each, rule("specdec++"), drafting, **ONE_ROW, **GREEDY)[1].drafted[0].acceptance
        for each in (headed, draft)
    )
    assert abs(ours - own) > 0.01 and Pair.of(headed, None).head.features == HEAD["features"]


def test_a_draft_without_any_head_says_so():
    target, draft = models("dflash")
    with pytest.raises(ValueError, match="has no acceptance head"):
        check(target, draft, StoppingConfig(0.5), **ONE_ROW, **GREEDY)


def test_costs_are_those_of_one_pass_a_block():
    """A pass of the draft is measured whole, whatever is kept of its block."""
    target, draft = models("dflash")
    profile = measure_costs(target, draft, max_draft_length=3, context_length=16, repeats=1)
    assert len(profile.verify_seconds) == 4 and profile.draft_seconds > 0


@pytest.mark.parametrize("name", KINDS)
def test_branches_are_what_is_drafted(monkeypatch, name):
    """At every place of a generation: the logits that a token was drawn from, and what a head read."""
    target, draft = models(name)
    headed, met, original = with_head(copy.deepcopy(draft), **HEAD), [], ModelDrafter._children

    def children(self, frontier, behind, *args):
        [[_, node]] = frontier
        length, path = self.sequences.length(0), [] if node is None else [each.id for each in node.path]
        met.append((length, path, behind.logits[0], behind.states[0]))
        return original(self, frontier, behind, *args)

    monkeypatch.setattr(ModelDrafter, "_children", children)
    monkeypatch.setattr(trace, "BLOCKS_PER_PASS", 3)
    drafting = DraftingConfig(("model",), branches=1)
    settings = {"stopping_config": StoppingConfig(1.0), "drafting_config": drafting, "max_new_tokens": 20}
    text = target.generate(
        **ONE_ROW, **GREEDY, assistant_model=headed, candidate_generator=SpecDecPP, **settings, eos_token_id=2
    )  # fmt: skip
    with torch.no_grad():
        taps = read_whole(target, text, layers_read(draft.config, target.config))[1]
        branches = branches_of(headed, text, VOCAB, taps)
        for depth in range(branches.reach):
            level = [place for place in met if len(place[1]) == depth]
            logits, states = branches.begin(torch.tensor([length for length, *_ in level]))
            for read in range(depth):
                logits, states = branches.read(torch.tensor([path[read] for _, path, *_ in level]))
            torch.testing.assert_close(logits, torch.stack([each[2] for each in level]), atol=1e-4, rtol=1e-4)
            heard = torch.stack([each[3] for each in level])
            torch.testing.assert_close(states.float(), heard, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("decoding", (Decoding(), Decoding(True, top_k=20)), ids=("greedy", "sampling"))
@pytest.mark.parametrize("name", ("windows", "rnn"))
def test_labels_are_those_of_rounds_drafted_alone(name, decoding):
    """Rounds end with their block; what the target then adds was not drafted."""
    target, ids, (kind, settings) = tiny_model(), ONE_ROW["input_ids"], KINDS[name]
    text = target.generate(ids, **GREEDY, max_new_tokens=20, eos_token_id=2)[0]
    draft = block_draft(target, [text], kind, steps=100, **settings, block_size=3)
    prompt, response, reach = ids[0].tolist(), text[ids.shape[1] :].tolist(), draft.config.drafted
    [row] = label_unrolled(target, draft, [prompt], [response], "mode", decoding, ["before"], seed=0)
    assert row["mode_drawn"][0] == row["mode_acceptance"][0] == -1  # nothing is drafted beside the prompt
    states = torch.tensor(row["mode_before"]).view(len(response), -1)
    positions = places_in_rounds(torch.tensor(row["mode_drawn"]) == torch.tensor(response)).tolist()
    begun, whole = 1, 0
    for place, (drawn, token) in enumerate(zip(row["mode_drawn"], response, strict=True)):
        depth = place - begun
        if depth in (-1, reach):
            assert drawn == row["mode_acceptance"][place] == -1 and not states[place].any()
            begun, whole = place + 1, whole + (depth == reach)
            continue
        logits, _ = last_place(target, draft, prompt + response[:begun], response[begun:place], 0)
        q = decoding.probabilities(logits[None])[0] if decoding.do_sample else logits.softmax(-1)
        assert row["mode_probability"][place] == pytest.approx(q[drawn].item(), abs=1e-4)
        assert decoding.do_sample or drawn == logits.argmax()
        if not decoding.do_sample:
            assert row["mode_acceptance"][place] == (drawn == token)
        assert positions[place] == depth + 1 and states[place].any()
        begun = begun if drawn == token else place + 1
    assert whole > 0


def test_there_is_no_state_after_a_token_of_a_block(tmp_path):
    target, draft = models("dflash")
    card = LabelsCard.of(
        target, draft, Decoding(), {"greedy": Decoding()}, Rows(), states=["before", "after"], max_new_tokens=8,
        batch_size=1, seed=0, prompts=1, prompts_sha256="0",
    )  # fmt: skip
    with pytest.raises(ValueError, match="has no state after a token: label with --states before"):
        label_prompts(target, draft, Dataset.from_dict({"prompt_ids": [[5, 6, 7]]}), tmp_path, card)
    assert not list(tmp_path.iterdir())


def test_transformers_own_loop_is_refused():
    target, draft = models("dflash")
    with pytest.raises(ValueError, match="which transformers' own loop does not hand on: leave out"):
        target.generate(
            **ONE_ROW, assistant_model=draft, candidate_generator=SpecDecPP, output_hidden_states=True,
            return_dict_in_generate=True, stopping_config=rule("fixed"), max_new_tokens=4,
        )  # fmt: skip
