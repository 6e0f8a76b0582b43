"""MTP layers of tiny targets: the law of the library, and what they draft against transformers' own generator."""

import copy
from functools import cache

import pytest
import torch
from models import SHARED, VOCAB, prompt, slow, with_head
from safetensors.torch import load_file, save_file
from test_informed import compare, grown  # noqa: F401
from test_lossless import FREE, GREEDY, HEAD, MANY_ROWS, ONE_ROW, SAMPLING, accepted, check, drafted, rule, seeded
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DynamicCache,
    GenerationConfig,
    Glm4MoeConfig,
    MellumConfig,
)
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

from hf_specdecpp import DraftingConfig, StoppingConfig, load_draft
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.drafting.informed.mtp import MtpForCausalLM
from hf_specdecpp.training.unrolled import label_unrolled

LAYERS = SHARED | {
    "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_experts_per_tok": 2,
}  # fmt: skip
ROUTED = LAYERS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
CONFIGS = {
    "glm4_moe": lambda **more: Glm4MoeConfig(**ROUTED | more, head_dim=8),
    "deepseek_v3": lambda **more: DeepseekV3Config(
        **ROUTED | {"num_key_value_heads": 4} | more, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8,
    ),
    # Its MTP layer slides, and has rotary positions of its own.
    "mellum": lambda **more: MellumConfig(
        **LAYERS | more, num_experts=4, head_dim=8, sliding_window=8,
        layer_types=["full_attention", "sliding_attention"],
    ),
}  # fmt: skip
of_mellum = pytest.mark.skipif(
    not hasattr(MellumConfig(), "mtp_layer_types"), reason="this transformers has no MTP layer of Mellum"
)
ARCHITECTURES = ("glm4_moe", slow("deepseek_v3"), pytest.param("mellum", marks=[of_mellum, pytest.mark.slow]))


def checkpoint(folder, architecture: str, layers: int = 1):
    """A target with random MTP layers, saved as they are published and loaded."""
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(CONFIGS[architecture](num_mtp_layers=layers))
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(12 if "embed" in name else 6)
    target.save_pretrained(folder)
    tensors = load_file(f"{folder}/model.safetensors")
    for name, tensor in MtpModel(target, layers).state_dict().items():
        if name.startswith("layers."):
            number, rest = name.removeprefix("layers.").split(".", 1)
            name = f"mtp.layers.{number}" if architecture == "mellum" else f"model.layers.{2 + int(number)}"
            random = torch.randn(tensor.shape) / 4
            tensors[f"{name}.{rest.replace('mtp_block.', '')}"] = random if tensor.ndim > 1 else 1 + random
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    target = AutoModelForCausalLM.from_pretrained(folder).eval()
    if (
        architecture != "mellum"
    ):  # of others transformers knows how deep the published ones are, to find what is behind
        target._keys_to_ignore_on_load_unexpected = [r"model\.layers\.[2-9]\."]
    return target


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return cache(lambda architecture: trained(tmp_path_factory.mktemp(architecture), architecture))


