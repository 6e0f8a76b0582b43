"""Static caches, compiled passes, packed weights, and passes of one width: the same text, whatever runs it."""

import copy
import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from models import heard, informed_draft, prompt, ragged, similar_draft, tiny_model, with_head
from test_lossless import COSTS, GREEDY, HEAD, MANY_ROWS, ONE_ROW, SAMPLING, check, informed, models, rule
from torch import nn
from torch._dynamo.utils import counters
from transformers import CompileConfig, DynamicCache

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig, free_static
from hf_specdecpp.costs.store import pair_identity
from hf_specdecpp.costs.warm import running_for, warm
from hf_specdecpp.decoding import packing
from hf_specdecpp.decoding import static as statics
from hf_specdecpp.decoding.engine import Engine
from hf_specdecpp.decoding.packing import PackedLinear, packed
from hf_specdecpp.decoding.static import WIDTHS

EAGER = {"cache_implementation": "static"}
COST_AWARE = StoppingConfig(rule="cost-aware", settings={"uses_head": False, "costs": COSTS})
PLAIN = StoppingConfig(rule="fixed", settings={"length": 0})


def compiled(backend="eager", **more):
    """The compiler's first half alone: it traces graphs and guards them, and runs them as they are."""
    config = CompileConfig(backend=backend, **more)
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


@pytest.fixture(autouse=True)
def nothing_kept():
    yield
    free_static()


@pytest.fixture
def warnings(monkeypatch):
    said = []
    monkeypatch.setattr(statics.logger, "warning_once", said.append)
    return said


# Windows end within the texts of gemma3 and qwen2_mixed; opt's positions are learned.
@pytest.mark.parametrize("architecture", ("llama", "gemma3", "qwen2_mixed", "gpt2", "opt"))
@pytest.mark.parametrize("reproducible", (False, True))
def test_the_text_is_that_of_plain_decoding(architecture, reproducible):
    target, draft, headed = models(architecture)
    chain = DraftingConfig(branches=1, reproducible=reproducible)
    most = DraftingConfig(("model", "lookup", "recycling"), max_nodes=9, reproducible=reproducible)
    rounds = check(target, headed, rule("specdec++"), chain, **ONE_ROW, **GREEDY, **EAGER, max_new_tokens=32)
    rounds += check(target, draft, rule("fixed"), chain, **MANY_ROWS, **SAMPLING, **EAGER)
    rounds += check(target, headed, rule("cost-aware"), most, **MANY_ROWS, **GREEDY, **EAGER)
    rounds += check(target, None, None, DraftingConfig(reproducible=reproducible), **ONE_ROW, **SAMPLING, **EAGER)
    assert 0 < sum(each.accepted for each in rounds) < sum(len(each.drafted) for each in rounds)
    assert all(each.parents is None for each in rounds) or not reproducible


@pytest.mark.parametrize("architecture", ("llama", pytest.param("gemma3", marks=pytest.mark.slow)))
def test_compiled_passes_say_the_same(architecture):
    target, _, headed = models(architecture)
    tree = DraftingConfig(("model",), branches=3, max_nodes=7)
    rounds = check(target, headed, rule("specdec++"), **ONE_ROW, **GREEDY, **compiled(), max_new_tokens=32)
    branched = check(target, headed, rule("cost-aware"), tree, **MANY_ROWS, **SAMPLING, **compiled())
    eager = check(target, headed, rule("specdec++"), **ONE_ROW, **GREEDY, max_new_tokens=32)
    # The head hears the same states, so drafts end at the same places.
    assert [len(each.drafted) for each in rounds] == [len(each.drafted) for each in eager]
    assert any(each.parents is not None for each in branched) and len({each.rows for each in branched}) > 1


@pytest.mark.slow
def test_inductor_makes_the_same_text():
    target, draft, _ = models("llama")
    config = StoppingConfig(rule="fixed", settings={"length": 3})
    rounds = check(target, draft, config, **ONE_ROW, **GREEDY, **compiled("inductor"))
    assert any(each.accepted for each in rounds)


