"""The law of the library: the output is the target's own, token for token, under the same seed."""

import copy
from functools import cache

import pytest
import torch
from models import CONFIGS, heard, informed_draft, prompt, ragged, similar_draft, slow, tiny_model, with_head
from transformers import DynamicCache

from hf_specdecpp import DraftingConfig, LookupStore, RecyclingTable, SpecDecPP, StoppingConfig
from hf_specdecpp.stopping import RULES

COSTS = {"draft_seconds": 0.1, "verify_seconds": [1.0, 1.01, 1.02]}
FREE = {"draft_seconds": 0.01, "verify_seconds": [1.0, 1.0001]}  # trees pay
EVERY_RULE = {
    "adaedl": {},
    "all": {"rules": [{"rule": "svip", "threshold": 0.2}, {"rule": "confidence", "threshold": 0.6}]},
    "any": {"rules": [{"rule": "svip", "threshold": 0.5}, {"rule": "specdec++", "threshold": 0.4}]},
    "cape": {"length": 3},
    "confidence": {},
    "cost-aware": {"costs": FREE},
    "cumulative-confidence": {},
    "drop-in": {"costs": COSTS},
    "eagle-2": {"nodes": 7, "depth": 3},
    "fixed": {"length": 3},
    "goodput": {"costs": COSTS},
    "heuristic": {"length": 3},
    "specdec++": {},
    "svip": {},
}
TREES = ("cape", "cost-aware", "eagle-2")
HEAD = {"reads": "before", "features": ["probability", "entropy"]}
GREEDY, SAMPLING = {"do_sample": False}, {"do_sample": True, "top_k": 20, "temperature": 0.9}
ONE_ROW, MANY_ROWS = {"input_ids": prompt(11)}, ragged(4, 19, 11)


def rule(name: str) -> StoppingConfig:
    return StoppingConfig(rule=name, settings=EVERY_RULE[name], max_draft_length=6)


@cache
def models(architecture: str):
    """A target, a draft without a head, and one with a head."""
    target = tiny_model(architecture)
    # Random models of these two repeat a few tokens, whatever is drafted.
    draft = similar_draft(target, 0.5 if architecture in ("gpt2", "opt") else 0.15)
    return target, draft, with_head(copy.deepcopy(draft), **HEAD)


@cache
def repeating():
    """A target whose next token depends on the last alone, so that texts repeat, and a draft."""
    target = tiny_model()
    with torch.no_grad():
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return target, similar_draft(target, 0.3)


def seeded(model, seed, **settings):
    """What `generate` returns under `seed`, and where it leaves the generator."""
    torch.manual_seed(seed)
    return model.generate(**settings), torch.get_rng_state()


PLAIN = {}


def plainly(target, seed, **settings):
    """`seeded` without speculation, once for all that is compared with it."""
    key = target, seed, *((name, str(value)) for name, value in sorted(settings.items()))
    if key not in PLAIN:
        PLAIN[key] = seeded(target, seed, **settings)
    return PLAIN[key]


def check(target, draft, config=None, drafting=None, seed=0, **settings):
    """Generates with and without speculation under one seed, and returns the rounds."""
    settings = {"max_new_tokens": 20, "eos_token_id": [2, 100]} | settings
    kept = ("lookup_store", "recycling_table", "cache_implementation", "compile_config", "disable_compile")
    plain, after = plainly(target, seed, **{name: value for name, value in settings.items() if name not in kept})
    with heard() as rounds:
        ours, then = seeded(
            target, seed, **settings, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config,
            drafting_config=drafting,
        )  # fmt: skip
    assert ours.tolist() == plain.tolist()
    assert torch.equal(then, after)
    return rounds


def drafted(rounds) -> int:
    return sum(len(each.drafted) for each in rounds)


def accepted(rounds) -> int:
    return sum(each.accepted for each in rounds)


def test_every_rule_is_here():
    assert set(EVERY_RULE) == set(RULES)


QUICK = ("llama", "gemma3", "gpt2", "qwen2_mixed")


@pytest.mark.parametrize("architecture", [name if name in QUICK else slow(name) for name in CONFIGS])
def test_every_architecture(architecture):
    """Chains and trees, greedy and sampling, one row and many; windows end within the texts."""
    target, draft, headed = models(architecture)
    chain, tree = DraftingConfig(branches=1), DraftingConfig(branches=3, max_nodes=7)
    mixed = DraftingConfig(("model", "lookup", "recycling"), branches=2, max_nodes=9)
    rounds = check(target, headed, rule("specdec++"), chain, **ONE_ROW, **GREEDY, max_new_tokens=32)
    rounds += check(target, draft, rule("fixed"), chain, **MANY_ROWS, **SAMPLING)
    assert all(each.parents is None for each in rounds)
    branched = check(target, draft, rule("eagle-2"), tree, **MANY_ROWS, **GREEDY)
    branched += check(target, headed, rule("cost-aware"), tree, **ONE_ROW, **SAMPLING)
    branched += check(target, headed, rule("cost-aware"), mixed, **MANY_ROWS, **SAMPLING)
    branched += check(target, None, None, DraftingConfig(branches=2), **MANY_ROWS, **GREEDY)
    assert any(each.parents is not None for each in branched)
    # The comparison would mean little if nothing had been drafted, accepted and rejected.
    assert 0 < accepted(rounds) < drafted(rounds) and 0 < accepted(branched) < drafted(branched)


@pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
@pytest.mark.parametrize("name", EVERY_RULE)
def test_every_rule(name, mode):
    target, _, headed = models("llama")
    for inputs in (ONE_ROW, MANY_ROWS):
        for branches in (1, 3) if name in TREES else (1,):
            drafting = DraftingConfig(("model",), branches=branches, max_nodes=8)
            rounds = check(target, headed, rule(name), drafting, **inputs, **mode)
            assert 0 < accepted(rounds) < drafted(rounds)
            assert any(each.parents is not None for each in rounds) == (branches > 1)


WITH_DRAFT = (("model",), ("model", "lookup"), ("model", "lookup", "recycling"))
WITHOUT = (("lookup",), ("recycling",), ("lookup", "recycling"))


@pytest.mark.parametrize("mode", (GREEDY, SAMPLING | {"temperature": 0.3}), ids=("greedy", "sampling"))
@pytest.mark.parametrize("sources", (*WITH_DRAFT, *WITHOUT), ids="+".join)
def test_every_source_alone_and_mixed(sources, mode):
    target, draft = repeating()
    settings = {"costs": COSTS, "uses_head": False}
    config = StoppingConfig(rule="cost-aware", settings=settings)
    for branches in (1, 3):
        drafting, rounds = DraftingConfig(sources, branches=branches), []
        for inputs in (ONE_ROW, MANY_ROWS):
            assistant = draft if "model" in sources else None
            rounds += check(target, assistant, config, drafting, **inputs, **mode, max_new_tokens=40, eos_token_id=2)
        found = {token.source for each in rounds for token, is_accepted in each.verified() if is_accepted}
        # Where a text repeats itself lookups are worth more than the table, which may then come to nothing.
        assert set(sources) - {"recycling"} <= found <= set(sources) and found


