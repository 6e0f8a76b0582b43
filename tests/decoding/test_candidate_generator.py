import copy
import math

import pytest
import torch
from models import HIDDEN, VOCAB, heard, prompt, similar_draft, tiny_model, with_head
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StaticCache,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_specdecpp import (
    AcceptanceHeadConfig,
    DraftingConfig,
    LookupStore,
    RecyclingTable,
    SpecDecPP,
    StoppingConfig,
    collect_stats,
)
from hf_specdecpp.acceptance import acceptance_layer
from hf_specdecpp.drafting import pair as pairs
from hf_specdecpp.drafting.judge import Judge
from hf_specdecpp.drafting.pair import check_pair


def generate(target, draft, ids=None, **kwargs):
    settings = {"max_new_tokens": 24, "do_sample": False} | kwargs
    settings = {"candidate_generator": SpecDecPP} | settings
    return target.generate(prompt() if ids is None else ids, assistant_model=draft, **settings)


REJECTION = DraftingConfig(coupling="rejection")


class GrammarProcessor(LogitsProcessor):
    """Stands for one of a package that follows a grammar, a token a call."""

    __module__ = "xgrammar.contrib.hf"

    def __call__(self, input_ids, scores):
        return scores


SYNTHID = SynthIDTextWatermarkingConfig(keys=[654, 400, 836], ngram_len=3)


def candidates(draft, ids, settings, max_length=200):
    config = GenerationConfig(max_length=max_length, do_sample=False, eos_token_id=2)
    config.update(**config._get_default_generation_params(), defaults_only=True)
    generator = SpecDecPP(ids, draft, config, stopping_config=settings)
    return generator, generator.get_candidates(ids)[0][0, ids.shape[1] :].tolist()


def drafted_by_hand(draft, ids, threshold, low, high) -> list[int]:
    """The authors' loop (hf_generation.py) with full forward passes and no cache."""
    layer = acceptance_layer(draft)
    head, config = layer.acceptance_head["default"], layer.head_configs["default"]
    heard = []
    hook = layer.register_forward_hook(lambda module, inputs, output: heard.append(inputs[0]))
    tokens, features, survival = [], [], 1.0
    with torch.no_grad():
        while True:
            logits = draft(torch.cat((ids, torch.tensor([tokens], dtype=torch.long)), dim=-1)).logits[0, -1]
            if tokens and config.reads == "after":
                survival *= torch.sigmoid(head(heard[-1][:, -1:], features[-1])[0, -1]).item()
            tokens.append(logits.argmax().item())
            q, entropy = logits.softmax(-1).max().item(), -(logits.softmax(-1) * logits.log_softmax(-1)).sum().item()
            seen = {
                "probability": math.log(q / (1 - q)) / 3, "entropy": entropy / 3, "position": math.log(len(tokens)),
            }  # fmt: skip
            features.append(torch.tensor([[[seen[name] for name in config.features]]]))
            if config.reads == "before":
                survival *= torch.sigmoid(head(heard[-1][:, -1:], features[-1])[0, -1]).item()
            if tokens[-1] == 2 or len(tokens) == high or (len(tokens) >= low and 1 - survival > threshold):
                hook.remove()
                return tokens


@pytest.mark.parametrize("reads", ("after", "before"))
@pytest.mark.parametrize("features", ([], ["position", "probability", "entropy"]), ids=("bare", "features"))
@pytest.mark.parametrize("threshold", (0.0, 0.3, 0.5, 0.7, 0.95, 1.0))
def test_a_round_drafts_what_the_authors_loop_drafts(target, threshold, reads, features):
    draft = with_head(similar_draft(target), reads=reads, features=features)
    low = 2 if reads == "after" else 1
    lengths = set()
    for seed in range(12):
        ids = prompt(6, seed)
        _, drafted = candidates(draft, ids, StoppingConfig(threshold, low, 9))
        assert drafted == drafted_by_hand(draft, ids, threshold, low, 9)
        lengths.add(len(drafted))
    assert max(lengths) == low if threshold == 0 else max(lengths) > low


def test_every_drafted_token_costs_one_forward_pass_of_the_draft(target, draft):
    passes = []
    hook = draft.get_base_model().register_forward_hook(lambda *args: passes.append(1))
    with collect_stats() as stats:
        generate(target, draft, stopping_config=StoppingConfig(0.5))
    hook.remove()
    assert len(passes) == stats.drafted


