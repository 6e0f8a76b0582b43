"""EAGLE-3 drafts against the reference, and their files."""

import copy
import json
from pathlib import Path

import pytest
import torch
from models import HIDDEN, VOCAB, informed_draft, prompt, tiny_model
from safetensors.torch import load_file, save_file

from hf_specdecpp import load_draft
from hf_specdecpp.drafting.informed import reading
from hf_specdecpp.drafting.informed.config import Eagle3Config
from hf_specdecpp.drafting.informed.eagle3 import Eagle3ForCausalLM

REFERENCE = Path(__file__).parent / "fixtures" / "eagle3"
VARIANTS = sorted(path.name for path in REFERENCE.iterdir())


def load(variant: str):
    return Eagle3ForCausalLM.from_pretrained(REFERENCE / variant).eval()


def test_every_flag_has_a_reference():
    configs = [load(variant).config for variant in VARIANTS]
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm", "attention_bias"):
        assert {getattr(config, flag) for config in configs} == {True, False}
    assert {config.num_taps for config in configs} == {3, 5}
    assert {config.num_hidden_layers for config in configs} == {1, 2}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_the_references(variant):
    compare(load(variant), variant)


def test_flags_of_specforge_mean_the_same(tmp_path):
    """In a flat configuration, whose tensors do not tell that states are normed before they are fed back."""
    draft = load("norm_output")
    draft.config.layout = "eagle"
    draft.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["norm_output"] is written["fc_norm"] is True and "transformer_layer_config" not in written
    loaded = Eagle3ForCausalLM.from_pretrained(tmp_path).eval()
    compare(loaded, "norm_output")
    changed(tmp_path, norm_output=None)
    with pytest.raises(AssertionError, match="not close"):
        compare(Eagle3ForCausalLM.from_pretrained(tmp_path).eval(), "norm_output")


@torch.no_grad()
def compare(draft, variant: str) -> None:
    """Teacher-forced over the text, and unrolled from each of its places, see make_eagle3.py."""
    reference = load_file(REFERENCE / variant / "reference.safetensors")
    ids, taps, expected = reference["input_ids"][None], reference["taps"][None], reference["logits"]
    tokens, length = draft.lm_head.token_ids, ids.shape[1]
    first = draft(ids, taps=taps)
    torch.testing.assert_close(first.logits[0][:, tokens], expected[0], atol=1e-5, rtol=1e-5)
    others = torch.ones(draft.config.vocab_size, dtype=torch.bool).index_fill(0, tokens, False)
    assert (first.logits[..., others] == torch.finfo(torch.float32).min).all()
    for place in range(length):
        found = draft(ids[:, : place + 1], taps=taps[:, : place + 1], use_cache=True)
        for step in range(1, min(len(expected), length - place)):
            found = draft(
                ids[:, place + step, None], states=found.states[:, -1:], past_key_values=found.past_key_values
            )
            torch.testing.assert_close(found.logits[0, -1, tokens], expected[step, place], atol=1e-5, rtol=1e-5)


LAYER = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 1, "target_layers": [0, 1, 2],
}  # fmt: skip


def random_draft(**settings) -> Eagle3ForCausalLM:
    torch.manual_seed(0)
    draft = Eagle3ForCausalLM(Eagle3Config(**LAYER | {"draft_vocab_size": 99} | settings)).eval()
    rows = len(draft.lm_head.d2t)
    draft.lm_head.d2t.copy_(torch.randint(VOCAB - rows, (rows,)).sort().values)
    return draft


def said(draft, seed: int = 0) -> torch.Tensor:
    taps = torch.randn(1, 9, draft.model.fc.in_features, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return draft(prompt(9, seed), taps=taps).logits


@pytest.mark.parametrize("layout", ("eagle", "speculators"))
@pytest.mark.parametrize(
    "settings", ({}, {"target_layers": None}, {"norm_output": True, "own_embedding": True}), ids=str
)
def test_a_draft_is_saved_as_it_is_published(tmp_path, layout, settings):
    target, draft = tiny_model(num_hidden_layers=5), random_draft(layout=layout, **settings)
    draft.borrow(target)
    draft.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert ("midlayer.hidden_norm.weight" in stored) == (layout == "eagle")
    assert ("embed_tokens.weight" in stored) == ("own_embedding" in settings)
    assert stored["t2d"].nonzero().flatten().tolist() == draft.lm_head.token_ids.tolist()
    written = json.loads((tmp_path / "config.json").read_text())
    loaded = load_draft(tmp_path, target=target)
    assert loaded.config.target_layers == draft.config.target_layers and loaded.config.layout == layout
    assert torch.equal(said(loaded), said(draft))
    if layout == "eagle" and draft.config.target_layers:
        assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 0, 1]
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == written


def test_the_targets_embedding_is_neither_copied_nor_saved(target, tmp_path):
    random_draft().save_pretrained(tmp_path)
    draft = load_draft(str(tmp_path), target=target)
    assert draft.get_input_embeddings() is target.get_input_embeddings()
    assert copy.deepcopy(draft).get_input_embeddings() is target.get_input_embeddings()
    assert not any(p is target.get_input_embeddings().weight for p in draft.parameters())
    assert draft.dtype == target.dtype and load_draft(tmp_path, target, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("shift, where", [(1, "eagle_config"), (0, "top")])
def test_layer_ids_have_the_meaning_of_their_place(tmp_path, shift, where):
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 0]}
    draft = random_draft()
    draft.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["eagle_config"]
    written |= ids if where == "top" else {where: ids}
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert Eagle3ForCausalLM.from_pretrained(tmp_path).config.target_layers == [1 + shift, 2 + shift, 0 + shift]


