"""When to stop drafting: the rule of SpecDec++ and its settings. The rule knows torch only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .acceptance.config import AcceptanceHeadConfig, check_bounds, check_threshold


def rejection_is_likely(log_survival: Tensor, threshold: float) -> Tensor:
    """Whether at least one drafted token is rejected with a probability above `threshold`.

    SpecDec++ (arXiv 2405.19715, section 3.1) stops when `P(some Y_i is rejected, i <= k) > h`, which with the head's
    conditional acceptances is `1 - prod_{i <= k} P_i > h`.

    Args:
        log_survival (`torch.Tensor` of any shape): sum over the drafted tokens of `log P_i`, at most 0.
        threshold (`float`): `h` in [0, 1]. 0 stops at the first doubt, 1 never.

    Returns:
        `torch.BoolTensor` of the same shape and device.
    """
    return -torch.expm1(log_survival) > threshold


@dataclass(frozen=True)
class StoppingConfig:
    """When a round of drafting ends. What is left out is taken from the recommendation in the head's config.

    The newest drafted token is always submitted, and so is the one before it whose score crossed the threshold: a rule
    that dropped a drawn token for its own score would bias sampling.

    Args:
        threshold (`float`, *optional*): stop once the probability that the target rejects at least one drafted token
            exceeds this, in [0, 1]. It compares with the head's calibrated probability, so it is comparable between
            heads (and not with the paper's values, which belong to a loss weight of 6).
        min_draft_length (`int`, *optional*): the rule is not asked before so many tokens were drafted. A token is
            judged in the forward pass that draws the next one, so 1 and 2 mean the same.
        max_draft_length (`int`, *optional*): a round never drafts more tokens than this.

    Raises:
        ValueError: for a threshold outside [0, 1] or bounds that cross.
    """

    threshold: float | None = None
    min_draft_length: int | None = None
    max_draft_length: int | None = None

    def __post_init__(self):
        if self.threshold is not None:
            check_threshold(self.threshold)
        check_bounds(
            1 if self.min_draft_length is None else self.min_draft_length,
            max(self.min_draft_length or 1, 1) if self.max_draft_length is None else self.max_draft_length,
        )

    def filled_from(self, head: AcceptanceHeadConfig) -> StoppingConfig:
        """These settings with the head's recommendation in place of every `None`.

        A bound that the caller gives moves the recommended other bound out of its way.
        """
        low, high = self.min_draft_length, self.max_draft_length
        if low is None:
            low = head.min_draft_length if high is None else min(head.min_draft_length, high)
        if high is None:
            high = max(head.max_draft_length, low)
        threshold = head.threshold if self.threshold is None else self.threshold
        return replace(self, threshold=threshold, min_draft_length=low, max_draft_length=high)
