import math

import pytest
import torch
from torch.nn import functional as F

from hf_specdecpp import AcceptanceHeadConfig, StoppingConfig
from hf_specdecpp.stopping import rejection_is_likely


def stops_by_the_paper(acceptances: list[float], threshold: float) -> bool:
    """1 - P_1 P_2 ... P_k > h, in plain Python."""
    product = 1.0
    for acceptance in acceptances:
        product *= acceptance
    return 1.0 - product > threshold


@pytest.mark.parametrize("threshold", (0.0, 0.1, 0.5, 0.9, 1.0))
def test_the_rule_is_the_papers_formula(threshold):
    generator = torch.Generator().manual_seed(0)
    for k in range(1, 30):
        acceptances = torch.rand(k, generator=generator, dtype=torch.double) ** 0.3
        log_survival = F.logsigmoid(torch.logit(acceptances)).sum()
        expected = stops_by_the_paper(acceptances.tolist(), threshold)
        assert rejection_is_likely(log_survival, threshold).item() is expected


def test_nothing_judged_yet_never_stops_and_threshold_one_never_stops():
    assert not rejection_is_likely(torch.tensor(0.0), 0.0)
    assert not rejection_is_likely(torch.tensor(-50.0), 1.0)


@pytest.mark.parametrize("threshold", (-0.1, 1.1, math.nan))
def test_a_threshold_outside_0_to_1_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold is the probability of a rejection"):
        StoppingConfig(threshold=threshold)
    with pytest.raises(ValueError, match="threshold is the probability of a rejection"):
        AcceptanceHeadConfig(threshold=threshold)


@pytest.mark.parametrize("low, high", [(3, 2), (0, 4), (0, None), (None, 0), (-1, -1)])
def test_bounds_that_cross_are_refused(low, high):
    with pytest.raises(ValueError, match="1 <= min_draft_length <= max_draft_length"):
        StoppingConfig(min_draft_length=low, max_draft_length=high)


def test_what_is_left_out_comes_from_the_head():
    head = AcceptanceHeadConfig(threshold=0.6, min_draft_length=3, max_draft_length=9)
    assert StoppingConfig().filled_from(head) == StoppingConfig(0.6, 3, 9)
    assert StoppingConfig(0.2).filled_from(head) == StoppingConfig(0.2, 3, 9)
    assert StoppingConfig(max_draft_length=2).filled_from(head) == StoppingConfig(0.6, 2, 2)
    assert StoppingConfig(min_draft_length=12).filled_from(head) == StoppingConfig(0.6, 12, 12)