def test_the_draft_reads_each_token_once(target, draft):
    """Nothing is read twice: behind the prompt a round reads one or two tokens, then one a token."""
    read = []
    hook = draft.get_base_model().register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    generate(target, draft, stopping_config=StoppingConfig(0.5))
    hook.remove()
    assert read[0] == 7 and set(read[1:]) <= {1, 2}


def test_the_heads_recommendation_serves_when_no_settings_are_given(target):
    draft = with_head(similar_draft(target), threshold=1.0, min_draft_length=1, max_draft_length=3)
    with collect_stats() as stats:
        generate(target, draft)
    assert max(stats.drafted_at) == 3
    assert set(stats.stop_reasons) <= {"max_draft_length", "max_length", "no_room"}


def test_num_assistant_tokens_is_honoured(target, draft):
    with collect_stats() as stats:
        generate(target, draft, num_assistant_tokens=3, stopping_config=StoppingConfig(1.0))
    assert max(stats.drafted_at) == 3


def test_num_assistant_tokens_of_the_draft_is_honoured(target, draft):
    base = draft.get_base_model()
    for settings, longest in ((StoppingConfig(1.0), 4), (StoppingConfig(1.0, max_draft_length=6), 6), (None, 4)):
        base.generation_config.num_assistant_tokens = 4
        with collect_stats() as stats:
            generate(target, draft, stopping_config=settings)
        assert max(stats.drafted_at) == longest
    with collect_stats() as stats:
        generate(target, draft, num_assistant_tokens=3, stopping_config=StoppingConfig(1.0))
    assert max(stats.drafted_at) == 3


@pytest.mark.parametrize("length", (4, 20, 21, 22, 30))
@pytest.mark.parametrize("reads", ("after", "before"))
def test_a_draft_with_a_shorter_context_drafts_as_far_as_it_can_read(length, reads):
    target = tiny_model("gpt2")
    draft = with_head(tiny_model("gpt2", n_positions=22), reads=reads)
    plain = target.generate(prompt(length), max_new_tokens=24, do_sample=False)
    with collect_stats() as stats:
        ours = generate(target, draft, prompt(length), stopping_config=StoppingConfig(1.0))
    assert ours.tolist() == plain.tolist()
    assert (stats.drafted > 0) == (length <= 22) and stats.stop_reasons["no_room"] > 0


@pytest.mark.parametrize(
    "settings, served",
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, None),
        ({"do_sample": True, "top_p": 0.9}, "temperature=1.0, top_k=50, top_p=0.9, coupling=seeded"),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 0}, "temperature=0.6, top_k=0, top_p=0.9"),
        ({"do_sample": True, "temperature": 0.6}, "temperature=0.6, top_k=50, top_p=1.0"),
        ({"do_sample": False}, "do_sample=False"),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "drafting_config": REJECTION},
            "temperature=0.6, top_k=50, top_p=0.9, coupling=rejection",
        ),
    ],
)
def test_a_head_that_serves_another_decoding_is_warned_of(target, monkeypatch, settings, served):
    trained = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "coupling": "seeded"}
    draft = with_head(similar_draft(target), decoding=trained)
    said = []
    monkeypatch.setattr(pairs.logger, "warning_once", said.append)
    generate(target, draft, **settings, stopping_config=StoppingConfig(0.5))
    assert len(said) == (served is not None)
    for message in said:
        assert "for do_sample=True, temperature=0.6, top_k=50, top_p=0.9, coupling=seeded and" in message
        assert served in message


