"""What we expect of private parts of transformers and PEFT. A version that breaks us fails here."""

import inspect

import peft
import pytest
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from transformers import CompileConfig, DynamicCache, GenerationConfig, GenerationMixin, LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation.candidate_generator import AssistedCandidateGenerator, CandidateGenerator

from hf_specdecpp import SpecDecPP
from hf_specdecpp.acceptance import AcceptanceHeadModel


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def source(function) -> str:
    return inspect.getsource(inspect.unwrap(function))


def test_the_loop_takes_what_we_pass():
    expected = {
        "input_ids", "logits_processor", "stopping_criteria", "generation_config", "streamer", "inputs_tensor",
        "assistant_model", "model_kwargs",
    }  # fmt: skip
    assert expected <= set(parameters(GenerationMixin._assisted_decoding))


def test_the_loop_asks_self_for_the_generator_by_keywords():
    loop = source(GenerationMixin._assisted_decoding)
    assert (
        "candidate_generator = self._get_candidate_generator(\n            generation_config=generation_config,"
        in loop
    )
    assert set(parameters(GenerationMixin._get_candidate_generator)) >= {
        "generation_config", "input_ids", "inputs_tensor", "logits_processor", "model_kwargs", "assistant_model",
    }  # fmt: skip


def test_the_loop_puts_new_tokens_before_it_asks_whether_to_stop():
    """ExactStop learns from `put` how many tokens are new."""
    loop = source(GenerationMixin._assisted_decoding)
    assert loop.index("streamer.put(valid_tokens") < loop.rindex("stopping_criteria(input_ids, scores)")


def test_generate_hands_a_callable_the_prepared_arguments():
    body = source(GenerationMixin.generate.__wrapped__)
    assert "decoding_method = custom_generate" in body
    for name in ("logits_processor=prepared", "stopping_criteria=prepared", "generation_config=generation_config"):
        assert name in body


def test_the_candidate_generator_has_the_base_classs_arguments_in_order():
    assert parameters(SpecDecPP.__init__)[: len(parameters(AssistedCandidateGenerator.__init__))] == parameters(
        AssistedCandidateGenerator.__init__
    )
    for name in ("get_candidates", "update_candidate_strategy"):
        assert parameters(getattr(SpecDecPP, name)) == parameters(getattr(CandidateGenerator, name))


@pytest.mark.parametrize("name", ("_supports_logits_to_keep", "_is_stateful", "_get_default_generation_params"))
def test_private_names_that_we_use_exist(name):
    owner = GenerationConfig if name == "_get_default_generation_params" else LlamaForCausalLM
    assert hasattr(owner, name)


def test_defaults_that_we_tell_from_the_callers_wishes():
    defaults = GenerationConfig._get_default_generation_params()
    assert defaults["num_assistant_tokens"] == 20
    assert defaults["num_assistant_tokens_schedule"] == "constant"
    assert defaults["assistant_confidence_threshold"] == 0.4


def test_the_benchmark_can_have_decoding_compiled_on_a_cpu_and_lookups_counted():
    assert CompileConfig._compile_all_devices is None
    assert "compile_config._compile_all_devices" in source(GenerationMixin._valid_auto_compile_criteria)
    assert "eos_token_id=generation_config._eos_token_tensor" in source(GenerationMixin._get_candidate_generator)


def test_caches_roll_back_by_negative_counts():
    assert parameters(DynamicCache.crop)[0] == "self" and len(parameters(DynamicCache.crop)) == 2
    assert callable(DynamicCache.get_seq_length)


def test_a_cache_makes_its_layers_of_a_class_of_ours():
    assert "self.layers.append(self.layer_class_to_replicate())" in source(Cache.update)
    assert parameters(DynamicLayer.update)[:3] == ["self", "key_states", "value_states"]
    assert parameters(DynamicLayer.lazy_initialization) == ["self", "key_states", "value_states"]


def test_peft_looks_methods_up_in_dictionaries_and_calls_our_hooks():
    assert peft.PEFT_TYPE_TO_TUNER_MAPPING["ACCEPTANCE_HEAD"] is AcceptanceHeadModel
    hooks = ("_prepare_adapter_config", "_check_target_module_exists", "_create_and_replace")
    for name in hooks:
        assert name in vars(AcceptanceHeadModel) and name in vars(BaseTuner)
    assert "_remove_adapter_name_from_key" in dir(BaseTuner)
    assert parameters(BaseTuner._create_and_replace)[1:6] == [
        "peft_config", "adapter_name", "target", "target_name", "parent",
    ]  # fmt: skip
    assert isinstance(BaseTunerLayer.active_adapters, property)