@pytest.mark.slow
def test_nothing_is_compiled_twice():
    target, draft, _ = models("llama")
    running = running_for("compiled", target, draft, 40)
    running.compiled["backend"] = "eager"
    passes = []
    warm(running, target, draft, 1, lambda model, width: passes.append((model, width)))
    assert passes == [(name, width) for name in ("target", "draft") for width in WIDTHS]
    assert running.graphs == len(passes)
    before = counters["stats"]["unique_graphs"]
    settings = compiled() | GREEDY
    for length in (9, 11, 30):
        for config in (COST_AWARE, StoppingConfig(rule="fixed", settings={"length": 12}), rule("eagle-2")):
            check(target, draft, config, input_ids=prompt(length), **settings)
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_what_a_draft_reads_of_the_target_is_not_compiled_twice(dtype):
    target = tiny_model("llama")
    draft = informed_draft(target, [prompt(12)[0]], steps=0).to(dtype)
    target = copy.deepcopy(target).to(dtype)
    draft.borrow(target)
    running = running_for("compiled", target, draft, 40)
    running.compiled["backend"] = "eager"
    warm(running, target, draft)
    before = counters["stats"]["unique_graphs"]
    drafts = {"assistant_model": draft, "candidate_generator": SpecDecPP, "max_new_tokens": 12, "do_sample": False}
    for branches in (1, 3):
        rule = StoppingConfig(rule="eagle-2", settings={"branches": branches, "depth": 3, "nodes": 7})
        target.generate(input_ids=prompt(9), stopping_config=rule, **drafts, **compiled())
    assert counters["stats"]["unique_graphs"] == before


def test_a_generation_asks_once_whether_a_model_is_what_was_compiled(monkeypatch):
    """In each generation anew, so that whatever was done to the model in between is honoured."""
    target, draft, _ = models("llama")
    target, asked, real = copy.deepcopy(target), [], statics.checked

    def counted(made, model, inputs):
        asked.append(model)
        found = real(made, model, inputs)
        assert found is not made
        return found

    monkeypatch.setattr(statics, "checked", counted)
    config, texts = StoppingConfig(rule="fixed", settings={"length": 3}), []
    for state in range(2):
        for _ in range(2):
            asked.clear()
            rounds = check(target, draft, config, None, state, **ONE_ROW, **GREEDY, **compiled(), max_new_tokens=24)
            assert {model is target for model in asked} == {True, False} and len(asked) <= 4 < len(rounds)
        texts.append(target.generate(**ONE_ROW, **GREEDY, max_new_tokens=24).tolist())
        target.model.layers[0].mlp.act_fn = nn.Tanh()
    assert texts[0] != texts[1]


def test_a_round_that_compiles_shows_no_costs():
    target, draft, _ = models("llama")
    config = StoppingConfig(rule="fixed", settings={"length": 3})
    rounds = check(target, draft, config, **ONE_ROW, **GREEDY, **compiled())
    again = check(target, draft, config, **ONE_ROW, **GREEDY, **compiled())
    assert rounds[1].target_seconds is None and all(each.target_seconds is not None for each in again)


def test_costs_are_kept_apart():
    target, draft, _ = models("llama")
    names = [running_for(name, target, draft, 40).name for name in ("eager", "static", "compiled")]
    assert names == ["eager", "static", "compiled"]
    assert len({str(pair_identity(target, draft, name)) for name in names}) == 3
    with pytest.raises(ValueError, match="models run eager, static or compiled, not 'fast'"):
        running_for("fast", target, draft, 40)


def test_drafts_that_read_the_target():
    target, draft, _ = informed()
    for settings in (EAGER, compiled()):
        for inputs in (ONE_ROW, MANY_ROWS):
            drafting = DraftingConfig(("model",), branches=1)
            rounds = check(target, draft, rule("fixed"), drafting, **inputs, **GREEDY, **settings)
            assert any(each.accepted for each in rounds)
    tree = DraftingConfig(("model",), branches=3, max_nodes=8)
    rounds = check(target, draft, rule("eagle-2"), tree, **MANY_ROWS, **SAMPLING, **EAGER)
    assert any(each.accepted for each in rounds)


