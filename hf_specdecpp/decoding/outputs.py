"""The scores and logits of generated tokens, where the caller wants them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GenerationConfig

from .verify import Scores


class Outputs:
    """Keeps what `output_scores` and `output_logits` of `return_dict_in_generate` ask for.

    Args:
        rows (`int`): of the whole batch.
    """

    def __init__(self, rows: int, generation_config: GenerationConfig):
        asked = generation_config.return_dict_in_generate
        scores, logits = generation_config.output_scores, generation_config.output_logits
        self.kept: dict[str, list[list[Tensor]]] = {
            name: [[] for _ in range(rows)]
            for name, wanted in (("scores", scores), ("logits", logits))
            if asked and wanted
        }

    def add(self, row: int, places: list[int], scores: Scores, logits: Tensor) -> None:
        """Keeps those of a row at `places` of a pass, (1 + drafted, vocab_size)."""
        for name, found in (("scores", scores), ("logits", logits)):
            if name in self.kept:
                self.kept[name][row] += [found[place].clone() for place in places]

    def cut(self, row: int, length: int) -> None:
        """Forgets those of a row beyond its first `length` generated tokens."""
        for rows in self.kept.values():
            del rows[row][length:]

    def scores(self, row: int) -> tuple[Tensor, ...] | None:
        """Of a row so far, as stopping criteria take them: (1, vocab_size) each."""
        return tuple(one[None] for one in self.kept["scores"][row]) if "scores" in self.kept else None

    def tuples(self, length: int) -> dict[str, tuple[Tensor, ...]]:
        """One of `(rows, vocab_size)` for each of `length` generated tokens; zeros where a row had ended."""
        found = {}
        for name, rows in self.kept.items():
            nothing = torch.zeros_like(rows[0][0])
            found[name] = tuple(
                torch.stack([own[step] if step < len(own) else nothing for own in rows]) for step in range(length)
            )
        return found
