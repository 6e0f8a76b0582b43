"""The seam: what `generate` and its friends do with `candidate_generator`."""

import copy
import threading
import time

import pytest
import torch
from models import HIDDEN, prompt, similar_draft, tiny_model, with_head
from peft import LoraConfig, get_peft_model
from transformers import (
    GenerationMixin,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    TextStreamer,
    pipeline,
)
from transformers.generation.candidate_generator import AssistedCandidateGenerator, PromptLookupCandidateGenerator

import hf_specdecpp
from hf_specdecpp import SpecDecPP, StoppingConfig, collect_stats

GREEDY = {"max_new_tokens": 30, "do_sample": False}


@pytest.fixture
def ours(draft):
    return {"assistant_model": draft, "candidate_generator": SpecDecPP, "stopping_config": StoppingConfig(0.6)}


def test_without_the_keyword_the_original_is_called_with_the_same_arguments(target, monkeypatch):
    calls = []
    hf_specdecpp.disable()
    monkeypatch.setattr(GenerationMixin, "generate", lambda self, *args, **kwargs: calls.append((args, kwargs)))
    hf_specdecpp.enable()
    target.generate(1, do_sample=False)
    hf_specdecpp.disable()
    monkeypatch.undo()
    hf_specdecpp.enable()
    assert calls == [((1,), {"do_sample": False})]


def test_enabling_twice_wraps_once_and_disabling_restores(target):
    hf_specdecpp.enable()
    wrapper = GenerationMixin.generate
    hf_specdecpp.enable()
    assert GenerationMixin.generate is wrapper
    hf_specdecpp.disable()
    assert GenerationMixin.generate is wrapper.__wrapped__
    hf_specdecpp.disable()
    with pytest.raises(ValueError, match="model_kwargs"):
        target.generate(prompt(), candidate_generator=SpecDecPP)
    hf_specdecpp.enable()


def test_a_wrapper_put_on_top_of_ours_is_not_dropped(monkeypatch):
    monkeypatch.setattr(GenerationMixin, "generate", lambda self, *args, **kwargs: None)
    with pytest.raises(RuntimeError, match="wrapped again"):
        hf_specdecpp.disable()


def test_models_and_configs_are_left_as_they_were(target, draft, ours):
    def state():
        base = draft.get_base_model()
        return [(set(vars(m)), m.config.to_dict(), m.generation_config.to_dict()) for m in (target, base)]

    before = copy.deepcopy(state())
    target.generate(prompt(), **GREEDY, **ours)
    assert state() == before