def test_the_draft_may_begin_late():
    """It then reads a whole prompt, which is wider than any compiled pass, when rows have left."""
    target = models("llama")[0]
    engine = running_for("compiled", target, None, 99).target(target, [0, 0, 0])
    engine.running.compiled["backend"] = "eager"
    with torch.no_grad():
        engine.read(prompt(5).repeat(3, 1))
        engine.keep([[0, 1], [0, 1, 2, 3, 4], [0, 1, 2]])
        engine.leave([0, 2])
        text = prompt(max(WIDTHS) + 3, 6).repeat(2, 1)
        ours = engine.read(text).logits
        for row, kept in enumerate((2, 3)):
            whole = torch.cat((prompt(5)[:, :kept], text[:1]), dim=1)
            torch.testing.assert_close(ours[row], target(whole).logits[0, kept:], atol=2e-3, rtol=1e-3)


@pytest.fixture(scope="module")
def half():
    """A pair in bfloat16."""
    target = tiny_model().bfloat16()
    return target, similar_draft(target)


class TestOneWidth:
    """The bits of bfloat16 too."""

    @pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
    @pytest.mark.parametrize("inputs", (ONE_ROW, MANY_ROWS), ids=("one row", "many rows"))
    def test_bits_do_not_depend_on_speculation(self, half, inputs, mode):
        target, draft = half
        kept = []
        with heard() as rounds:
            for seed in range(4):
                for config, drafting in ((PLAIN, {}), (COST_AWARE, {}), (rule("fixed"), {"sources": ("model",)})):
                    torch.manual_seed(seed)
                    kept.append(
                        target.generate(
                            **inputs, **mode, max_new_tokens=24, eos_token_id=None, assistant_model=draft,
                            candidate_generator=SpecDecPP, stopping_config=config, output_logits=True,
                            return_dict_in_generate=True,
                            drafting_config=DraftingConfig(reproducible=True, **drafting),
                        )
                    )  # fmt: skip
        assert any(each.accepted for each in rounds)
        for plain, *others in (kept[i : i + 3] for i in range(0, len(kept), 3)):
            for other in others:
                assert plain.sequences.tolist() == other.sequences.tolist()
                assert all(torch.equal(a, b) for a, b in zip(plain.logits, other.logits, strict=True))

    def test_every_pass_has_the_width(self, half):
        target, _ = half
        widths = []
        hook = target.register_forward_pre_hook(
            lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        for drafting in (DraftingConfig(reproducible=True), DraftingConfig(max_nodes=4, reproducible=True)):
            widths.clear()
            config = StoppingConfig(rule="fixed", settings={"length": 20}, max_draft_length=20)
            target.generate(
                prompt(11), **GREEDY, max_new_tokens=16, candidate_generator=SpecDecPP, stopping_config=config,
                drafting_config=drafting,
            )  # fmt: skip
            assert widths[0] == 11 and set(widths[1:]) == {1 + drafting.most_nodes}
        hook.remove()

    def test_a_tree_is_refused(self):
        with pytest.raises(ValueError, match="branches=2: in a tree keys lie in another order"):
            DraftingConfig(branches=2, reproducible=True)
        with pytest.raises(ValueError, match="reproducible must be True or False, got 'yes'"):
            DraftingConfig(reproducible="yes")

    def test_a_prefix_cache_serves(self, half):
        target, draft = half
        whole = prompt(23)
        outputs = []
        for config in (PLAIN, COST_AWARE):
            cache = DynamicCache(config=target.config)
            with torch.no_grad():
                target(whole[:, :9], past_key_values=cache)
            outputs.append(
                target.generate(
                    whole, **GREEDY, past_key_values=cache, assistant_model=draft, candidate_generator=SpecDecPP,
                    stopping_config=config, max_new_tokens=12, eos_token_id=None,
                    drafting_config=DraftingConfig(reproducible=True),
                ).tolist()
            )  # fmt: skip
            assert cache.get_seq_length() >= 33
        assert outputs[0] == outputs[1]


class TestWhatIsKept:
    def caches(self, model):
        return {shape: cache.layers[0].keys.data_ptr() for shape, cache in statics._caches.get(model, {}).items()}

    def test_one_cache_for_the_next_call(self):
        target, draft, _ = models("llama")
        check(target, draft, COST_AWARE, **ONE_ROW, **GREEDY, **EAGER)
        first = self.caches(target), self.caches(draft)
        check(target, draft, COST_AWARE, input_ids=prompt(30, 4), **GREEDY, **EAGER)
        assert first == (self.caches(target), self.caches(draft)) and list(first[0]) == [(1, 256)]
        free_static(target)
        assert not self.caches(target) and self.caches(draft)

    def test_what_another_text_left_is_not_read(self):
        target, draft, _ = models("llama")
        check(target, draft, COST_AWARE, **ONE_ROW, **GREEDY, **EAGER)
        for cache in statics._caches[target].values():
            for layer in cache.layers:
                layer.keys.fill_(float("nan"))
        check(target, draft, COST_AWARE, **ONE_ROW, **GREEDY, **EAGER)

    def test_models_go_when_nobody_else_holds_them(self):
        target = tiny_model(seed=4)
        target.generate(**ONE_ROW, **GREEDY, **compiled(), max_new_tokens=9, candidate_generator=SpecDecPP)
        gone = weakref.ref(target)
        del target
        gc.collect()
        assert gone() is None

    def test_threads_have_caches_of_their_own(self):
        target, draft, _ = models("llama")
        expected = [target.generate(prompt(9, seed), **GREEDY, max_new_tokens=20).tolist() for seed in range(4)]
        found = {}

        def run(seed):
            for _ in range(3):
                found[seed] = target.generate(
                    prompt(9, seed), **GREEDY, max_new_tokens=20, assistant_model=draft,
                    candidate_generator=SpecDecPP, stopping_config=COST_AWARE, **EAGER,
                ).tolist()  # fmt: skip

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[seed] for seed in range(4)] == expected


