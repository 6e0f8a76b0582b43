import pytest
import torch

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.trainer import fit_calibration


def test_calibration_recovers_a_known_distortion():
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(20000, generator=generator) * 2
    config = AcceptanceHeadConfig(rejection_weight=6.0)
    raw = (true_logits - 0.4) / 1.5 - torch.log(torch.tensor(6.0))
    scale, offset = fit_calibration(config, raw, torch.sigmoid(true_logits))
    assert (scale, offset) == (pytest.approx(1.5, abs=1e-3), pytest.approx(0.4, abs=1e-3))
