"""DFlash and DSpark drafts against the reference, and their files."""

import copy
import json
from pathlib import Path

import pytest
import torch
from models import HIDDEN, VOCAB, block_draft, prompt, tiny_model, with_head
from safetensors.torch import load_file
from test_eagle3 import changed

from hf_specdecpp import load_draft
from hf_specdecpp.drafting.informed import reading
from hf_specdecpp.drafting.informed.block_config import DFlashConfig, DSparkConfig
from hf_specdecpp.drafting.informed.borrowed import Borrowed
from hf_specdecpp.drafting.informed.dflash import BLOCK_DRAFTS, DFlashForCausalLM, DSparkForCausalLM
from hf_specdecpp.drafting.judge import ConfidenceJudge

REFERENCE = Path(__file__).parent / "fixtures" / "blocks"
VARIANTS = sorted(path.name for path in REFERENCE.iterdir())


def load(variant: str):
    """A draft, and what the reference says with it."""
    published = json.loads((REFERENCE / variant / "config.json").read_text())
    draft = BLOCK_DRAFTS[published["speculators_model_type"]].from_pretrained(REFERENCE / variant).eval()
    reference = load_file(REFERENCE / variant / "reference.safetensors")
    draft.model.borrowed = Borrowed(torch.nn.Embedding.from_pretrained(reference["embedding"]))
    if not draft.config.own_head:
        draft.lm_head.borrowed = Borrowed(torch.nn.Embedding.from_pretrained(reference["head"]))
    return draft, reference


def test_every_setting_has_a_reference():
    configs = [load(variant)[0].config for variant in VARIANTS]
    for flag in ("sample_from_anchor", "sliding_window_non_causal", "enable_confidence_head", "attention_bias",
                 "confidence_head_with_markov", "own_head"):  # fmt: skip
        assert {getattr(config, flag) for config in configs} == {True, False}
    assert {config.markov_head_type for config in configs} == {"vanilla", "gated", "rnn"}
    assert {config.model_type for config in configs} == {"dflash", "dspark"}
    assert {tuple(config.layer_types) for config in configs} == {
        ("full_attention",) * 2, ("sliding_attention", "full_attention"), ("sliding_attention",) * 2,
    }  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_logits_are_the_references(variant):
    """Of the block behind each place; biased by the text's tokens, as in the teacher-forced reference."""
    draft, reference = load(variant)
    ids, taps = reference["input_ids"][None], reference["taps"][None]
    tokens = draft.lm_head.token_ids if draft.config.own_head else torch.arange(draft.config.vocab_size)
    masks = torch.full((1, draft.config.block_size - 1), draft.config.mask_token_id)
    for anchor, expected in enumerate(reference["logits"]):
        found = draft(torch.cat((ids[:, : anchor + 1], masks), dim=-1), taps=taps[:, :anchor])
        memory = None
        for place, logits in enumerate(expected):
            before = ids[:, anchor + max(place - (not draft.config.sample_from_anchor), 0)]
            states = found.states[:, place]
            ours, memory = draft.biased(found.logits[:, place], before, states, memory)
            torch.testing.assert_close(ours[0, tokens], logits, atol=1e-5, rtol=1e-5)
            if "confidence" in reference:
                confidence = reference["confidence"][anchor, place, None]
                torch.testing.assert_close(draft.confidence(before, states), confidence, atol=1e-5, rtol=1e-5)
                judged = ConfidenceJudge().calibrated(draft.confidence(before, states).item())
                assert judged == pytest.approx(confidence.sigmoid().item(), abs=1e-5)


