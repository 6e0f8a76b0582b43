"""Keys and values with room to grow, whose rows may have different lengths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


@dataclass
class Slots:
    """Where the next pass writes, one for all layers of a cache.

    Attributes:
        begin (`int`): slots before those of the pass; of the fullest row, where rows differ.
        of_rows (`torch.LongTensor` of shape `(rows, tokens)`, *optional*): where rows differ, the slot of each token.
        room (`int`): slots that layers begin with.
        fixed (`torch.LongTensor` of shape `(rows, tokens)`, *optional*): the slot of each token of a pass whose
            attention spans the whole room, used or not, so that nothing about it changes from pass to pass.
    """

    begin: int = 0
    of_rows: Tensor | None = None
    room: int = 0
    fixed: Tensor | None = None


class GrowingLayer(DynamicLayer):
    """Writes new keys and values where `slots` says, into tensors with room for more.

    Its parent joins old and new into new tensors, so every token costs a copy of all that came before. What a pass
    wrote is taken back by moving `slots`, at no cost. No layer slides: the mask confines attention to a window.
    """

    def __init__(self, slots: Slots):
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = (
            new.new_zeros(*new.shape[:-2], self.slots.room, new.shape[-1]) for new in (key_states, value_states)
        )
        if self.slots.room and key_states.device.type != "cpu":
            torch._dynamo.mark_static_address(self.keys)
            torch._dynamo.mark_static_address(self.values)

    def get_seq_length(self) -> int:
        # A pass that spans the room has masks and positions of its own; a number that changes would be compiled in.
        return 0 if self.slots.fixed is not None else self.slots.begin

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.begin + query_length, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.slots.fixed is not None:
            for held, new in ((self.keys, key_states), (self.values, value_states)):
                write(held, new, self.slots.fixed)
            return self.keys, self.values
        begin, end = self.slots.begin, self.slots.begin + key_states.shape[-2]
        self.keys, self.values = (with_room(held, end) for held in (self.keys, self.values))
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            if self.slots.of_rows is None:
                held[..., begin:end, :] = new
            else:
                write(held, new, self.slots.of_rows)
        return self.keys[..., :end, :], self.values[..., :end, :]

    def move(self, sources: Tensor, places: Tensor) -> None:
        """Copies in every row the slots `sources` to `places`, (rows, tokens) each, on the layer's device."""
        if len(sources) == 1:
            for held in (self.keys, self.values):
                held.index_copy_(2, places[0], held.index_select(2, sources[0]))
            return
        rows = torch.arange(len(sources), device=self.device)[:, None]
        for held in (self.keys, self.values):
            held[rows, :, places] = held[rows, :, sources]

    def move_rows(self, sources: Tensor, places: Tensor, count: int) -> None:
        """Puts the rows `sources` of the batch into `places`, and keeps the first `count`."""
        self.keys[places], self.values[places] = self.keys[sources], self.values[sources]
        self.keys, self.values = self.keys[:count], self.values[:count]


def write(held: Tensor, new: Tensor, slots: Tensor) -> None:
    """Puts `new`, (rows, heads, tokens, size), into the `slots` of its rows, (rows, tokens)."""
    if len(new) == 1:
        held.index_copy_(2, slots[0].to(held.device), new)
        return
    rows = torch.arange(len(new), device=new.device)[:, None]
    held[rows, :, slots.to(new.device)] = new.transpose(1, 2)


def with_room(held: Tensor, end: int) -> Tensor:
    """`held`, (..., slots, size), or a larger copy of it that has at least `end` slots."""
    if end <= held.shape[-2]:
        return held
    # Zeros: what no row has written yet is masked, but a NaN there would spread all the same.
    room = held.new_zeros(*held.shape[:-2], end + max(end // 4, 64), held.shape[-1])
    room[..., : held.shape[-2], :] = held
    return room


def growing_cache(slots: Slots) -> Cache:
    """An empty cache whose layers write where `slots` says, and grow beyond its room."""
    return Cache(layer_class_to_replicate=partial(GrowingLayer, slots))
