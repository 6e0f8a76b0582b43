"""Proposals from what the target thought of before: each token's likeliest successors when it last stood in a pass."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from ..decoding.sequences import Sequences
from ..stopping import DraftedToken
from .draft import Node

MOST_BYTES = 2_000_000


class RecyclingTable:
    """The last top-k successors of every token, by the target: `generate(..., recycling_table=table)`.

    Without one a generation begins with an empty table of its own. One that is passed goes on learning from generation
    to generation, and the output is exact whatever it holds. Threads may use one at once.

    Args:
        vocab_size (`int`): of the target, `model.config.get_text_config().vocab_size`.

    Attributes:
        successors (`torch.IntTensor` of shape `(vocab_size, k)`): the likeliest first, -1 where nothing is known;
            under 2 MB, or one successor of each token.
    """

    def __init__(self, vocab_size: int):
        if not isinstance(vocab_size, Integral) or isinstance(vocab_size, bool) or vocab_size < 1:
            raise ValueError(f"vocab_size counts tokens and must be a whole number from 1, got {vocab_size!r}")
        self.k = max(min(8, vocab_size, MOST_BYTES // (4 * vocab_size)), 1)
        self.successors = torch.full((vocab_size, self.k), -1, dtype=torch.int32)

    def check(self, vocab_size: int) -> None:
        """Raises `ValueError` if it was made for another vocabulary than the target's."""
        if len(self.successors) != vocab_size:
            raise ValueError(
                f"the recycling_table is for {len(self.successors)} tokens and the target has {vocab_size}: give it "
                f"RecyclingTable({vocab_size})"
            )

    def __repr__(self) -> str:
        known = int((self.successors[:, 0] >= 0).sum())
        size = f"{self.successors.nbytes / 1e6:.1f} MB"
        return f"RecyclingTable({known} of {len(self.successors)} tokens known, top {self.k}, {size})"


class Recycling:
    """Token Recycling (arXiv 2408.08696): trees from a table of the last successors of every token.

    The table learns from every position that the target passes over, rejected tokens included; all rows of a batch
    share it.

    Args:
        table (`RecyclingTable`): of this generation, or one that earlier generations filled.
        most (`int`): nodes proposed for each text.
    """

    name = "recycling"

    def __init__(self, sequences: Sequences, table: RecyclingTable, most: int = 16, depth: int = 4):
        self.sequences, self.table, self.most, self.depth = sequences, table, most, depth

    def propose(self, number: int, limit: int) -> list[Node]:
        """A tree behind a row's text, the likelier ranks first."""
        newest = self.sequences.texts[self.sequences.going[number]][-1]
        nodes: list[Node] = []
        level: list[tuple[Node | None, int]] = [(None, newest)]
        for depth in range(1, min(self.depth, limit) + 1):
            rows = self.table.successors[[token for _, token in level]].tolist()
            grown = []
            # Fewer branches the deeper and the less likely the parent: what they add up to stays about the same.
            for (parent, _), successors in zip(level, rows, strict=True):
                width = self.table.k if parent is None else max(3 - parent.token.rank, 1)
                for rank, token in enumerate(successors[:width], start=1):
                    if token >= 0 and len(nodes) < self.most:
                        seen = DraftedToken(depth, 1.0, rank=rank, source=self.name, evidence=rank)
                        node = Node(number, parent, seen, token)
                        nodes.append(node)
                        grown.append((node, token))
            level = grown[:4]
            if not level:
                break
        return nodes

    def learn(self, tokens: Tensor, logits: Tensor) -> None:
        """The target's word behind tokens that it read, (n,) and (n, vocab_size)."""
        self.table.successors[tokens.cpu()] = logits.topk(self.table.k).indices.to("cpu", torch.int32)
