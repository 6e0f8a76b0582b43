"""What a head may see of a drafted token besides a hidden state. Knows torch only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FEATURES = {"probability": 3.0, "entropy": 3.0, "position": 1.0}  # by name, what it is divided by


def token_features(names: Sequence[str], probability: Tensor, entropy: Tensor, position: Tensor) -> Tensor:
    """The features `names` of drafted tokens, scaled to sizes near 1.

    Args:
        names: of `FEATURES`.
        probability (`torch.FloatTensor`): the draft's probability of the token, after logits processors.
        entropy (`torch.FloatTensor`): of the draft's distribution before them, in nats.
        position (`torch.Tensor`): the token's place in its round, from 1.

    Returns:
        `torch.FloatTensor` of the arguments' shape with one more dimension, of size `len(names)`.
    """
    if not names:
        return probability.new_empty((*probability.shape, 0))
    return unscaled_features(names, probability, entropy, position) / probability.new_tensor(
        [FEATURES[name] for name in names]
    )


def unscaled_features(names: Sequence[str], probability: Tensor, entropy: Tensor, position: Tensor) -> Tensor:
    """`token_features` before they are divided."""
    found = {
        "probability": lambda: torch.logit(probability.float(), eps=1e-5),
        "entropy": lambda: entropy.float(),
        "position": lambda: position.float().log(),
    }
    return torch.stack([found[name]() for name in names], dim=-1)