def test_a_head_that_names_no_coupling_was_trained_for_rejection(target, monkeypatch):
    """There was no other before 0.2."""
    draft = with_head(similar_draft(target), decoding={"do_sample": True})
    said = []
    monkeypatch.setattr(pairs.logger, "warning_once", said.append)
    generate(target, draft, do_sample=True, drafting_config=REJECTION)
    assert not said
    generate(target, draft, do_sample=True)
    assert len(said) == 1 and "coupling=rejection and now serves" in said[0]


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"assistant_confidence_threshold": 0.3}, "belongs to transformers' own rule"),
        ({"num_assistant_tokens_schedule": "heuristic"}, "belongs to transformers' own rule"),
        ({"assistant_ensemble_weight": 0.5}, "changes the target's distribution"),
        ({"num_assistant_tokens": 4, "stopping_config": StoppingConfig(max_draft_length=5)}, "contradict each other"),
        ({"stopping_config": 0.7}, "must be a StoppingConfig"),
        ({"num_beams": 2}, "num_beams=2"),
        ({"use_cache": False}, "use_cache"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"watermarking_config": SYNTHID}, "SynthIDTextWatermarkLogitsProcessor keeps state from call to call"),
        ({"logits_processor": LogitsProcessorList([GrammarProcessor()])}, "GrammarProcessor keeps state"),
        ({"inputs_embeds": torch.zeros(1, 7, HIDDEN)}, "came as inputs_embeds, which the draft cannot read"),
    ],
)
def test_what_cannot_be_honoured_is_refused(target, draft, setting, message):
    with pytest.raises((ValueError, TypeError), match=message):
        generate(target, draft, **setting)


def test_a_static_cache_object_is_refused(target, draft):
    cache = StaticCache(config=target.config, max_cache_len=64)
    with pytest.raises(ValueError, match="static cache cannot be rolled back"):
        generate(target, draft, past_key_values=cache)


class InTransformersLoop(SpecDecPP):
    """A subclass runs transformers' own loop."""


def test_a_cache_that_holds_a_prefix_is_refused_by_transformers_loop_and_an_empty_one_serves(target, draft):
    """That loop would read the prefix a second time, after itself."""
    prefix = target(prompt()[:, :5], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values holds 5 tokens already"):
        generate(target, draft, past_key_values=prefix, candidate_generator=InTransformersLoop)
    plain = target.generate(prompt(), max_new_tokens=24, do_sample=False)
    for generator in (SpecDecPP, InTransformersLoop):
        ours = generate(target, draft, past_key_values=DynamicCache(), candidate_generator=generator)
        assert ours.tolist() == plain.tolist()


def test_a_cache_that_cannot_be_gone_on_from_is_refused(target, draft):
    held = target(prompt(9), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="holds 9 tokens and input_ids have 7: give the whole text as input_ids"):
        generate(target, draft, past_key_values=held)

    class Compressed(DynamicCache):
        pass

    with pytest.raises(ValueError, match="past_key_values is a Compressed, which cannot be rolled back"):
        generate(target, draft, past_key_values=Compressed())


def test_embeddings_alone_are_refused(target, draft):
    with pytest.raises(ValueError, match="came as inputs_embeds, which the draft cannot read"):
        target.generate(
            inputs_embeds=torch.zeros(1, 7, HIDDEN), assistant_model=draft, candidate_generator=SpecDecPP,
            max_new_tokens=5,
        )  # fmt: skip


def test_a_grammar_that_is_a_function_of_the_ids_serves(target, draft):
    settings = {"prefix_allowed_tokens_fn": lambda batch, ids: [4 + int(ids[-1]) % 7, 20, 21 + len(ids) % 3]}
    plain = target.generate(prompt(), max_new_tokens=24, do_sample=False, **settings)
    assert generate(target, draft, **settings).tolist() == plain.tolist()


@pytest.mark.parametrize("tuning", (PromptTuningConfig, PrefixTuningConfig))
def test_prompt_tuned_models_are_refused(target, draft, tuning):
    """Their virtual tokens are in no `input_ids`; a draft used to lose them without a word."""
    tuned = get_peft_model(copy.deepcopy(target), tuning(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    with pytest.raises(ValueError, match="the target, a LlamaForCausalLM, is tuned by virtual tokens"):
        tuned.generate(input_ids=prompt(), assistant_model=draft, candidate_generator=SpecDecPP, max_new_tokens=5)
    with pytest.raises(ValueError, match="the draft is tuned by virtual tokens"):
        generate(target, tuned, stopping_config=StoppingConfig(rule="svip"))


def test_a_batch_is_refused_by_transformers_loop(target, draft):
    for settings, count in (({"ids": torch.cat([prompt(), prompt()])}, 2), ({"num_return_sequences": 3}, 3)):
        with pytest.raises(ValueError, match=f"one sequence at a time, got {count}"):
            generate(target, draft, do_sample=True, candidate_generator=InTransformersLoop, **settings)
        with pytest.raises(ValueError, match=f"one sequence at a time, got {count}"):
            hidden = {"output_hidden_states": True, "return_dict_in_generate": True}
            generate(target, draft, do_sample=True, **hidden, **settings)


def test_a_prompt_that_is_padded_on_the_right_is_refused(target, draft):
    with pytest.raises(ValueError, match="pad prompts on the left"):
        generate(target, draft, attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0, 0]]))


