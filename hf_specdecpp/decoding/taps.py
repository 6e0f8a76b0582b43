"""What a draft reads of the target's passes: hidden states of some layers, for every token of the texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput, output_capturing

# Up to 5.22 transformers counts layers in a list of hidden states to return, and leaves the embeddings out.
COUNTS_EMBEDDINGS = hasattr(output_capturing, "resolve_hidden_states_indices")


class Taps:
    """Keeps the states of tokens that have become text until the draft takes them, each once.

    Args:
        layers (`tuple[int, ...]`): indices into the target's `hidden_states`: 0 are the embeddings, the last is
            normed.
        rows (`int`): texts that go on.
    """

    def __init__(self, layers: tuple[int, ...], rows: int):
        self.layers = layers
        self.kept: list[list[Tensor]] = [[] for _ in range(rows)]
        self.fresh: list[Tensor] = []

    @property
    def asked(self) -> dict[str, bool | list[int]]:
        """Keywords of a pass of the target that returns them, and no others where it can be had."""
        if COUNTS_EMBEDDINGS:
            return {"output_hidden_states": list(self.layers)}
        return {"output_hidden_states": 0 in self.layers or [layer - 1 for layer in self.layers]}

    def read(self, outputs: ModelOutput) -> None:
        """After a pass.

        Raises:
            ValueError: if the target returns no hidden states.
        """
        states = outputs.hidden_states
        if states is None:
            raise ValueError(
                "the draft reads hidden states of its target, which returns none: use an ordinary draft, or another "
                "attn_implementation"
            )
        before = 0 if COUNTS_EMBEDDINGS or 0 in self.layers else 1
        self.fresh.append(torch.cat([states[layer - before] for layer in self.layers], dim=-1))

    def keep(self, paths: list[list[int]]) -> None:
        """See `Engine.keep`."""
        [fresh] = self.fresh
        for own, states, path in zip(self.kept, fresh, paths, strict=True):
            is_chain = path == list(range(len(path)))
            own.append(states[: len(path)] if is_chain else states[path])
        self.fresh = []

    def leave(self, going: list[int]) -> None:
        self.kept = [self.kept[row] for row in going]

    def take(self) -> list[Tensor]:
        """Of each text the states of its tokens that were not taken yet, (tokens, layers * hidden_size)."""
        taken = [torch.cat(own) for own in self.kept]
        self.kept = [[] for _ in taken]
        return taken


def read_whole(
    target: PreTrainedModel, input_ids: Tensor, layers: tuple[int, ...], **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """One pass over whole texts; returns logits, and the states of `layers` side by side.

    Args:
        input_ids (`torch.LongTensor` of shape `(rows, length)`).
        kwargs: of the pass.

    Returns:
        `torch.Tensor` of shape `(rows, kept, vocab_size)` and `torch.Tensor` of shape `(rows, length, layers *
        hidden_size)`.
    """
    taps = Taps(layers, len(input_ids))
    outputs = target(input_ids.to(target.device), **taps.asked, **kwargs)
    taps.read(outputs)
    return outputs.logits, taps.fresh[0]
