"""The acceptance head at work: its word on drafted tokens in as few operations as it can be had."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ..acceptance import AcceptanceHeadConfig, AcceptanceHeadLayer
from ..acceptance.features import FEATURES, unscaled_features

# Of a confidence head: it is trained without a weight, and comes without a recommendation of ours.
CONFIDENCE = AcceptanceHeadConfig(reads="before", rejection_weight=1.0, min_draft_length=1, rule="cost-aware")


class Judge:
    """A draft's active acceptance head.

    Args:
        layer (`AcceptanceHeadLayer`), config (`AcceptanceHeadConfig`): of the active head.
    """

    def __init__(self, layer: AcceptanceHeadLayer, config: AcceptanceHeadConfig):
        self.config, self.is_late = config, config.reads == "after"
        head = layer.acceptance_head[layer.active_head_name]
        self.device = head.out.weight.device
        # Transposed once, and the features' scales (see `token_features`) with their weights, so that what is left is
        # a product a layer.
        self.blocks = [(b.linear.weight.t(), b.linear.bias) for b in head.blocks for _ in range(head.repeats)]
        self.out = head.out.weight.t(), head.out.bias
        self.scaled = None
        if config.features:
            self.scaled = head.features.weight.t() / torch.tensor([[FEATURES[n]] for n in config.features]).to(
                self.device
            )

    @torch.no_grad()
    def __call__(self, states: Tensor, probability: Tensor, entropy: Tensor, position: list[int]) -> Tensor:
        """Raw logits of acceptance, (n, k), for `calibrated`.

        Args:
            states (`torch.Tensor` of shape `(n, hidden_size)`): what the tokens were drawn from or, late, read into.
            probability (`torch.FloatTensor` of shape `(n, k)`): of the tokens.
            entropy (`torch.FloatTensor` of shape `(n, 1)`).
            position (`list[int]`): in the draft, from 1.
        """
        n, k = probability.shape
        x = states.to(self.device, torch.float32)
        if self.scaled is not None:
            places = entropy
            if "position" in self.config.features:
                places = torch.tensor(position, device=entropy.device)[:, None]
            if k > 1:
                entropy, places = entropy.expand(n, k), places.expand(n, k)
            seen = unscaled_features(self.config.features, probability, entropy, places).to(self.device)
            if k > 1:
                x = x.repeat_interleave(k, dim=0)
            x = torch.addmm(x, seen.view(len(x), -1), self.scaled)
        for weight, bias in self.blocks:
            x = x + F.silu(torch.addmm(bias, x, weight))
        weight, bias = self.out
        raw = torch.addmm(bias, x, weight)
        return raw if k == 1 else raw.view(n, -1).expand(n, k)

    def calibrated(self, raw: float) -> float:
        """The probability of acceptance from a raw logit."""
        return 1 / (1 + math.exp(min(-self.config.acceptance_logits(raw), 700.0)))


class ConfidenceJudge(Judge):
    """A DSpark draft's own confidence head: how likely a token is accepted if all before it in its block are."""

    def __init__(self):
        self.config, self.is_late = CONFIDENCE, False

    def __call__(self, states: Tensor, probability: Tensor, entropy: Tensor, position: list[int]) -> Tensor:
        """Raw logits of acceptance, (n, k).

        Args:
            states (`torch.Tensor` of shape `(n, 1)`): the head's logits, which it made where the tokens were drawn.
            probability (`torch.Tensor` of shape `(n, k)`), entropy, position: see `Judge`; it does not look at them.
        """
        return states.float().expand_as(probability)