@pytest.mark.parametrize("kept", ({"lookup_store": LookupStore()}, {"recycling_table": RecyclingTable(264)}))
def test_what_is_kept_is_for_our_own_loop(target, draft, kept):
    with pytest.raises(ValueError, match=f"{next(iter(kept))} is for our own loop"):
        generate(target, draft, candidate_generator=InTransformersLoop, **kept)


def test_a_drafting_config_is_for_our_own_loop(target, draft):
    with pytest.raises(ValueError, match="this call needs transformers'"):
        generate(target, draft, candidate_generator=InTransformersLoop, drafting_config=DraftingConfig())
    with pytest.raises(ValueError, match="this call needs transformers'"):
        generate(target, draft, output_attentions=True, return_dict_in_generate=True, drafting_config=DraftingConfig())
    with pytest.raises(TypeError, match="drafting_config must be a DraftingConfig, got dict"):
        generate(target, draft, drafting_config={"branches": 2})


def test_a_draft_without_a_head_is_refused(target):
    with pytest.raises(ValueError, match="has no acceptance head: load one"):
        generate(target, similar_draft(target))
    with pytest.raises(ValueError, match="has no acceptance head: load one"):
        SpecDecPP(similar_draft(target))
    with pytest.raises(TypeError, match="got Linear: pass the draft as assistant_model=draft"):
        generate(target, torch.nn.Linear(1, 1))


def test_a_head_of_another_pair_is_refused_and_a_swapped_pair_is_told(target, draft):
    pair, (small, large) = (draft.config, target.config), ("llama-1x32-264", "llama-2x32-264")
    pair = [copy.deepcopy(config) for config in pair]
    pair[0].num_hidden_layers, pair[1].num_hidden_layers = 2, 1  # the large one drafts
    with pytest.raises(ValueError, match="the target is a llama-1x32-264: swap target and draft"):
        check_pair(AcceptanceHeadConfig(target_signature=large, draft_signature=small), *pair)
    with pytest.raises(ValueError, match="use a head trained for this pair"):
        check_pair(AcceptanceHeadConfig(target_signature="llama-9x32-264", draft_signature=small), *pair)


@pytest.mark.parametrize("rule", ("svip", "confidence", "cost-aware"))
def test_rules_that_ask_no_head_serve_any_draft(target, rule):
    settings = {"uses_head": False} if rule == "cost-aware" else {}
    plain = target.generate(prompt(), max_new_tokens=24, do_sample=False)
    with collect_stats() as stats:
        ours = generate(target, similar_draft(target), stopping_config=StoppingConfig(rule=rule, settings=settings))
    assert ours.tolist() == plain.tolist() and stats.drafted > 0
    with pytest.raises(ValueError, match="has no acceptance head"):
        generate(target, similar_draft(target), stopping_config=StoppingConfig(rule="specdec++", threshold=0.5))


def test_what_a_rule_does_not_need_is_not_computed(target, draft, monkeypatch):
    """Entropy and the head cost time: only rules that name them pay."""
    calls = []
    called = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", lambda self, *args: calls.append("head") or called(self, *args))
    monkeypatch.setattr(torch.special, "entr", lambda q: calls.append("entropy") or -q * q.log())
    expected = {"fixed": set(), "confidence": set(), "svip": {"entropy"}, "specdec++": {"head"}}
    for rule, found in expected.items():
        calls.clear()
        settings = {"length": 3} if rule == "fixed" else {}
        generate(target, draft, stopping_config=StoppingConfig(rule=rule, settings=settings))
        assert set(calls) == found


