"""What a drafter proposes: a tree of tokens for each row. A chain is the tree without branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..stopping import DraftedToken


@dataclass(eq=False)
class Node:
    """A drafted token in its place.

    Attributes:
        row (`int`): of the rows that go on.
        parent (`Node`, *optional*): the drafted token before it; `None` behind the newest token of the text.
        id (`int`, *optional*): of the vocabulary; `None` while only the device knows it.
        token (`DraftedToken`): what a rule sees.
        survival (`float`): the probability that it and all before it are accepted, as the rule estimates it.
        read_as (`int`, *optional*): its number among the tokens that the draft read in this round, if it read it.
        fed (`torch.Tensor` of shape `(hidden_size,)`, *optional*): what a draft that reads states reads beside it.
    """

    row: int
    parent: Node | None
    token: DraftedToken
    id: int | None = None
    survival: float = 1.0
    read_as: int | None = None
    fed: Tensor | None = None

    @property
    def path(self) -> list[Node]:
        """The drafted tokens from the text to this one."""
        return [*(self.parent.path if self.parent else []), self]


@dataclass
class Draft:
    """The proposals of one round.

    Attributes:
        nodes (`list[list[Node]]`): of each row that goes on, parents before children.
        tokens (`torch.LongTensor` of shape `(rows, most)`, *optional*): the same on the draft's device, where the host
            does not know them yet.
        q (`dict[int, torch.Tensor]`): for `coupling="rejection"` when sampling, by `id(node)`: what it and its
            siblings were drawn from, without replacement, `(vocab_size,)`.
        stop_reasons (`list[str]`): why drafting ended, of each row.
        passes (`int`): of the draft.
    """

    nodes: list[list[Node]]
    stop_reasons: list[str]
    tokens: Tensor | None = None
    q: dict[int, Tensor] = field(default_factory=dict)
    passes: int = 0

    @property
    def most(self) -> int:
        """Nodes of the fullest row."""
        return max(map(len, self.nodes))

    @cached_property
    def parents(self) -> list[list[int]]:
        """For each row and node the number of its parent in the row, -1 for none."""
        found = []
        for nodes in self.nodes:
            number = {id(node): i for i, node in enumerate(nodes)}
            found.append([-1 if node.parent is None else number[id(node.parent)] for node in nodes])
        return found

    @property
    def is_chain(self) -> bool:
        return all(parents == list(range(-1, len(parents) - 1)) for parents in self.parents)

    def ids(self) -> Tensor:
        """The tokens, (rows, most), zeros where a row has fewer."""
        if self.tokens is not None:
            return self.tokens
        return torch.tensor([[node.id for node in nodes] + [0] * (self.most - len(nodes)) for nodes in self.nodes])
