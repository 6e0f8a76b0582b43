import json
import math

import pytest
import torch
from models import CONFIGS

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.acceptance import AcceptancePeftType, model_signature


def test_the_config_survives_json(tmp_path):
    config = AcceptanceHeadConfig(
        num_layers=2, tied=True, rejection_weight=3.0, threshold=0.6, max_draft_length=7,
        decoding={"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 0.9},
        calibration_scale=1.1, calibration_offset=-0.2, target_name_or_path="org/target",
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_type"] == "ACCEPTANCE_HEAD"
    loaded = AcceptanceHeadConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.peft_type is AcceptancePeftType.ACCEPTANCE_HEAD


@pytest.mark.parametrize("rejection_weight", (1.0, 3.0, 6.0, 12.0))
def test_the_rejection_weight_is_taken_out_exactly(rejection_weight):
    """method.md: P = w Ph / (1 - Ph + w Ph)."""
    config = AcceptanceHeadConfig(rejection_weight=rejection_weight)
    raw = torch.linspace(-6, 6, 25, dtype=torch.double)
    ph = torch.sigmoid(raw)
    expected = rejection_weight * ph / (1 - ph + rejection_weight * ph)
    torch.testing.assert_close(torch.sigmoid(config.acceptance_logits(raw)), expected)


def test_calibration_follows_the_inversion():
    config = AcceptanceHeadConfig(rejection_weight=6.0, calibration_scale=2.0, calibration_offset=0.5)
    assert config.acceptance_logits(torch.tensor(1.0)).item() == pytest.approx(2 * (1 + math.log(6)) + 0.5)


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"num_layers": -1}, "num_layers counts residual blocks"),
        ({"rejection_weight": 0.0}, "must be positive"),
        ({"min_draft_length": 5, "max_draft_length": 4}, "min_draft_length=5 and max_draft_length=4"),
    ],
)
def test_bad_settings_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        AcceptanceHeadConfig(**setting)


def test_signatures_tell_models_apart():
    # Of one family and shape; which layers slide is not told.
    signatures = [model_signature(config) for name, config in CONFIGS.items() if name != "qwen2_mixed"]
    assert signatures[0] == "llama-2x32-264" and len(set(signatures)) == len(signatures)
