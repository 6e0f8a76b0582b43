"""The acceptance head as a PEFT method: attach, save, load, switch, and leave the draft alone."""

import copy
import pickle

import pytest
import torch
from models import CONFIGS, HIDDEN, VOCAB, prompt, randomise_head, similar_draft, tiny_model, with_head
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_specdecpp import AcceptanceHeadConfig, SpecDecPP, StoppingConfig
from hf_specdecpp.acceptance import acceptance_layer, listening


def heard(model, ids) -> torch.Tensor:
    with torch.no_grad(), listening() as listener:
        model(ids)
    return acceptance_layer(model).acceptance_logits(listener.hidden_states)


@pytest.fixture
def saved(tmp_path):
    """A draft on disk and a head trained for it, also on disk."""
    tiny_model().save_pretrained(tmp_path / "draft")
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    model = with_head(draft, num_layers=2)
    model.save_pretrained(tmp_path / "head")
    return tmp_path, heard(model, prompt())


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_the_drafts_logits_stay_bit_identical(architecture):
    draft = tiny_model(architecture)
    ids = prompt(9)
    with torch.no_grad():
        before = draft(ids).logits
        model = with_head(draft)
        assert torch.equal(model(ids).logits, before)
        with listening() as listener:
            assert torch.equal(model(ids).logits, before)
    assert acceptance_layer(model).acceptance_logits(listener.hidden_states).shape == (1, 9)
    assert torch.equal(model.unload()(ids).logits, before)


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_the_head_reads_the_last_hidden_state(architecture):
    model = with_head(tiny_model(architecture))
    head = acceptance_layer(model).acceptance_head["default"]
    with torch.no_grad():
        hidden = model(prompt(9), output_hidden_states=True).hidden_states[-1]
        torch.testing.assert_close(heard(model, prompt(9)), head(hidden))


def test_the_head_is_not_evaluated_unless_somebody_listens():
    model = with_head(tiny_model())
    calls = []
    acceptance_layer(model).acceptance_head["default"].register_forward_hook(lambda *args: calls.append(1))
    model(prompt())
    assert calls == []
    heard(model, prompt())
    assert calls == [1]


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_the_checkpoint_holds_the_head_alone(architecture, tmp_path):
    draft = tiny_model(architecture)
    model = with_head(draft, num_layers=2)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 6 and all(".acceptance_head." in name for name in tensors)
    assert sum(t.numel() for t in tensors.values()) == 2 * (HIDDEN * HIDDEN + HIDDEN) + HIDDEN + 1


def test_only_the_head_is_trainable_and_it_alone_gets_gradients():
    model = get_peft_model(tiny_model(), AcceptanceHeadConfig())
    assert all(".acceptance_head." in n for n, p in model.named_parameters() if p.requires_grad)
    ids = prompt()
    places = torch.arange(ids.shape[1])[None]
    raw_logits = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), places=places, features=torch.empty(*ids.shape, 0),
        acceptance_only=True,
    )  # fmt: skip
    raw_logits.sum().backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }


def test_every_way_to_load_gives_the_same_head(saved):
    folder, expected = saved
    load = AutoModelForCausalLM.from_pretrained
    models = {
        "PeftModel": PeftModel.from_pretrained(load(folder / "draft"), folder / "head"),
        "another name": PeftModel.from_pretrained(load(folder / "draft"), folder / "head", adapter_name="chat"),
        "AutoPeftModelForCausalLM": AutoPeftModelForCausalLM.from_pretrained(folder / "head"),
        "AutoModelForCausalLM": load(folder / "head"),
    }
    models["load_adapter"] = load(folder / "draft")
    models["load_adapter"].load_adapter(str(folder / "head"))
    for name, model in models.items():
        torch.testing.assert_close(heard(model.eval(), prompt()), expected, msg=name)


def test_a_head_stays_float32_on_a_bfloat16_draft(saved):
    folder, _ = saved
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft", dtype=torch.bfloat16)
    draft.load_adapter(str(folder / "head"))
    assert {p.dtype for p in acceptance_layer(draft).acceptance_head.parameters()} == {torch.float32}
    assert draft.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "cast", (lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.to("cpu").bfloat16())
)
def test_a_head_stays_float32_when_its_draft_is_cast(target, cast):
    draft = with_head(similar_draft(target), features=["probability", "entropy"], reads="before")
    before = copy.deepcopy(acceptance_layer(draft).acceptance_head["default"].state_dict())
    cast(draft)
    assert draft.dtype != torch.float32
    for name, tensor in acceptance_layer(draft).acceptance_head["default"].state_dict().items():
        assert torch.equal(tensor, before[name]), name
    output = target.generate(
        prompt(), assistant_model=draft, candidate_generator=SpecDecPP, max_new_tokens=9, do_sample=False,
        stopping_config=StoppingConfig(0.5),
    )  # fmt: skip
    assert output.tolist() == target.generate(prompt(), max_new_tokens=9, do_sample=False).tolist()


