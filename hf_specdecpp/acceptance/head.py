"""The acceptance head itself. Knows torch only."""

from __future__ import annotations

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
    """Predicts, from the draft's last hidden state at a drafted token, whether the target will accept that token.

    A SiLU ResNet (SpecDec++, arXiv 2405.19715, section 3.2), in float32 whatever the draft's dtype. The paper has
    independent blocks; the authors' code repeats one (`[ResBlock(h)] * D`): `tied`.
    """

    def __init__(self, hidden_size: int, num_layers: int, tied: bool = False):
        super().__init__()
        self.repeats = num_layers if tied else 1
        self.blocks = nn.ModuleList(
            ResidualBlock(hidden_size) for _ in range(min(num_layers, 1) if tied else num_layers)
        )
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(batch, length, hidden_size) in any dtype -> (batch, length), the raw logit of acceptance in float32."""
        x = hidden_states.to(self.out.weight.dtype)
        for block in self.blocks:
            for _ in range(self.repeats):
                x = block(x)
        return self.out(x).squeeze(-1)