def test_what_cannot_be_compiled_runs_all_the_same(warnings):
    def broken(graph, inputs):
        raise RuntimeError("no kernel for this")

    target, draft, _ = models("llama")
    check(target, draft, COST_AWARE, **ONE_ROW, **GREEDY, **compiled(broken))
    assert warnings and "runs uncompiled" in warnings[0] and "no kernel for this" in warnings[0]


def test_a_model_without_masks_of_ours_runs_in_a_cache_that_grows(warnings, monkeypatch):
    target, draft, _ = models("llama")
    monkeypatch.setattr(statics, "can_take_masks", lambda model: model is draft)
    check(target, draft, COST_AWARE, **ONE_ROW, **GREEDY, **EAGER)
    assert len(warnings) == 1 and "cannot run in a static cache of ours with 'sdpa' attention" in warnings[0]
    with pytest.raises(ValueError, match="load it with attn_implementation='sdpa', or leave out reproducible"):
        check(target, draft, COST_AWARE, DraftingConfig(reproducible=True), **ONE_ROW, **GREEDY)
    monkeypatch.setattr(statics, "can_take_masks", lambda model: model is target)
    for drafting in (DraftingConfig(("model",)), DraftingConfig(reproducible=True)):
        check(target, draft, COST_AWARE, drafting, **ONE_ROW, **GREEDY, **compiled())


def test_compiling_can_be_switched_off(monkeypatch):
    target, draft, _ = models("llama")
    monkeypatch.setattr(torch, "compile", None)
    check(target, draft, COST_AWARE, **ONE_ROW, **GREEDY, **compiled(), disable_compile=True)


