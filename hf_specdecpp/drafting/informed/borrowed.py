"""What a draft uses of its target without owning it."""

from __future__ import annotations

from torch import nn


class Borrowed:
    """A module of another model: neither saved nor moved nor copied with the one that uses it."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __deepcopy__(self, memo: dict) -> Borrowed:
        return self


def target_embedding(borrowed: Borrowed | None) -> nn.Module:
    """Raises `ValueError` if there is none."""
    if borrowed is None:
        raise ValueError(
            "the draft has no embedding of its own and knows no target yet: load it with "
            "hf_specdecpp.load_draft(name, target=model)"
        )
    return borrowed.module
