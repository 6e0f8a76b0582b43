"""What proposes tokens. Every source of proposals is one small class of this form."""

from __future__ import annotations

from typing import Protocol

from ..stopping import Plan
from .draft import Draft, Node


class Drafter(Protocol):
    """Serves one generation, whose texts it was given when it was made."""

    def draft(self, plans: list[Plan]) -> Draft:
        """Proposes for each row that goes on, as far as its plan and its room allow."""

    def commit(self, paths: list[list[Node]]) -> None:
        """Learns which of its nodes are now text, in each row; the rest is to be forgotten."""

    def leave(self, going: list[int]) -> None:
        """Goes on with these of the rows alone."""
