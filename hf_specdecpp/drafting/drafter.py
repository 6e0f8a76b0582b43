"""What proposes tokens. Every source of proposals is one small class of this form."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..stopping import Plan
from .draft import Draft, Node


class Drafter(Protocol):
    """Serves one generation, whose texts it was given when it was made."""

    @property
    def unread(self) -> int:
        """The most tokens of a text that must be read before anything is drafted, besides the newest."""

    def draft(self, plans: list[Plan]) -> Draft:
        """Proposes for each row that goes on, as far as its plan and its room allow."""

    def commit(self, paths: list[list[Node]], tokens: Tensor, logits: Tensor) -> None:
        """Learns which of its nodes are now text, in each row; the rest is to be forgotten.

        Args:
            tokens (`torch.LongTensor` of shape `(rows, n)`), logits (`torch.FloatTensor` of shape `(rows, n,
                vocab_size)`): what the target read last, and what it says behind each.
        """

    def leave(self, going: list[int]) -> None:
        """Goes on with these of the rows alone."""
