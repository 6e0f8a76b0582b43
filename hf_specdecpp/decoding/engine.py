"""A model with its keys and values: the only code that knows caches, masks and positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.utils import ModelOutput

from ..acceptance.layer import execution_device, listening
from .cache import Slots, growing_cache
from .masks import MASKED_ATTENTION, ancestry, windows, within_windows
from .taps import Taps


@dataclass
class Pass:
    """What a pass yields.

    Attributes:
        logits (`torch.Tensor` of shape `(rows, kept, vocab_size)`): in the model's dtype.
        states (`torch.Tensor` of shape `(rows, tokens, hidden_size)`, *optional*): what an acceptance head reads, if
            the model carries one.
        own (`torch.Tensor` of shape `(rows, tokens, hidden_size)`, *optional*): what a draft that reads states feeds
            back to itself behind each token.
    """

    logits: Tensor
    states: Tensor | None
    own: Tensor | None = None


class Engine:
    """Runs a model over a batch of texts that grow, each at its own pace; a chain or a tree at a time.

    `read` passes over tokens; `keep` says which of those read since the last `keep` belong to the texts.

    Args:
        model (`PreTrainedModel`): decoder-only, its cache can be rolled back.
        padding (`list[int]`): for each row, how many of its first tokens are padding.
        taps (`Taps`, *optional*): is given the hidden states that it asks for, of every token that is kept.
    """

    def __init__(self, model: PreTrainedModel, padding: list[int], taps: Taps | None = None):
        self.model, self.padding, self.taps = model, padding, taps
        self.device = execution_device(model.get_input_embeddings())
        self.lengths = [0] * len(padding)
        self.slots = Slots()
        self.cache: Cache = growing_cache(self.slots)
        self.windows = windows(model.config)
        self.takes_positions = takes_positions(model)
        self.keeps_logits = model._supports_logits_to_keep()
        self.fresh = 0  # tokens read since `keep`, of each row
        self.parents: Tensor | None = None  # theirs, where they are no chain in rows of one length

    def read(
        self, tokens: Tensor, parents: Tensor | None = None, keep: int | list[int] | None = None, **inputs: Tensor
    ) -> Pass:
        """Passes over `tokens`.

        Args:
            tokens (`torch.LongTensor` of shape `(rows, n)`).
            parents (`torch.LongTensor` of shape `(rows, n)`, *optional*): on the host; the token before each, by its
                number among those read since the last `keep`, -1 for the last that was kept. Left out, each token
                follows the one before it.
            keep (`int` or `list[int]`, *optional*): return the last so many logits and states, or those at these
                places; all if left out.
            inputs: what the model reads beside the tokens.
        """
        n = tokens.shape[1]
        # By number, which copies: the product of a slice one row long with a weight takes torch 7 times as long.
        kept = list(range(n))[-keep:] if isinstance(keep, int) else keep
        kept = None if kept == list(range(n)) else kept
        self.slots.begin, self.slots.of_rows = max(self.lengths) + self.fresh, None
        if parents is None and self.parents is None and not self.is_ragged:
            kwargs = self._padded(n)
        else:
            self.parents = self._joined(n, parents)
            kwargs = self._shaped(n)
        self.fresh += n
        if kept is not None and self.keeps_logits:
            kwargs["logits_to_keep"] = torch.tensor(kept, device=self.device)
        outputs, states = self._run(self.model, input_ids=tokens.to(self.device), **kwargs, **inputs)
        logits, own = outputs.logits, outputs.get("states")
        if kept is not None:
            own = None if own is None else own[:, kept]
            if not self.keeps_logits:
                logits, states = logits[:, kept], None if states is None else states[:, kept]
        return Pass(logits, states, own)

    def _run(self, model: Callable[..., ModelOutput], **inputs: Tensor) -> tuple[ModelOutput, Tensor | None]:
        """What `model` says, and what an acceptance head reads of it."""
        asked = {} if self.taps is None else self.taps.asked
        with listening() as listener:
            outputs = model(past_key_values=self.cache, use_cache=True, return_dict=True, **asked, **inputs)
        if self.taps is not None:
            self.taps.read(outputs)
        return outputs, listener.hidden_states

    def _joined(self, n: int, parents: Tensor | None) -> Tensor:
        """Parents of all tokens read since the last `keep`, the `n` that come now included."""
        rows = len(self.lengths)
        before = chain(0, self.fresh, rows) if self.parents is None else self.parents
        return torch.cat((before, chain(self.fresh, n, rows) if parents is None else parents), dim=-1)

    def keep(self, paths: list[list[int]]) -> None:
        """Adds to each text, in order, those of the tokens read since the last `keep` that its path names."""
        if self.taps is not None:
            self.taps.keep(paths)
        if any(path != list(range(len(path))) for path in paths):
            longest = max(map(len, paths))
            moved = torch.tensor([path + list(range(len(path), longest)) for path in paths])
            begin = torch.tensor(self.lengths)[:, None]
            self._move(begin + moved, begin + torch.arange(longest))
        self.lengths = [length + len(path) for length, path in zip(self.lengths, paths, strict=True)]
        self.fresh, self.parents = 0, None
        self.slots.begin = max(self.lengths, default=0)

    def _move(self, sources: Tensor, places: Tensor) -> None:
        for layer in self.cache.layers:
            layer.move(sources.to(layer.device), places.to(layer.device))

    def leave(self, going: list[int]) -> None:
        """Goes on with the rows `going` alone. Says so between `keep` and `read`."""
        if self.taps is not None:
            self.taps.leave(going)
        index = torch.tensor(going, device=self.device)
        for layer in self.cache.layers:
            layer.keys, layer.values = (
                held.index_select(0, index.to(held.device)) for held in (layer.keys, layer.values)
            )
        self.lengths, self.padding = ([values[row] for row in going] for values in (self.lengths, self.padding))
        self.slots.begin = max(self.lengths, default=0)

    def adopt(self, cache: DynamicCache) -> None:
        """Goes on from a user's `cache`. Slots that a sliding layer has dropped stay zero, for they are masked."""
        length = cache.get_seq_length()
        self.lengths = [length] * len(self.lengths)
        if not length:
            return
        self.slots.begin = 0
        for index, layer in enumerate(cache.layers):
            missing = length - layer.keys.shape[-2]
            self.cache.update(*(F.pad(held, (0, 0, missing, 0)) for held in (layer.keys, layer.values)), index)
        self.slots.begin = length

    def give_back(self, cache: DynamicCache) -> None:
        """Leaves in a user's `cache` what it would hold had it been used itself, of rows of one length."""
        length = self.slots.begin
        while len(cache.layers) < len(self.cache.layers):
            cache.layers.append(cache.layer_class_to_replicate())
        for theirs, ours in zip(cache.layers, self.cache.layers, strict=True):
            if not theirs.is_initialized:
                theirs.lazy_initialization(ours.keys, ours.values)
            first = 0
            if getattr(theirs, "is_sliding", False):
                theirs.cumulative_length = length
                first = max(length - theirs.sliding_window + 1, 0)
            theirs.keys, theirs.values = ours.keys[..., first:length, :], ours.values[..., first:length, :]

    @property
    def is_ragged(self) -> bool:
        return min(self.lengths) < max(self.lengths)

    def _padded(self, n: int) -> dict[str, Tensor]:
        """Keywords of a pass over chains in rows of one length, whose masks the model makes itself."""
        if not any(self.padding):
            return {}
        end = self.slots.begin + n
        padding = torch.tensor(self.padding, device=self.device)[:, None]
        kwargs = {"attention_mask": (torch.arange(end, device=self.device) >= padding).long()}
        if self.takes_positions:
            positions = torch.arange(self.slots.begin, end, device=self.device)
            kwargs["position_ids"] = (positions - padding).clamp(min=0)
        return kwargs

    def _shaped(self, n: int) -> dict[str, Tensor]:
        """Keywords of a pass over trees, or in rows of different lengths."""
        slots = self._slots(self.parents.shape[1])
        keys = torch.arange(int(slots.max()) + 1)
        self.slots.begin = len(keys) - n
        if self.is_ragged:
            self.slots.of_rows = slots[:, -n:].to(self.device)
        seen, queries, places = (tensor.to(self.device) for tensor in self._sight(self.parents, slots, keys, n))
        mask = within_windows(self.windows, seen, queries, places, self.model.dtype)
        return {"attention_mask": mask, "position_ids": queries}

    def _slots(self, end: int, begin: int = 0) -> Tensor:
        """Where the tokens `begin` to `end` of those since the last `keep` lie, (rows, end - begin)."""
        return torch.tensor(self.lengths)[:, None] + torch.arange(begin, end)

    def _sight(self, parents: Tensor, slots: Tensor, keys: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the slots `keys` the last `n` tokens see, (rows, n, keys); the places of those tokens in their
        texts, (rows, n), and of the keys, (rows, keys)."""
        ancestors, depths = ancestry(parents)
        begin, padding = torch.tensor(self.lengths)[:, None], torch.tensor(self.padding)[:, None]
        places = (keys - padding).expand(len(slots), -1).scatter(1, slots, begin - padding + depths)
        before = ((keys >= padding) & (keys < begin))[:, None].expand(-1, n, -1)
        seen = before.scatter(2, slots[:, None].expand(-1, n, -1), ancestors[:, -n:])
        return seen, places.gather(1, slots[:, -n:]), places


def chain(first: int, count: int, rows: int) -> Tensor:
    """Parents of `count` tokens that follow each other, the first of them number `first`, (rows, count)."""
    return torch.arange(first - 1, first + count - 1).expand(rows, -1)


def takes_positions(model: PreTrainedModel) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def can_take_masks(model: PreTrainedModel) -> bool:
    """Whether a model takes masks of our own, as trees and rows of different lengths need."""
    implementation = model.config.get_text_config()._attn_implementation
    return takes_positions(model) and bool(windows(model.config)) and implementation in MASKED_ATTENTION