def test_threads_with_different_settings_do_not_meet(target, draft):
    """Eight threads share one target and one draft; each must see its own bounds and its own head output."""
    ids = [prompt(5 + i, seed=i) for i in range(8)]
    plain = [target.generate(i, **GREEDY)[0].tolist() for i in ids]
    alone, together, outputs = {}, {}, {}

    def run(i, results):
        with collect_stats() as stats:
            settings = StoppingConfig(i / 8, max_draft_length=2 + i)
            output = target.generate(
                ids[i], **GREEDY, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=settings
            )
        results[i], outputs[i] = (stats.drafted, stats.accepted), output[0].tolist()

    for i in range(8):
        run(i, alone)
    threads = [threading.Thread(target=run, args=(i, together)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert [outputs[i] for i in range(8)] == plain


def test_a_draft_with_its_head_loaded_in_place(target, draft, tmp_path):
    draft.save_pretrained(tmp_path)
    in_place = similar_draft(target)
    in_place.load_adapter(str(tmp_path), adapter_name="chat")
    results = []
    for assistant in (draft, in_place):
        with collect_stats() as stats:
            settings = StoppingConfig(0.5)
            output = target.generate(
                prompt(), **GREEDY, assistant_model=assistant, candidate_generator=SpecDecPP, stopping_config=settings
            )
        results.append((output.tolist(), stats.drafted, stats.accepted))
    assert results[0] == results[1]


def test_a_peft_target(target, ours):
    tuned = get_peft_model(copy.deepcopy(target), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    ids = prompt()
    plain = tuned.generate(input_ids=ids, **GREEDY)
    assert plain.tolist() != target.generate(ids, **GREEDY).tolist()
    assert tuned.generate(input_ids=ids, **GREEDY, **ours).tolist() == plain.tolist()


@pytest.mark.parametrize(
    "processors",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 12},
        {"bad_words_ids": [[17], [40, 41]]},
        {"forced_eos_token_id": 2},
        {"suppress_tokens": list(range(4, 80))},
    ],
)
def test_logits_processors(target, ours, processors):
    ids = prompt()
    plain = target.generate(ids, **GREEDY, **processors)
    assert target.generate(ids, **GREEDY, **ours, **processors).tolist() == plain.tolist()


def test_a_dictionary_of_outputs(target, ours):
    settings = GREEDY | {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain, dictionary = target.generate(prompt(), **settings), target.generate(prompt(), **settings, **ours)
    assert dictionary.sequences.tolist() == plain.sequences.tolist()
    for name in ("scores", "logits"):
        for a, b in zip(getattr(plain, name), getattr(dictionary, name), strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)
    assert dictionary.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()


class Recorder(TextStreamer):
    def __init__(self, tokenizer, **kwargs):
        super().__init__(tokenizer, **kwargs)
        self.text, self.ended = "", False

    def on_finalized_text(self, text, stream_end=False):
        self.text += text
        self.ended |= stream_end


def test_streamers(target, ours, tokenizer):
    plain, assisted = Recorder(tokenizer, skip_prompt=True), Recorder(tokenizer, skip_prompt=True)
    target.generate(prompt(), **GREEDY, streamer=plain)
    target.generate(prompt(), **GREEDY, streamer=assisted, **ours)
    assert assisted.text == plain.text and assisted.ended


def test_an_iterator_streamer_in_a_thread(target, ours, tokenizer):
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    thread = threading.Thread(target=lambda: target.generate(prompt(), **GREEDY, streamer=streamer, **ours))
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer.decode(target.generate(prompt(), **GREEDY)[0, 7:])


def test_stop_strings_end_where_plain_decoding_ends(target, ours, tokenizer):
    """transformers' own assisted decoding runs past a stop string in the middle of an accepted run."""
    ids = prompt()
    text = tokenizer.decode(target.generate(ids, **GREEDY)[0, 7:])
    shortened = 0
    for position in range(1, len(text) - 1):
        settings = GREEDY | {"stop_strings": [text[position : position + 2]], "tokenizer": tokenizer}
        plain_streamer, streamer = Recorder(tokenizer, skip_prompt=True), Recorder(tokenizer, skip_prompt=True)
        plain = target.generate(ids, **settings, streamer=plain_streamer)
        found = target.generate(ids, **settings, streamer=streamer, **ours)
        assert found.tolist() == plain.tolist()
        assert streamer.text == plain_streamer.text
        shortened += found.shape[1] < 37
    assert shortened > 5


def test_stop_strings_of_the_generation_config_and_without_a_tokenizer(target, ours, tokenizer):
    text = tokenizer.decode(target.generate(prompt(), **GREEDY)[0, 7:])
    config = copy.deepcopy(target.generation_config)
    config.update(stop_strings=text[5:7], **GREEDY)
    plain = target.generate(prompt(), generation_config=config, tokenizer=tokenizer)
    assert target.generate(prompt(), generation_config=config, tokenizer=tokenizer, **ours).tolist() == plain.tolist()
    assert config.stop_strings == text[5:7]
    with pytest.raises(ValueError, match="pass the target's tokenizer"):
        target.generate(prompt(), generation_config=config, **ours)


class StopsAt(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


def test_the_callers_own_criteria_and_outputs_of_a_trimmed_run(target, ours):
    generated = target.generate(prompt(), **GREEDY)[0, 7:].tolist()
    for token in generated[::3]:
        settings = GREEDY | {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True}
        settings["stopping_criteria"] = StoppingCriteriaList([StopsAt(token)])
        plain, found = target.generate(prompt(), **settings), target.generate(prompt(), **settings, **ours)
        assert found.sequences.tolist() == plain.sequences.tolist()
        assert len(found.scores) == len(plain.scores) and len(found.hidden_states) == len(plain.hidden_states)
        assert found.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()


def test_max_time(target, ours):
    output = target.generate(
        prompt(), do_sample=False, max_new_tokens=400,
        stopping_criteria=StoppingCriteriaList([MaxTimeCriteria(0.05, time.time())]), **ours,
    )  # fmt: skip
    assert 8 <= output.shape[1] < 300


def test_chat_templates_and_pipelines(target, ours, tokenizer):
    chat = [{"role": "user", "content": "Why is the sky blue?"}]
    generator = pipeline("text-generation", model=target, tokenizer=tokenizer)
    plain = generator(chat, max_new_tokens=20, do_sample=False)
    with collect_stats() as stats:
        found = generator(chat, max_new_tokens=20, do_sample=False, **ours)
    assert found == plain and stats.rounds > 0


def test_other_candidate_generators_and_factories(target, draft):
    plain = target.generate(prompt(), **GREEDY).tolist()
    stock = draft.get_base_model()
    with collect_stats() as stats:
        found = target.generate(
            prompt(), **GREEDY, assistant_model=stock, candidate_generator=AssistedCandidateGenerator
        )
    assert found.tolist() == plain and stats.drafted > 0

    def lookup(generation_config):
        return PromptLookupCandidateGenerator(num_output_tokens=3, max_length=generation_config.max_length)

    assert target.generate(prompt(), **GREEDY, candidate_generator=lookup).tolist() == plain


def test_the_patch_free_callable(target, draft, tokenizer):
    hf_specdecpp.disable()
    try:
        for streamer in (None, Recorder(tokenizer)):
            method = SpecDecPP(assistant_model=draft, stopping_config=StoppingConfig(0.4), streamer=streamer)
            found = target.generate(prompt(), **GREEDY, custom_generate=method, streamer=streamer)
            assert found.tolist() == target.generate(prompt(), **GREEDY).tolist()
        assert streamer.text == tokenizer.decode(found[0])
    finally:
        hf_specdecpp.enable()


def test_the_folder_that_a_hub_repository_can_carry(target, ours, tmp_path):
    from hf_specdecpp.hub.push import write_custom_generate

    write_custom_generate(tmp_path)
    del ours["candidate_generator"]
    found = target.generate(prompt(), **GREEDY, custom_generate=str(tmp_path), trust_remote_code=True, **ours)
    assert found.tolist() == target.generate(prompt(), **GREEDY).tolist()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"candidate_generator": "specdecpp"}, "must be a subclass of CandidateGenerator"),
        ({"custom_generate": lambda *a, **k: None}, "both choose how to generate"),
        (
            {"candidate_generator": SpecDecPP(assistant_model=with_head(tiny_model("llama")))},
            "takes the class, not an",
        ),
        ({"synced_gpus": True}, "synced_gpus"),
        ({"candidate_generator": AssistedCandidateGenerator}, "takes no stopping_config"),
    ],
)
def test_bad_calls_are_refused(target, ours, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        target.generate(prompt(), **GREEDY, **(ours | arguments))


def test_none_for_a_candidate_generator_means_not_given(target):
    plain = target.generate(prompt(), **GREEDY)
    assert target.generate(prompt(), **GREEDY, candidate_generator=None).tolist() == plain.tolist()


def test_arguments_by_position(target, ours, tokenizer):
    text = tokenizer.decode(target.generate(prompt(), **GREEDY)[0, 7:])
    config = copy.deepcopy(target.generation_config)
    config.update(stop_strings=text[5:7], **GREEDY)
    plain = target.generate(prompt(), config, tokenizer=tokenizer)
    assert target.generate(prompt(), config, tokenizer=tokenizer, **ours).tolist() == plain.tolist()
    with pytest.raises(TypeError, match="multiple values for argument 'generation_config'"):
        target.generate(prompt(), config, generation_config=config, **ours)


def test_the_class_for_custom_generate_is_refused(target, draft):
    with pytest.raises(TypeError, match=r"custom_generate=SpecDecPP is a class: write candidate_generator=SpecDecPP"):
        target.generate(prompt(), custom_generate=SpecDecPP, assistant_model=draft)


def test_different_tokenizers_are_refused(target, ours, tokenizer):
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<another>"])
    with pytest.raises(ValueError, match="a draft with the target's tokenizer"):
        target.generate(prompt(), **GREEDY, tokenizer=tokenizer, assistant_tokenizer=other, **ours)


def test_bfloat16_models(tokenizer):
    target = tiny_model("llama").to(torch.bfloat16)
    draft = with_head(similar_draft(target))
    assert draft.get_base_model().lm_head.acceptance_head["default"].out.weight.dtype == torch.float32
    assert draft.get_base_model().config.hidden_size == HIDDEN
    output = target.generate(prompt(), **GREEDY, assistant_model=draft, candidate_generator=SpecDecPP)
    assert output.shape[1] <= 37