@pytest.mark.parametrize("variant", ("plain", "sliding", "sliding_non_causal"))
@torch.no_grad()
def test_masks_of_every_form_are_of_one_meaning(variant):
    """Padding, and tokens beside the text, as the engine masks them, change nothing."""
    draft, reference = load(variant)
    masks = torch.full((1, draft.config.block_size - 1), draft.config.mask_token_id)
    block = torch.cat((reference["input_ids"][None, 6:7], masks), dim=-1)
    taps, nothing = reference["taps"][None, :6], torch.randn(1, 2, reference["taps"].shape[-1])
    expected = draft(torch.cat((block.new_zeros(1, 6), block), dim=-1), taps=taps).logits
    padded = torch.cat((nothing, taps), dim=1), torch.tensor([[0] * 2 + [1] * 10]), torch.arange(12) - 2
    beside = torch.cat((taps, nothing), dim=1), torch.tensor([[1] * 6 + [0] * 2 + [1] * 4]), torch.arange(12)
    beside[2][8:] -= 2
    for more, mask, positions in (padded, beside):
        dense = torch.where(mask.bool(), 0.0, torch.finfo(torch.float32).min)[:, None, None].expand(1, 1, 12, 12)
        for form in (mask, dense, mask.bool()[:, None, None].expand(1, 1, 12, 12), {"full_attention": dense}):
            ids = torch.cat((block.new_zeros(1, 8), block), dim=-1)
            found = draft(ids, taps=more, attention_mask=form, position_ids=positions.clamp(min=0)[None]).logits
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


LAYER = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 40, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "target_layers": [0, 1, 2], "block_size": 4, "mask_token_id": 5,
}  # fmt: skip


def random_draft(kind=DFlashForCausalLM, **settings) -> DFlashForCausalLM:
    torch.manual_seed(0)
    rank = {"markov_rank": 4} if kind is DSparkForCausalLM else {}
    draft = kind(kind.config_class(**LAYER | rank | {"draft_vocab_size": 99} | settings)).eval()
    if draft.config.own_head and draft.config.draft_vocab_size < VOCAB:
        draft.lm_head.d2t.copy_(torch.randint(VOCAB - 99, (99,)).sort().values)
    return draft


@torch.no_grad()
def said(draft) -> torch.Tensor:
    taps = torch.randn(1, 5, draft.model.fc.in_features, generator=torch.Generator().manual_seed(0))
    found = draft(prompt(9), taps=taps)
    return draft.biased(found.logits[:, 1], prompt(1)[0], found.states[:, 1])[0]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DFlashForCausalLM, {"layout": "dflash", "own_head": False, "draft_vocab_size": VOCAB}),
        (DFlashForCausalLM, {"layout": "speculators", "sample_from_anchor": True}),
        (DFlashForCausalLM, {"own_embedding": True, "layer_types": ["sliding_attention", "full_attention"],
                             "use_sliding_window": True, "sliding_window": 3}),
        (DSparkForCausalLM, {"markov_head_type": "rnn"}),
        (DSparkForCausalLM, {"own_head": False, "draft_vocab_size": VOCAB, "enable_confidence_head": False}),
    ],
)  # fmt: skip
def test_a_draft_is_saved_as_it_is_published(tmp_path, kind, settings):
    target, draft = tiny_model(num_hidden_layers=5), random_draft(kind, **settings)
    draft.borrow(target)
    draft.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in stored) == draft.config.own_head
    assert ("embed_tokens.weight" in stored) == draft.config.own_embedding
    written = json.loads((tmp_path / "config.json").read_text())
    loaded = load_draft(tmp_path, target=target)
    assert type(loaded) is kind
    torch.testing.assert_close(said(loaded), said(draft), atol=1e-6, rtol=1e-6)
    for name in ("target_layers", "layout", "sliding_window", "layer_types", "sample_from_anchor"):
        assert getattr(loaded.config, name) == getattr(draft.config, name)
    if "layout" in settings and settings["layout"] == "dflash":
        assert written["dflash_config"] == {"mask_token_id": 5, "target_layer_ids": [-1, 0, 1]}
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == written


def test_what_is_the_targets_is_neither_copied_nor_saved(target, tmp_path):
    random_draft(own_head=False, draft_vocab_size=VOCAB).save_pretrained(tmp_path)
    draft = load_draft(str(tmp_path), target=target)
    again = copy.deepcopy(draft)
    assert again.get_input_embeddings() is target.get_input_embeddings()
    assert again.lm_head.weight is target.get_output_embeddings().weight
    shared = {id(target.get_input_embeddings().weight), id(target.get_output_embeddings().weight)}
    assert not any(id(p) in shared for p in draft.parameters())


