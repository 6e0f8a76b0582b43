"""Weights of linear layers in the order in which a CPU multiplies them, laid out once instead of in every pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

import psutil
import torch
from torch import Tensor, nn
from transformers.utils import logging

logger = logging.get_logger(__name__)

ROWS = 16  # tokens of a pass that the order is meant for; others cost little more
SHARE = 0.5  # of the memory that is free, which copies of a model's weights may take
# oneDNN's own operators, which torch does not document.
NEEDED = ("_reorder_linear_weight", "_linear_pointwise")


@dataclass
class Packed:
    """A packed weight, and what tells the state of the weight that it was made of: its version, and some of its rows,
    for what is changed through `.data` has no version (PEFT merges adapters so)."""

    weight: Tensor
    version: tuple[int, int]
    rows: Tensor

    def is_of(self, layer: nn.Module) -> bool:
        return self.version == version_of(layer.weight) and torch.equal(self.rows, rows_of(layer.weight))


_packed: WeakKeyDictionary[nn.Module, Packed] = WeakKeyDictionary()
_users: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_unpacked: WeakSet[nn.Module] = WeakSet()  # models for whose copies there was no room
_lock = threading.Lock()


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def nothing(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], out_features)


# An operator of our own, which compiled graphs call as it is: inductor takes oneDNN's for frozen weights alone.
_library = torch.library.Library("hf_specdecpp", "DEF")
_library.define("packed_linear(Tensor x, Tensor weight, Tensor? bias, int out_features) -> Tensor")
for _key, _function in (("CPU", multiply), ("MkldnnCPU", multiply), ("Meta", nothing)):
    _library.impl("packed_linear", _function, _key)


# What a layer of a class is within `packed`: of a class with the same parameters and hooks, and another product.
_classes: dict[type[nn.Module], type[nn.Module]] = {}


def packs(kind: type[nn.Module]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Registers a subclass as what layers of `kind`, which have a `weight`, are while they are packed."""

    def register(subclass: type[nn.Module]) -> type[nn.Module]:
        _classes[kind] = subclass
        return subclass

    return register


def product(layer: nn.Module, x: Tensor) -> Tensor:
    """`F.linear(x, layer.weight, layer.bias)` of a packed layer, (..., in_features) -> (..., out_features)."""
    return torch.ops.hf_specdecpp.packed_linear(x, layer.packed, getattr(layer, "bias", None), len(layer.weight))


@packs(nn.Linear)
class PackedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return product(self, x)


@contextmanager
def packed(*models: nn.Module | None) -> Iterator[None]:
    """Within the context the linear layers of `models` multiply with packed weights, of which copies are made once.

    Only bfloat16 on a CPU gains, so nothing else is packed; a weight that has changed is packed anew. The copies, of
    the size of the weights, are kept for the next time; `free_static` drops them. A model whose copies would take more
    than half of the memory that is free stays as it is, with one warning.
    """
    with _lock:
        found = (packable(model) for model in models if model is not None)
        layers = list(dict.fromkeys(layer for own in found for layer in own))
        made = sum(pack(layer) for layer in layers)
        for layer in layers:
            _users[layer] = _users.get(layer, 0) + 1
            layer.__class__ = _classes.get(type(layer), type(layer))
    if made:
        logger.info(f"packed copies of linear layers take {made / 1e6:.0f} MB until free_static drops them")
    try:
        yield
    finally:
        with _lock:
            for layer in layers:
                _users[layer] -= 1
                if not _users[layer]:
                    layer.__class__ = type(layer).__base__
                    del layer.packed


def packable(model: nn.Module) -> list[nn.Module]:
    """The linear layers of `model` that can be packed; those whose `forward` somebody replaced are left alone.

    None if there is no room for all, or `torch.backends.mkldnn` is switched off.
    """
    usable = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if model in _unpacked or not usable or not all(hasattr(torch.ops.mkldnn, name) for name in NEEDED):
        return []
    found = []
    for layer in model.modules():
        if type(layer) in (*_classes, *_classes.values()) and "forward" not in vars(layer):
            weight = layer.weight
            if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and type(weight) is nn.Parameter:
                found.append(layer)
    needed = sum(layer.weight.nbytes for layer in found if layer not in _packed)
    available = psutil.virtual_memory().available
    if needed > SHARE * available:
        logger.warning(
            f"{type(model).__name__} runs without packed weights, and slower: their copies would take "
            f"{needed / 1e9:.1f} of {available / 1e9:.1f} GB that are free"
        )
        _unpacked.add(model)
        return []
    return found


@torch.no_grad()
def pack(layer: nn.Module) -> int:
    """Gives `layer` a packed weight; returns the bytes of what had to be made."""
    held, made = _packed.get(layer), 0
    if held is None or not held.is_of(layer):
        weight = layer.weight.detach()
        order = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        held = _packed[layer] = Packed(order, version_of(layer.weight), rows_of(weight).clone())
        made = weight.nbytes
    layer.packed = held.weight
    return made


def version_of(weight: Tensor) -> tuple[int, int]:
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def rows_of(weight: Tensor) -> Tensor:
    """Eight of them, evenly apart."""
    return weight[:: max(len(weight) // 8, 1)]


def drop_packed(model: nn.Module | None) -> None:
    """Drops the packed weights of `model`, of all models if it is left out."""
    for layer in list(_packed) if model is None else model.modules():
        _packed.pop(layer, None)
    _unpacked.difference_update(list(_unpacked) if model is None else [model])
