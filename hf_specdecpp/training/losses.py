"""The loss of the acceptance head. Knows torch only."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def weighted_acceptance_loss(raw_logits: Tensor, acceptance: Tensor, rejection_weight: float) -> tuple[Tensor, Tensor]:
    """Weighted binary cross-entropy on soft labels (arXiv 2405.19715, section 3.2), as a sum and its weight.

    `sum(w (1 - P) (-log(1 - Ph)) + P (-log Ph))` and `w sum(1 - P) + sum P` over the labelled positions, `P` being the
    acceptance and `Ph` the sigmoid of the head's raw logit. Their quotient, the paper's loss, is minimal at
    `Ph = P / (P + w (1 - P))`.

    Args:
        raw_logits, acceptance (`torch.FloatTensor` of one shape): a negative acceptance means that there is no label.
        rejection_weight (`float`): `w`; the paper's best is 6.

    Returns:
        Two scalars; 0 if there is no label.
    """
    labelled = acceptance >= 0
    logits, p = raw_logits[labelled], acceptance[labelled]
    rejected = rejection_weight * (1 - p)
    total = -(rejected * F.logsigmoid(-logits) + p * F.logsigmoid(logits)).sum()
    return total, loss_weight(acceptance, rejection_weight)


def loss_weight(acceptance: Tensor, rejection_weight: float) -> Tensor:
    """The weight of `weighted_acceptance_loss`, which no prediction changes."""
    p = acceptance[acceptance >= 0]
    return (rejection_weight * (1 - p) + p).sum()
