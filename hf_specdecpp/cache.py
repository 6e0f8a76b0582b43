"""A key-value cache with room to grow."""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class GrowingLayer(DynamicLayer):
    """Writes new keys and values behind the old ones.

    Its parent joins them into new tensors, so every token costs a copy of all that came before.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.room: dict[str, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin = self.get_seq_length()
        self.keys = self._extended("keys", self.keys, key_states, begin)
        self.values = self._extended("values", self.values, value_states, begin)
        return self.keys, self.values

    def _extended(self, name: str, held: Tensor, new: Tensor, begin: int) -> Tensor:
        end, room = begin + new.shape[-2], self.room.get(name)
        if room is None or (begin and held.data_ptr() != room.data_ptr()) or end > room.shape[-2]:
            room = new.new_empty(*new.shape[:-2], end + max(end // 2, 64), new.shape[-1])
            if begin:
                room[..., :begin, :] = held
            self.room[name] = room
        room = room[: len(new)]
        room[..., begin:end, :] = new
        return room[..., :end, :]

    def move_rows(self, sources: Tensor, places: Tensor, count: int) -> None:
        """Puts the rows `sources` of the batch into `places`, and keeps the first `count`."""
        self.keys[places], self.values[places] = self.keys[sources], self.values[sources]
        self.keys, self.values = self.keys[:count], self.values[:count]


def growing_cache() -> Cache:
    return Cache(layer_class_to_replicate=GrowingLayer)
