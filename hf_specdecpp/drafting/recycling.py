"""Proposals from what the target thought of before: each token's likeliest successors when it last stood in a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decoding.sequences import Sequences
from ..stopping import DraftedToken
from .draft import Node

MOST_BYTES = 2_000_000


class Recycling:
    """Token Recycling (arXiv 2408.08696): a table of the last top-k successors of every token, and trees from it.

    The table learns from every position that the target passes over, rejected tokens included. It is of one
    generation; all rows of a batch share it.

    Args:
        most (`int`): nodes proposed for each text.
    """

    name = "recycling"

    def __init__(self, sequences: Sequences, vocab_size: int, most: int = 16, depth: int = 4):
        self.sequences, self.most, self.depth = sequences, most, depth
        self.k = max(min(8, vocab_size, MOST_BYTES // (4 * vocab_size)), 1)
        self.successors = torch.full((vocab_size, self.k), -1, dtype=torch.int32)

    def propose(self, number: int, limit: int) -> list[Node]:
        """A tree behind a row's text, the likelier ranks first."""
        newest = self.sequences.texts[self.sequences.going[number]][-1]
        nodes: list[Node] = []
        level: list[tuple[Node | None, int]] = [(None, newest)]
        for depth in range(1, min(self.depth, limit) + 1):
            rows = self.successors[[token for _, token in level]].tolist()
            grown = []
            # Fewer branches the deeper and the less likely the parent: what they add up to stays about the same.
            for (parent, _), successors in zip(level, rows, strict=True):
                width = self.k if parent is None else max(3 - parent.token.rank, 1)
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
        self.successors[tokens.cpu()] = logits.topk(self.k).indices.to("cpu", torch.int32)
