import torch
from conftest import similar_draft

from hf_specdecpp.calibration import measure_costs


def test_costs_are_measured_with_and_without_a_head_and_leave_the_models_alone(target, draft):
    before = [p.clone() for p in draft.parameters()]
    for each in (draft.get_base_model(), similar_draft(target)):
        costs = measure_costs(target, each, max_draft_length=3, context_length=16, repeats=2)
        assert len(costs.verify_seconds) == 4 and costs.draft_seconds > 0
        assert list(costs.verify_seconds) == sorted(costs.verify_seconds)
    assert all(torch.equal(a, b) for a, b in zip(before, draft.parameters(), strict=True))
