import pytest
import torch

from hf_specdecpp.training.losses import weighted_acceptance_loss


def weighted_mean(*arguments):
    total, weight = weighted_acceptance_loss(*arguments)
    return total / weight


def loss_by_hand(logits, acceptance, weight):
    """The formula of method.md, term by term."""
    numerator = denominator = 0.0
    for logit, p in zip(logits.tolist(), acceptance.tolist(), strict=True):
        if p < 0:
            continue
        predicted = 1 / (1 + torch.e**-logit)
        numerator += weight * (1 - p) * -torch.log(torch.tensor(1 - predicted)).item()
        numerator += p * -torch.log(torch.tensor(predicted)).item()
        denominator += weight * (1 - p) + p
    return numerator / denominator


@pytest.mark.parametrize("weight", (1.0, 6.0, 12.0))
def test_the_loss_is_the_papers_formula_on_labelled_positions(weight):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, generator=generator)
    acceptance = torch.rand(40, generator=generator)
    acceptance[::3] = -1.0
    expected = loss_by_hand(logits, acceptance, weight)
    assert weighted_mean(logits, acceptance, weight).item() == pytest.approx(expected, rel=1e-4)


def test_the_loss_is_minimal_at_the_deflated_probability():
    """method.md: Ph* = P / (P + w (1 - P)), which is why the weight is taken out again."""
    weight, p = 6.0, torch.tensor([0.7])
    best = torch.logit(p / (p + weight * (1 - p)))
    losses = [weighted_mean(best + delta, p, weight) for delta in (-0.05, 0.0, 0.05)]
    assert losses[1] < losses[0] and losses[1] < losses[2]


def test_a_batch_without_labels_has_no_loss():
    assert weighted_acceptance_loss(torch.randn(3), -torch.ones(3), 6.0) == (0.0, 0.0)