@pytest.mark.parametrize(
    ("sources", "coupling"),
    [
        (("lookup",), "seeded"), (("recycling",), "rejection"), (WITH_DRAFT[-1], "seeded"),
        slow(("lookup",), "rejection"), slow(("recycling",), "seeded"), slow(("lookup", "recycling"), "seeded"),
        slow(("lookup", "recycling"), "rejection"), slow(WITH_DRAFT[-1], "rejection"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)  # fmt: skip
def test_whatever_a_store_and_a_table_hold(sources, coupling):
    """Filled by what sampling said under another seed and by random tokens, alone and mixed, one row and many."""
    target, draft = repeating()
    config = StoppingConfig(rule="cost-aware", settings={"costs": FREE, "uses_head": False})
    assistant = draft if "model" in sources else None
    kept = {}
    if "lookup" in sources:
        kept["lookup_store"] = LookupStore(max_tokens=300)
        kept["lookup_store"].add(prompt(120, seed=5)[0])
    if "recycling" in sources:
        kept["recycling_table"] = RecyclingTable(target.config.vocab_size)
        kept["recycling_table"].successors.random_(0, target.config.vocab_size)
    rounds = []
    for branches in (1, 3):
        drafting = DraftingConfig(sources, branches=branches, coupling=coupling)
        for inputs in (ONE_ROW, MANY_ROWS):
            settings = {**inputs, "max_new_tokens": 30, "eos_token_id": 2, **kept}
            seeded(
                target, 7, **settings, **SAMPLING, assistant_model=assistant, candidate_generator=SpecDecPP,
                stopping_config=config, drafting_config=drafting,
            )  # fmt: skip
            rounds += check(target, assistant, config, drafting, **settings, **GREEDY)
            if coupling == "seeded":
                rounds += check(target, assistant, config, drafting, **settings, **SAMPLING | {"temperature": 0.3})
    assert 0 < accepted(rounds) < drafted(rounds)


@cache
def informed(architecture: str = "llama"):
    """A target, an EAGLE-3 draft, and one with a head; they learn from texts like those that are compared."""
    target, texts = tiny_model(architecture), []
    for mode in (GREEDY, SAMPLING):
        for inputs, lengths in ((ONE_ROW, (11,)), (MANY_ROWS, (4, 19, 11))):
            found, _ = seeded(target, 0, **inputs, **mode, max_new_tokens=20, eos_token_id=[2, 100])
            texts += [row[max(lengths) - length :] for row, length in zip(found, lengths, strict=True)]
    draft = informed_draft(target, texts)
    return target, draft, with_head(copy.deepcopy(draft), **HEAD)


@pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
@pytest.mark.parametrize("name", ("fixed", "specdec++", "cumulative-confidence", "eagle-2", "cost-aware"))
def test_a_draft_that_reads_the_target(name, mode):
    """Chains and trees, one row and many, alone and mixed with lookup; rows end and leave."""
    target, draft, headed = informed()
    assistant = draft if name in ("fixed", "eagle-2") else headed
    for inputs in (ONE_ROW, MANY_ROWS):
        for branches in (1, 3) if name in TREES else (1,):
            for sources in (("model",), ("model", "lookup")) if name == "cost-aware" else (("model",),):
                drafting = DraftingConfig(sources, branches=branches, max_nodes=8)
                rounds = check(target, assistant, rule(name), drafting, **inputs, **mode)
                assert 0 < accepted(rounds) < drafted(rounds)
                assert any(each.parents is not None for each in rounds) == (branches > 1)


@pytest.mark.parametrize("architecture", ("gemma3", "gpt2", slow("opt"), slow("qwen3")))
def test_a_draft_that_reads_the_target_of_other_architectures(architecture):
    target, draft, _ = informed(architecture)
    for mode in (GREEDY, SAMPLING):
        rounds = check(target, draft, rule("eagle-2"), DraftingConfig(("model",), branches=2), **MANY_ROWS, **mode)
        assert 0 < accepted(rounds) < drafted(rounds)


@pytest.mark.parametrize("name", ("fixed", "eagle-2"))
@pytest.mark.parametrize("inputs", (ONE_ROW, MANY_ROWS), ids=("one row", "many rows"))
def test_a_draft_that_reads_the_target_begins_behind_a_cached_prefix(name, inputs):
    """Nobody knows the target's states of what a cache holds; prompts read in parts are known whole."""
    target, draft, _ = informed()
    drafting = DraftingConfig(("model",), branches=3 if name in TREES else 1)
    for cached in (0, 8):
        found = []
        for assisted in (False, True):
            cache, mask = DynamicCache(config=target.config), inputs.get("attention_mask")
            if cached:
                before = {} if mask is None else {"attention_mask": mask[:, :cached]}
                with torch.no_grad():
                    target(inputs["input_ids"][:, :cached], past_key_values=cache, **before)
            with heard() as rounds:
                settings = {"assistant_model": draft, "candidate_generator": SpecDecPP, "drafting_config": drafting}
                found.append(target.generate(
                    **inputs, **GREEDY, max_new_tokens=20, eos_token_id=[2, 100], past_key_values=cache,
                    prefill_chunk_size=None if cached else 5,
                    **settings | {"stopping_config": rule(name)} if assisted else {},
                ).tolist())  # fmt: skip
        assert found[0] == found[1] and 0 < accepted(rounds) < drafted(rounds)


def test_without_any_setting():
    """The rule chooses between chains and trees, and among the sources."""
    target, draft, headed = models("llama")
    for assistant in (headed, None):
        for mode in (GREEDY, SAMPLING):
            check(target, assistant, **MANY_ROWS, **mode)
    check(target, draft, StoppingConfig(rule="cost-aware", settings={"uses_head": False}), **ONE_ROW, **SAMPLING)


@pytest.mark.parametrize("low, high", [(1, 1), (1, 2), (2, 3), (4, 9), (30, 60)])
def test_bounds_of_the_draft_do_not_change_the_output(low, high):
    target, _, headed = models("llama")
    config = StoppingConfig(0.5, min_draft_length=low, max_draft_length=high)
    rounds = check(target, headed, config, **ONE_ROW, **GREEDY, max_new_tokens=30)
    assert max(len(each.drafted) for each in rounds) <= high


@pytest.mark.parametrize("threshold", (0.0, slow(0.3), 0.7, slow(1.0)))
@pytest.mark.parametrize("length, new_tokens", [(1, 2), (3, 40), (19, 25), (5, 1)])
def test_short_and_long_texts_under_every_threshold(threshold, length, new_tokens):
    target, _, headed = models("llama")
    for mode in (GREEDY, SAMPLING):
        settings = mode | {"max_new_tokens": new_tokens}
        check(target, headed, StoppingConfig(threshold), input_ids=prompt(length, length), **settings)


def test_the_random_states_of_many_seeds_are_plain_decodings():
    target, draft, _ = models("llama")
    found = {tuple(target.generate(**ONE_ROW, **SAMPLING, max_new_tokens=5)[0].tolist()) for _ in range(5)}
    assert len(found) == 5
    for seed in range(8):
        check(target, draft, rule("eagle-2"), seed=seed, **ONE_ROW, **SAMPLING)