def test_named_heads_side_by_side(saved, tmp_path):
    folder, first = saved
    other = with_head(AutoModelForCausalLM.from_pretrained(folder / "draft"), seed=9)
    other.save_pretrained(folder / "other")
    second = heard(other, prompt())
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    draft.load_adapter(str(folder / "head"), adapter_name="greedy")
    draft.load_adapter(str(folder / "other"), adapter_name="sampling")
    for name, expected in (("greedy", first), ("sampling", second), ("greedy", first)):
        draft.set_adapter(name)
        torch.testing.assert_close(heard(draft, prompt()), expected)
    draft.set_adapter(["greedy", "sampling"])
    with pytest.raises(ValueError, match="one acceptance head can be active"):
        heard(draft, prompt())


def test_a_head_beside_a_lora(saved):
    folder, _ = saved
    load = AutoModelForCausalLM.from_pretrained
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    tuned = get_peft_model(load(folder / "draft"), lora)
    tuned.save_pretrained(folder / "lora")
    with torch.no_grad():
        expected_logits = tuned(prompt()).logits
    head = acceptance_layer(load(folder / "head")).acceptance_head["default"]
    with torch.no_grad():
        expected = head(tuned(prompt(), output_hidden_states=True).hidden_states[-1])

    draft = load(folder / "draft")
    draft.load_adapter(str(folder / "lora"), adapter_name="style")
    draft.load_adapter(str(folder / "head"), adapter_name="chat")
    draft.set_adapter(["style", "chat"])
    with torch.no_grad():
        torch.testing.assert_close(draft(prompt()).logits, expected_logits)
    torch.testing.assert_close(heard(draft, prompt()), expected)


def test_a_head_of_another_width_or_vocabulary_is_refused(saved):
    folder, _ = saved
    wider = tiny_model(hidden_size=64)
    with pytest.raises(ValueError, match=r"hidden states of size 32, but the draft has 64: it belongs to '.*draft'"):
        PeftModel.from_pretrained(wider, folder / "head")
    with pytest.raises(ValueError, match="vocabulary of size 264, but the draft has 300"):
        tiny_model(vocab_size=300).load_adapter(str(folder / "head"))
    with pytest.raises(ValueError, match="drafts of signature llama-2x32-264, but the draft has qwen2-2x32-264"):
        PeftModel.from_pretrained(tiny_model("qwen2"), folder / "head")


def test_a_model_without_output_embedding_is_refused():
    with pytest.raises(ValueError, match="no output embedding"):
        get_peft_model(tiny_model().model, AcceptanceHeadConfig(task_type=None))


@pytest.mark.parametrize("architecture", ("llama", "qwen2"))
def test_the_output_embedding_of_a_draft_with_a_head_is_its_own(architecture, tmp_path):
    draft = tiny_model(architecture)
    own = draft.get_output_embeddings()
    with_head(tiny_model(architecture)).save_pretrained(tmp_path)
    draft.load_adapter(str(tmp_path))
    draft.load_adapter(str(tmp_path), adapter_name="second")
    assert draft.get_output_embeddings() is own
    assert set(acceptance_layer(draft).acceptance_head) == {"default", "second"}
    twin = copy.deepcopy(draft)
    assert twin.get_output_embeddings() is acceptance_layer(twin).base_layer is not own
    torch.testing.assert_close(heard(pickle.loads(pickle.dumps(draft)), prompt()), heard(draft, prompt()))


def test_embeddings_are_resized_before_a_head_is_attached_or_after_it_is_gone():
    """It used to resize the input embedding, and then to fail."""
    draft = tiny_model()
    model = with_head(draft)
    ids = prompt()
    before = model(ids).logits
    for resized in (model, draft):
        with pytest.raises(ValueError, match="resize the embeddings of the draft alone, then attach"):
            resized.resize_token_embeddings(VOCAB + 8)
    assert torch.equal(model(ids).logits, before)
    bare = model.unload()
    bare.resize_token_embeddings(VOCAB + 8, mean_resizing=False)
    assert bare.get_output_embeddings().weight.shape[0] == VOCAB + 8
    assert set(vars(bare)) <= set(vars(tiny_model())) | {"vocab_size"}


def test_a_copy_of_a_draft_has_a_head_of_its_own():
    model = with_head(tiny_model())
    expected = heard(model, prompt())
    twin = copy.deepcopy(model)
    randomise_head(twin, seed=8)
    torch.testing.assert_close(heard(model, prompt()), expected)
    assert not torch.allclose(heard(twin, prompt()), expected)


def test_merging_is_refused():
    model = with_head(tiny_model())
    with pytest.raises(NotImplementedError, match="changes no weights"):
        model.merge_and_unload()