def test_a_head_sits_on_an_output_layer_that_is_the_targets(target):
    """Without the target too, as where a head is trained on states that are stored."""
    draft = random_draft(own_head=False, draft_vocab_size=VOCAB)
    own = draft.lm_head
    headed = with_head(draft)
    assert headed.peft_config["default"].hidden_size == HIDDEN
    assert headed.unload() is draft and draft.lm_head is own
    draft.borrow(target)
    alone = said(draft)
    headed = with_head(draft)
    assert torch.equal(said(draft), alone)
    headed.unload()
    assert draft.lm_head is own and own.weight is target.get_output_embeddings().weight


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        ({"layers.1.self_attn.k_proj.weight": None, "d2t": None}, {}, "whole DFlash draft, it lacks d2t, layers.1.se"),
        ({"lm_head.weight": None}, {}, "whole DFlash draft, it lacks lm_head.weight"),
        ({"d2t": torch.arange(99) + 200}, {}, "names tokens from 200 to 396, 99 different ones for 99 rows, in a voc"),
        ({"norm.weight": torch.ones(31)}, {}, r"norm.weight of .* has the shape \(31,\), and its .* says \(32,\)"),
        ({"fc.weight": torch.ones(32, 97)}, {}, "fc.weight reads 97 numbers, which are no 3 states"),
        ({"fc.weight": torch.ones(32, 72)}, {}, "for a target with states of width 24, and this one has 32"),
        ({}, {"aux_hidden_state_layer_ids": [1, 2, 3]}, "a target of 2 layers has those from 0 to 2"),
        ({}, {"block_size": None}, "names no block_size, which a draft of blocks needs"),
        ({}, {"aux_hidden_state_layer_ids": None}, "names no layer ids of the target, which a draft of blocks needs"),
        ({}, {"mask_token_id": None}, "names no mask_token_id, which a draft of blocks needs"),
        ({}, {"mask_token_id": VOCAB}, f"mask_token_id is {VOCAB}, and its vocabulary has {VOCAB} tokens"),
        ({}, {"speculators_model_type": "dspark", "markov_rank": 0}, "confidence head reads a Markov head"),
        ({}, {"transformer_layer_config": {"model_type": "mamba"}}, "layers are of type 'mamba', and a draft of bloc"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(target, tmp_path, tensors, config, sentence):
    random_draft().save_pretrained(tmp_path)
    changed(tmp_path, tensors, **config)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_draft(tmp_path, target=target)
    assert "\n" not in str(caught.value)


def test_a_draft_for_another_vocabulary_is_one_sentence(tmp_path):
    random_draft().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"for a target with a vocabulary of {VOCAB}, and this one has 300"):
        load_draft(tmp_path, target=tiny_model(vocab_size=300))


def test_a_draft_without_states_or_target_says_what_it_needs(target):
    draft = random_draft()
    with pytest.raises(ValueError, match="knows no target yet: load it with"):
        draft(prompt(), taps=torch.zeros(1, 3, 96))
    draft.borrow(target)
    with pytest.raises(ValueError, match="generate with candidate_generator=SpecDecPP"):
        target.generate(prompt(), assistant_model=draft, max_new_tokens=4)


def test_both_kinds_are_registered():
    from transformers import AutoModelForCausalLM

    for config, kind in ((DFlashConfig, DFlashForCausalLM), (DSparkConfig, DSparkForCausalLM)):
        made = AutoModelForCausalLM.from_config(config(**LAYER, markov_rank=4, confidence_head_with_markov=True))
        assert type(made) is kind


@pytest.mark.slow
def test_a_wrong_reading_of_layer_ids_is_said(tmp_path, monkeypatch):
    """Trained with one meaning, published with the other."""
    warned = []
    monkeypatch.setattr(reading.logger, "warning", warned.append)
    target, prompts = tiny_model(num_hidden_layers=4), [prompt(8, seed)[0].tolist() for seed in range(6)]
    texts = [
        target.generate(torch.tensor([p]), attention_mask=torch.ones(1, 8), max_new_tokens=32, do_sample=False)[0]
        for p in prompts
    ]
    draft = block_draft(target, texts, steps=100, target_layers=[1, 2, 3], block_size=2)
    draft.save_pretrained(tmp_path)
    load_draft(tmp_path, target, prompts=prompts)
    assert warned == []
    draft.config.target_layers = [0, 1, 2]
    draft.save_pretrained(tmp_path)
    load_draft(tmp_path, target, prompts=prompts)
    assert len(warned) == 1 and "target_layers=[1, 2, 3]" in warned[0]