def test_rounds_without_a_draft_are_plain_decoding(target, draft):
    """A rule may answer 0: the target then makes its token alone, and nothing is lost."""
    plain = target.generate(prompt(), max_new_tokens=24, do_sample=False)
    with collect_stats() as stats:
        ours = generate(target, draft, stopping_config=StoppingConfig(rule="fixed", settings={"length": 0}))
    assert ours.tolist() == plain.tolist()
    assert stats.drafted == 0 and stats.rounds == stats.tokens
    assert set(stats.stop_reasons) <= {"prompt", "no_draft", "no_room"}
    costs = {"draft_seconds": 3.0, "verify_seconds": [1.0]}
    with heard() as rounds:
        generate(target, draft, stopping_config=StoppingConfig(rule="cost-aware", settings={"costs": costs}))
    assert sum(each.passes > 0 for each in rounds) < len(rounds) / 2


def test_costs_are_remembered_between_generations_of_a_pair(target, draft):
    """A rule that measures itself begins where the last generation ended."""
    measured = []
    for _ in range(2):
        with collect_stats() as stats:
            generate(target, draft, stopping_config=StoppingConfig(rule="cost-aware"))
        measured.append(stats.rounds)
    (experience,) = pairs._experience[draft.get_base_model()].values()
    assert experience.costs.rounds() > measured[1] and experience.costs.profile() is not None


def test_costs_are_learned_where_no_draft_reads_the_prompt(target):
    """All rounds before the draft's first pass used to count as reading the prompt: without a draft, all rounds."""
    with heard() as rounds:
        target.generate(prompt(), max_new_tokens=40, do_sample=False, candidate_generator=SpecDecPP)
    assert [each.reads_prompt for each in rounds] == [True] + [False] * (len(rounds) - 1)
    (experience,) = pairs._experience[target].values()
    assert experience.costs.profile(drafts=False) is not None


def test_costs_are_not_shared_by_what_runs_otherwise(target, draft):
    """Another dtype, attention, quantisation or device has other costs, of the target and of the draft."""
    base, target = draft.get_base_model(), copy.deepcopy(target)
    costs = pairs._experience

    def entries():
        generate(target, draft, max_new_tokens=4, stopping_config=StoppingConfig(rule="cost-aware"))
        return len(costs[base])

    assert [entries(), entries()] == [1, 1]
    for number, model in enumerate((target, base)):
        model.bfloat16()
        assert [entries(), entries()] == [2 + 2 * number, 2 + 2 * number]
        model.set_attn_implementation("eager")
        assert [entries(), entries()] == [3 + 2 * number, 3 + 2 * number]
    seen = {pairs.running_as(target)}
    target.hf_device_map = {"model": "cuda:0", "lm_head": "cuda:1"}
    seen.add(pairs.running_as(target))
    target.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    seen.add(pairs.running_as(target))
    seen.add(pairs.running_as(target.to("meta")))  # its map stays as it was
    assert len(seen) == 4


@pytest.mark.parametrize("kind", ({"drafting_config": DraftingConfig(branches=1)}, {"do_sample": True}))
def test_generations_learn_from_those_of_their_kind(target, draft, kind):
    """A chain, or a sampled token, costs what a tree or a greedy one does not."""
    for settings in ({}, kind, kind):
        generate(target, draft, stopping_config=StoppingConfig(rule="cost-aware"), **settings)
    greedy, other = pairs._experience[draft.get_base_model()].values()
    assert 0 < greedy.costs.rounds() < other.costs.rounds()


def test_costs_are_not_remembered_where_the_target_is_not_known(draft):
    candidates(draft, prompt(), StoppingConfig(rule="cost-aware"))
    assert draft.get_base_model() not in pairs._experience


def test_rules_of_one_generation_learn_its_costs_once(target, draft):
    rules = [{"rule": "goodput"}, {"rule": "drop-in"}]
    with collect_stats() as stats:
        generate(target, draft, stopping_config=StoppingConfig(rule="any", settings={"rules": rules}))
    (experience,) = pairs._experience[draft.get_base_model()].values()
    assert experience.costs.profile() is not None
    assert experience.costs.rounds() == stats.rounds - 1  # the one that reads the prompt is no step of decoding


def test_all_stops_for_a_rule_that_caps(target, draft):
    rules = [{"rule": "fixed", "settings": {"length": 2}}, {"rule": "svip", "threshold": 0.0}]
    with collect_stats() as stats:
        generate(target, draft, stopping_config=StoppingConfig(rule="all", settings={"rules": rules}))
    assert max(stats.drafted_at) == 2