def test_a_checkpoint_as_the_authors_publish_it(target, tmp_path):
    """A PyTorch file, a Llama's architecture and depth, and no rope_theta, which is then 10,000."""
    draft = random_draft()
    draft.borrow(target)
    draft.save_pretrained(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    written = json.loads((tmp_path / "config.json").read_text())
    written |= {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40, "torch_dtype": "float16"}
    for name in ("rope_theta", "rope_scaling", "dtype"):
        del written[name]
    (tmp_path / "config.json").write_text(json.dumps(written))
    loaded = load_draft(tmp_path, target)
    assert loaded.config.num_hidden_layers == 1 and loaded.config.rope_parameters["rope_theta"] == 10_000
    assert torch.equal(said(loaded), said(draft))


def test_an_ordinary_draft_is_loaded_as_ever(pair, target):
    draft = load_draft(pair / "draft", target=target, dtype="float32")
    assert type(draft) is type(target) and not draft.training


def changed(folder, tensors=None, **config):
    """Writes other tensors, without those that are `None`, and other settings."""
    stored = load_file(folder / "model.safetensors") | (tensors or {})
    save_file({n: t for n, t in stored.items() if t is not None}, folder / "model.safetensors", {"format": "pt"})
    written = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps({n: v for n, v in written.items() if v is not None}))


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        ({"midlayer.self_attn.k_proj.weight": None, "d2t": None}, {}, "it lacks d2t, midlayer.self_attn.k_proj"),
        ({"d2t": torch.arange(99) + 200}, {}, "names tokens from 200 to 396, 99 different ones for 99 rows, in a voc"),
        ({"d2t": -torch.arange(99)}, {}, "names tokens from 0 to 0, 1 different ones for 99 rows"),
        ({"norm.weight": torch.ones(31)}, {}, r"norm.weight of .* has the shape \(31,\), and its .* says \(32,\)"),
        ({"fc.weight": torch.ones(32, 97)}, {}, "fc.weight reads 97 numbers, which are no 3 states"),
        ({"fc.weight": torch.ones(32, 72)}, {}, "for a target with states of width 24, and this one has 32"),
        ({}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}, "a target of 2 layers has those"),
        ({}, {"eagle_config": {"use_aux_hidden_state": False}}, "only drafts in the format of EAGLE-3 can be loaded"),
        ({}, {"model_type": "mamba"}, "layers are of type 'mamba', and an EAGLE-3 draft can have those of llam"),
        ({}, {"sliding_window": 8, "use_sliding_window": True, "model_type": "qwen3"}, "sliding windows"),
        ({}, {"speculators_model_type": "medusa"}, "is a medusa, which cannot be loaded"),
        ({}, {"architectures": ["XDraft"], "draft_vocab_size": None}, "is a XDraft, which cannot be loaded"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(target, tmp_path, tensors, config, sentence):
    random_draft().save_pretrained(tmp_path)
    changed(tmp_path, tensors, **config)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_draft(tmp_path, target=target)
    assert "\n" not in str(caught.value)


def test_as_many_layers_are_named_as_the_draft_reads(target, tmp_path):
    random_draft().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"target_layers=\[0, 1\] names 2 hidden states, and .* reads 3: name as many"
    ):
        load_draft(tmp_path, target, [0, 1])


def test_a_draft_for_another_vocabulary_is_one_sentence(tmp_path):
    random_draft().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="for a target with a vocabulary of 264, and this one has 300"):
        load_draft(tmp_path, target=tiny_model(vocab_size=300))
    with pytest.raises(ValueError, match="there is no folder"):
        load_draft(tmp_path / "nothing", target=tiny_model())


def test_a_draft_without_states_or_target_says_what_it_needs(target):
    draft = random_draft()
    with pytest.raises(ValueError, match="knows no target yet: load it with"):
        draft(prompt(), taps=torch.zeros(1, 7, 96))
    draft.borrow(target)
    with pytest.raises(ValueError, match="generate with candidate_generator=SpecDecPP"):
        target.generate(prompt(), assistant_model=draft, max_new_tokens=4)


@pytest.mark.parametrize("layout", ("eagle", "speculators"))
def test_a_wrong_reading_of_layer_ids_is_said(tmp_path, layout, monkeypatch):
    """Trained with one meaning, published with the other."""
    said = []
    monkeypatch.setattr(reading.logger, "warning", said.append)
    target, prompts = tiny_model(num_hidden_layers=4), [prompt(8, seed)[0].tolist() for seed in range(6)]
    texts = [
        target.generate(torch.tensor([p]), attention_mask=torch.ones(1, 8), max_new_tokens=32, do_sample=False)[0]
        for p in prompts
    ]
    draft = informed_draft(target, texts, steps=40, target_layers=[1, 2, 3], layout=layout)
    draft.save_pretrained(tmp_path)
    load_draft(tmp_path, target, prompts=prompts)
    assert said == []
    wrong = [2, 3, 4] if layout == "eagle" else [0, 1, 2]
    draft.config.target_layers = wrong
    draft.save_pretrained(tmp_path)
    assert load_draft(tmp_path, target, prompts=prompts).config.target_layers == wrong
    assert len(said) == 1 and f"{wrong}, as its configuration says" in said[0] and "target_layers=[1, 2, 3]" in said[0]
    assert load_draft(tmp_path, target, [1, 2, 3], prompts).config.target_layers == [1, 2, 3] and len(said) == 1


def test_an_ordinary_draft_has_no_layers_to_read(pair, target):
    with pytest.raises(ValueError, match="is an ordinary draft, which reads no hidden states: leave target_layers"):
        load_draft(pair / "draft", target, [1, 2, 3])