class TestPacking:
    @pytest.fixture
    def model(self):
        return tiny_model().bfloat16()

    def logits(self, model):
        with torch.no_grad():
            return model(prompt(9)).logits

    def test_the_product_and_the_model_stay_what_they_were(self, model):
        before, kinds = self.logits(model), [type(module) for module in model.modules()]
        state = {name: value.clone() for name, value in model.state_dict().items()}
        with packed(model):
            assert type(model.model.layers[0].mlp.up_proj) is PackedLinear and isinstance(model.lm_head, nn.Linear)
            assert torch.equal(self.logits(model), before)
            with packed(model, None):
                pass
            assert torch.equal(self.logits(model), before)
            assert list(model.state_dict()) == list(state)
        assert [type(module) for module in model.modules()] == kinds
        assert not any("packed" in vars(module) for module in model.modules())
        assert torch.equal(self.logits(copy.deepcopy(model)), before)

    def test_an_error_gives_the_model_back(self, model):
        with pytest.raises(KeyError), packed(model):
            raise KeyError
        assert type(model.lm_head) is nn.Linear

    def test_changed_weights_are_packed_anew(self, model):
        with packed(model):
            before = self.logits(model)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(3)
            model.model.layers[1].mlp.up_proj = nn.Linear(32, 48, bias=False).bfloat16()
        expected = self.logits(model)
        with packed(model):
            assert torch.equal(self.logits(model), expected) and not torch.equal(expected, before)

    def test_other_dtypes_and_hooked_layers_are_left_alone(self, model):
        with packed(tiny_model()) as _, packed(model.float()):
            assert not any(isinstance(module, PackedLinear) for module in model.modules())
        model.bfloat16().lm_head.forward = model.lm_head.forward
        with packed(model):
            assert type(model.lm_head) is nn.Linear

    def test_compact_vocabularies_are_packed(self, model):
        draft = informed_draft(tiny_model(), [prompt(30)[0]], steps=1).bfloat16()
        hidden = torch.randn(1, 3, 32).bfloat16()
        with torch.no_grad():
            expected = draft.lm_head(hidden)
            with packed(draft):
                assert "packed" in vars(draft.lm_head) and torch.equal(draft.lm_head(hidden), expected)

    def test_free_static_drops_them(self, model):
        for freed in (None, model):
            with packed(model):
                kept = weakref.ref(vars(model.lm_head)["packed"])
            assert kept() is not None
            free_static(freed)
            assert kept() is None

    def test_weights_changed_behind_the_version_are_packed_anew(self, model):
        with packed(model):
            before = self.logits(model)
        model.model.layers[0].mlp.up_proj.weight.data.mul_(3)
        expected = self.logits(model)
        with packed(model):
            assert torch.equal(self.logits(model), expected) and not torch.equal(expected, before)

    def test_a_model_without_room_for_copies_stays_as_it_is(self, model, monkeypatch):
        said = []
        monkeypatch.setattr(packing.logger, "warning", said.append)
        memory = SimpleNamespace(available=10_000)
        monkeypatch.setattr(packing.psutil, "virtual_memory", lambda: memory)
        for _ in range(2):
            with packed(model):
                assert type(model.lm_head) is nn.Linear
            memory.available = 1e12
        assert len(said) == 1 and "LlamaForCausalLM runs without packed weights, and slower" in said[0]
        free_static(model)
        with packed(model):
            assert type(model.lm_head) is PackedLinear

    def test_torch_s_own_switch_leaves_them_alone(self, model, monkeypatch):
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        with packed(model):
            assert type(model.lm_head) is nn.Linear

    @pytest.mark.parametrize("how", [{}, EAGER], ids=["growing", "static"])
    def test_generations_pack(self, model, monkeypatch, how):
        seen, original = [], Engine.read

        def read(self, *args, **kwargs):
            seen.append(type(self.model.lm_head))
            return original(self, *args, **kwargs)

        monkeypatch.setattr(Engine, "read", read)
        target, draft = model, with_head(similar_draft(model), **HEAD)
        target.generate(
            **ragged(5, 9), **GREEDY, **how, max_new_tokens=9, assistant_model=draft, candidate_generator=SpecDecPP,
            stopping_config=COST_AWARE,
        )  # fmt: skip
        assert PackedLinear in seen and type(model.lm_head) is nn.Linear
