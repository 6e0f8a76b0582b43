import torch
from models import similar_draft

from hf_specdecpp.costs.measure import calibrate, measure_costs, plot


def test_costs_are_measured_with_and_without_a_head_and_leave_the_models_alone(target, draft):
    before = [p.clone() for p in draft.parameters()]
    for each in (draft.get_base_model(), similar_draft(target)):
        costs = measure_costs(target, each, max_draft_length=3, context_length=16, repeats=2)
        assert len(costs.verify_seconds) == 4 and costs.draft_seconds > 0
        assert list(costs.verify_seconds) == sorted(costs.verify_seconds)
    assert all(torch.equal(a, b) for a, b in zip(before, draft.parameters(), strict=True))


def test_a_pair_is_calibrated_at_several_contexts_and_drawn(target, draft, tmp_path):
    seen = []
    found = calibrate(target, draft.get_base_model(), (8, 24), max_draft_length=2, on_context=seen.append)
    assert list(found.profiles) == seen == [8, 24]
    plot({"float32": found}, tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