def trained(folder, architecture: str):
    """A target, its MTP layer, which learns from texts like those that are compared, and that with a head."""
    target, texts = checkpoint(folder, architecture), []
    draft = load_draft(folder, target=target)
    for mode in (GREEDY, SAMPLING):
        for inputs, lengths in ((ONE_ROW, (11,)), (MANY_ROWS, (4, 19, 11))):
            found, _ = seeded(target, 0, **inputs, **mode, max_new_tokens=20, eos_token_id=[2, 100])
            texts += [row[max(lengths) - length :] for row, length in zip(found, lengths, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with torch.no_grad():
        taps = target(ids, output_hidden_states=True).hidden_states[-1]
    optimizer = torch.optim.Adam(draft.parameters(), 5e-3)
    for _ in range(30):
        first = draft(ids[:, 1:-1], taps=taps[:, :-2])
        second = draft(ids[:, 2:-1], states=first.states[:, :-1])
        loss = sum(
            torch.nn.functional.cross_entropy(found.logits.mT, ids[:, begin:])
            for found, begin in ((first, 2), (second, 3))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return target, draft, with_head(copy.deepcopy(draft), **HEAD)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_output_is_the_targets(models, architecture):
    """Chains and trees, one row and many, greedy and sampling, alone and mixed with lookup; rows end and leave."""
    target, draft, headed = models(architecture)
    costs = StoppingConfig(rule="cost-aware", settings={"costs": FREE, "uses_head": False})
    rounds = []
    for inputs, mode in ((ONE_ROW, GREEDY), (MANY_ROWS, GREEDY), (MANY_ROWS, SAMPLING)):
        for assistant, config, branches, sources in (
            (draft, rule("fixed"), 1, ("model",)), (headed, rule("specdec++"), 1, ("model",)),
            (draft, rule("eagle-2"), 3, ("model",)), (draft, costs, 2, ("model", "lookup", "recycling")),
        ):  # fmt: skip
            drafting = DraftingConfig(sources, branches=branches, max_nodes=8)
            found = check(target, assistant, config, drafting, **inputs, **mode)
            assert any(each.parents is not None for each in found) == (branches > 1)
            rounds += found
    assert 0 < accepted(rounds) < drafted(rounds)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("name", "branches"), [("fixed", 1), slow("eagle-2", 3)])
def test_drafts_are_those_of_whole_passes(grown, models, architecture, name, branches):  # noqa: F811
    target, draft, _ = models(architecture)
    check(target, draft, rule(name), DraftingConfig(("model",), branches=branches), **MANY_ROWS, **GREEDY)
    compare(target, draft, grown)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_the_first_token_is_that_of_transformers_generator(tmp_path, architecture):
    """Behind a prompt, and behind accepted tokens."""
    target = checkpoint(tmp_path, architecture)
    draft, text = load_draft(tmp_path, target=target), prompt(16)
    taps = target(text, output_hidden_states=True).hidden_states[-1]
    ours = draft(text[:, 1:], taps=taps[:, :-1]).logits[0]
    reference = MTPCandidateGenerator(target, GenerationConfig(do_sample=False), {})
    cache = DynamicCache(config=target.config)
    for begin, end in ((0, 9), (9, 12), (12, 13)):  # a prompt, two accepted tokens and the target's own, that alone
        outputs = target(text[:, begin:end], past_key_values=cache, output_hidden_states=True)
        known = {"position_ids": torch.arange(end + 1)[None], "attention_mask": torch.ones(1, end + 1)}
        ids, logits = reference.get_candidates(
            text[:, : end + 1], model_kwargs=known, model_outputs=outputs, is_first_iteration=False,
            n_last_matches=end - begin - 1,
        )  # fmt: skip
        torch.testing.assert_close(logits[0, 0], ours[end - 1], atol=1e-4, rtol=1e-4)
        assert ids[0, -1] == ours[end - 1].argmax()


def test_of_several_layers_the_first_drafts(tmp_path):
    target = checkpoint(tmp_path, "glm4_moe", layers=2)
    draft = load_draft(tmp_path, target=target, prompts=[[5, 6, 7]])  # its layer id has one meaning
    assert len(draft.model.layers) == 1 and draft.config.get_text_config().num_hidden_layers == 1
    stored = load_file(tmp_path / "model.safetensors")["model.layers.2.eh_proj.weight"]
    assert torch.equal(draft.model.fc.weight, stored)
    check(target, draft, rule("eagle-2"), DraftingConfig(("model",), branches=2), **ONE_ROW, **GREEDY)


def test_what_is_the_targets_is_neither_copied_nor_saved(models, tmp_path):
    target, draft, _ = models("glm4_moe")
    again = copy.deepcopy(draft)
    assert again.get_input_embeddings() is target.get_input_embeddings()
    shared = {id(p) for p in target.parameters()}
    assert not any(id(p) in shared for p in draft.parameters())
    with pytest.raises(ValueError, match="part of its target's checkpoint, and there is nothing else to save"):
        draft.save_pretrained(tmp_path)


def test_a_head_brings_its_layer_along(models, tmp_path):
    """Labelled, saved and loaded as that of any other draft."""
    target, draft, headed = models("glm4_moe")
    rows = label_unrolled(target, draft, [[5, 6, 7]], [[8, 9, 10, 11]], "greedy", Decoding(), ["before"], seed=0)
    assert rows[0]["greedy_before"].size == 4 * 32
    headed.save_pretrained(tmp_path)
    loaded = load_draft(tmp_path, target=target)
    assert isinstance(loaded, MtpForCausalLM)
    check(target, loaded, rule("specdec++"), DraftingConfig(("model",), branches=1), **ONE_ROW, **GREEDY)


def test_another_checkpoint_is_an_ordinary_draft(models, tmp_path):
    target = models("glm4_moe")[0]
    other = AutoModelForCausalLM.from_config(CONFIGS["glm4_moe"](num_mtp_layers=1))
    other.save_pretrained(tmp_path)
    assert type(load_draft(tmp_path, target=target)) is type(target)


def test_what_cannot_draft_is_one_sentence(tmp_path):
    target = checkpoint(tmp_path, "glm4_moe")
    with pytest.raises(ValueError, match="reads the last hidden state: leave target_layers out"):
        load_draft(tmp_path, target=target, target_layers=[1])
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.eh_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"names MTP layers .* so give another draft: .*eh_proj") as caught:
        load_draft(tmp_path, target=target)
    assert "\n" not in str(caught.value)


def test_a_layer_of_another_form_is_one_sentence(tmp_path, monkeypatch):
    """Like Inkling's, which has no rotary positions and a convolution's state."""
    target, tie = checkpoint(tmp_path, "glm4_moe"), MtpModel.tie_with_main_model

    def without_positions(self, main_model):
        tie(self, main_model)
        self.rotary_emb = None

    monkeypatch.setattr(MtpModel, "tie_with_main_model", without_positions)
    with pytest.raises(ValueError, match="or take another form than DeepSeek-V3's: give another draft"):
        load_draft(tmp_path, target=target)


def test_a_layer_without_states_says_what_it_needs(models):
    target, draft, _ = models("glm4_moe")
    assert draft.config.vocab_size == VOCAB
    with pytest.raises(ValueError, match="generate with candidate_generator=SpecDecPP"):
        target.generate(prompt(), assistant_model=draft, max_new_tokens=4)