def test_rules_see_that_a_draft_is_not_certain(target, draft):
    """Rounding to 5 digits used to make a probability above 0.999995 one."""
    sure = torch.zeros(VOCAB)
    sure[7] = 19.0
    base = draft.get_base_model()
    base.get_output_embeddings().register_forward_hook(lambda module, args, output: sure.expand_as(output))
    with heard() as rounds:
        generate(target, draft, stopping_config=StoppingConfig(rule="cumulative-confidence", threshold=1.0))
    found = {token.probability for each in rounds for token in each.drafted}
    assert found and all(0.999995 < probability < 1 for probability in found)


def test_a_draft_whose_head_is_switched_off_is_refused(target, draft):
    with draft.disable_adapter(), pytest.raises(ValueError, match=r"\['default'\] is active"):
        generate(target, draft)


def test_another_tokenizer_is_refused(target, tokenizer):
    other = with_head(tiny_model("llama", vocab_size=VOCAB + 40))
    with pytest.raises(ValueError, match="a draft with the target's tokenizer"):
        generate(target, other)


@pytest.mark.parametrize(
    "own, theirs, warns",
    [
        ({"bos_token_id": 151643, "eos_token_id": 151643}, {"bos_token_id": 151643, "eos_token_id": 151645}, False),
        ({"eos_token_id": 128001}, {"eos_token_id": [128001, 128008, 128009]}, False),
        ({"bos_token_id": 1, "eos_token_id": 2}, {"bos_token_id": None, "eos_token_id": None}, False),
        ({"eos_token_id": 0}, {"bos_token_id": 50256, "eos_token_id": 50256}, True),
        ({"eos_token_id": 2, "pad_token_id": -1}, {"eos_token_id": 3, "pad_token_id": -1}, True),
    ],
)
def test_equal_vocabularies_without_a_special_token_in_common_are_warned_of(monkeypatch, own, theirs, warns):
    """Base and Instruct models of one tokenizer may name other tokens, so it cannot be an error."""
    said = []
    monkeypatch.setattr(pairs.logger, "warning_once", said.append)
    nothing = {"vocab_size": 152064, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    assert check_pair(None, LlamaConfig(**nothing | own), LlamaConfig(**nothing | theirs)) == 152064
    assert ["none in common" in message for message in said] == [True] * warns


def test_a_vocabulary_padded_differently_is_no_other_tokenizer():
    """Qwen2.5's sizes differ (151936 and 152064) though the tokenizer is one."""
    target = tiny_model("llama", vocab_size=4224)
    for size in (4096, 4352):
        draft = with_head(tiny_model("llama", vocab_size=size))
        ids = prompt()
        for sample in (False, True):
            ours = generate(target, draft, ids, do_sample=sample)
        assert ours.shape[1] <= ids.shape[1] + 24
        plain = target.generate(ids, max_new_tokens=24, do_sample=False)
        assert generate(target, draft, ids).tolist() == plain.tolist()


def test_a_head_for_another_target_is_refused(target):
    draft = with_head(similar_draft(target), target_signature="llama-30x576-49152", target_name_or_path="org/big")
    with pytest.raises(ValueError, match=r"verdicts of 'org/big' \(llama-30x576-49152\)"):
        generate(target, draft)


def test_encoder_decoder_models_are_refused(draft):
    config = T5Config(
        vocab_size=VOCAB, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    target = T5ForConditionalGeneration(config).eval()
    with pytest.raises(ValueError, match="encoder-decoder"):
        generate(target, draft)


def test_a_padded_prompt_drafts_as_the_bare_prompt_does(target, draft):
    ids, padding = prompt(), torch.zeros(1, 3, dtype=torch.long)
    mask = torch.cat((padding, torch.ones_like(ids)), dim=-1)
    results = []
    for inputs in ({"ids": ids}, {"ids": torch.cat((padding, ids), dim=-1), "attention_mask": mask}):
        with collect_stats() as stats:
            output = generate(target, draft, stopping_config=StoppingConfig(0.5), **inputs)
        results.append((output[0, -24:].tolist(), stats.drafted, stats.accepted))
    assert results[0] == results[1]


def test_the_drafts_generation_config_is_left_as_it_was(target, draft):
    """transformers' loop writes num_assistant_tokens back to a draft whose schedule is "heuristic"."""
    config = draft.get_base_model().generation_config
    config.num_assistant_tokens_schedule = "heuristic"
    before = config.to_dict()
    generate(target, draft)
    assert config.to_dict() == before
