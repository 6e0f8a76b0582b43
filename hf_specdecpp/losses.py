"""The loss of the acceptance head, and the metric to judge it by. Knows torch only."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def weighted_acceptance_loss(raw_logits: Tensor, acceptance: Tensor, rejection_weight: float) -> Tensor:
    """Weighted binary cross-entropy on soft labels (arXiv 2405.19715, section 3.2).

    `sum(w (1 - P) (-log(1 - Ph)) + P (-log Ph)) / (w sum(1 - P) + sum P)` over the labelled positions, `P` being the
    acceptance and `Ph` the sigmoid of the head's raw logit. It is minimal at `Ph = P / (P + w (1 - P))`.

    Args:
        raw_logits, acceptance (`torch.FloatTensor` of one shape): a negative acceptance means that there is no label.
        rejection_weight (`float`): `w`; the paper's best is 6.

    Returns:
        A scalar; 0 if there is no label.
    """
    labelled = acceptance >= 0
    logits, p = raw_logits[labelled], acceptance[labelled]
    rejected = rejection_weight * (1 - p)
    total = -(rejected * F.logsigmoid(-logits) + p * F.logsigmoid(logits)).sum()
    return total / (rejected + p).sum().clamp(min=1e-12)


def binary_kl(logits: Tensor, acceptance: Tensor) -> Tensor:
    """KL(P || sigmoid(logits)) in nats for each position, 0 or more; the paper's dev metric is its mean.

    Args:
        logits, acceptance (`torch.FloatTensor` of one shape): calibrated logits, and labels in [0, 1].
    """
    cross_entropy = F.binary_cross_entropy_with_logits(logits, acceptance, reduction="none")
    entropy = F.binary_cross_entropy(acceptance, acceptance, reduction="none")
    return cross_entropy - entropy
