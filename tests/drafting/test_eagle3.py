"""EAGLE-3 drafts against the reference, and their files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

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
@torch.no_grad()
def test_logits_are_the_references(variant):
    """Teacher-forced over the text, and unrolled from each of its places, see make_eagle3.py."""
    draft, reference = load(variant), load_file(REFERENCE / variant / "reference.safetensors")
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
