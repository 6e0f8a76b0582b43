"""The acceptance head itself. Knows torch only."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """x + SiLU(Wx + b)."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class AcceptanceHead(nn.Module):
    """Predicts, from the draft's last hidden state at a drafted token and what else is known of the token, whether the
    target will accept it.

    A SiLU ResNet (SpecDec++, arXiv 2405.19715, section 3.2), in float32 whatever the draft's dtype: `to` moves it, and
    never rounds it. The paper has independent blocks; the authors' code repeats one (`[ResBlock(h)] * D`): `tied`.
    Features (not in the paper) are added to the hidden state by a linear layer.
    """

    def __init__(self, hidden_size: int, num_layers: int, tied: bool = False, num_features: int = 0):
        super().__init__()
        self.repeats = num_layers if tied else 1
        self.blocks = nn.ModuleList(
            ResidualBlock(hidden_size) for _ in range(min(num_layers, 1) if tied else num_layers)
        )
        self.features = nn.Linear(num_features, hidden_size, bias=False) if num_features else None
        self.out = nn.Linear(hidden_size, 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AcceptanceHead:
        def moved(tensor: Tensor) -> Tensor:
            applied = fn(tensor)
            return applied if applied.dtype == tensor.dtype else tensor.to(applied.device)

        return super()._apply(moved, recurse)

    def forward(self, hidden_states: Tensor, features: Tensor | None = None) -> Tensor:
        """The raw logit of acceptance.

        Args:
            hidden_states (`torch.Tensor` of shape `(batch, length, hidden_size)`): in any dtype, on any device.
            features (`torch.FloatTensor` of shape `(batch, length, num_features)`): see `token_features`.

        Returns:
            `torch.FloatTensor` of shape `(batch, length)`, on the head's device.
        """
        x = hidden_states.to(self.out.weight)
        if self.features is not None:
            x = x + self.features(features.to(x))
        for block in self.blocks:
            for _ in range(self.repeats):
                x = block(x)
        return self.out(x).squeeze(-1)
