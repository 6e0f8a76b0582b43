"""The tensors of a published draft: their names, and what a checkpoint holds, read without loading it."""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils import cached_file

from .config import ReadsTarget

HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")  # of `from_pretrained`
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
KEY_MAPPING = {
    r"^midlayer\.": "model.layers.0.",
    r"^(fc|fc_norm|hidden_norm|input_norm|layers|norm|embed_tokens)\.": r"model.\1.",
    r"^d2t$": "lm_head.d2t",
}


def stored_shapes(name: str, **hub: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a checkpoint, by their names in it.

    Args:
        name (`str`): a folder, or an id on the Hub.
        hub: keywords of `from_pretrained`, of `HUB`.

    Raises:
        ValueError: if there are none.
    """
    hub["_raise_exceptions_for_missing_entries"] = False
    for weights in WEIGHTS:
        index = cached_file(name, f"{weights}.index.json", **hub)
        shards = {weights}
        if index is not None:
            with open(index) as file:
                shards = set(json.load(file)["weight_map"].values())
        files = [cached_file(name, shard, **hub) for shard in sorted(shards)]
        if None not in files:
            return {name: shape for file in files for name, shape in shapes_in(file).items()}
    raise ValueError(
        f"{name!r} holds neither {' nor '.join(WEIGHTS)}: give a folder or repository with a draft's weights"
    )


def shapes_in(file: str) -> dict[str, tuple[int, ...]]:
    if file.endswith(".safetensors"):
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    stored = torch.load(file, map_location="meta", weights_only=True)
    return {name: tuple(tensor.shape) for name, tensor in stored.items()}


def published_name(name: str, layout: str) -> str:
    """What a tensor of the model is called in a file."""
    name = name.removeprefix("model.").replace("lm_head.d2t", "d2t")
    return name.replace("layers.0.", "midlayer.", 1) if layout == "eagle" and name.startswith("layers.0.") else name


def published_tensors(tensors: dict[str, Tensor], config: ReadsTarget) -> dict[str, Tensor]:
    """A model's tensors as a file has them; `t2d`, which nothing here reads, says which tokens have a row."""
    found = {published_name(name, config.layout): tensor for name, tensor in tensors.items()}
    if "d2t" not in found:  # it says the target's tokens with the target's own layer
        return found
    ids = found["d2t"] + torch.arange(len(found["d2t"]), device=found["d2t"].device)
    found["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool, device=ids.device).index_fill_(0, ids, True)
    return found


def check_stored(name: str, kind: str, wanted: dict[str, tuple[int, ...]], stored: dict[str, tuple[int, ...]]) -> None:
    """Raises `ValueError` if tensors of a checkpoint are missing, or have other shapes than its configuration says."""
    if missing := sorted(wanted.keys() - stored.keys()):
        raise ValueError(
            f"{name!r} is no whole {kind} draft, it lacks {', '.join(missing)}: save or download it again"
        )
    for tensor, shape in wanted.items():
        if stored[tensor] != shape:
            raise ValueError(
                f"{tensor} of {name!r} has the shape {stored[tensor]}, and its configuration says {shape}: save "
                "or download it again"
            )


def check_rows(name: str, ids: Tensor, vocab_size: int) -> None:
    """Raises `ValueError` if `ids`, the tokens of a draft's rows, are not different ones of the vocabulary."""
    if ids.min() < 0 or ids.max() >= vocab_size or len(ids.unique()) < len(ids):
        raise ValueError(
            f"d2t of {name!r} names tokens from {ids.min()} to {ids.max()}, {len(ids.unique())} different ones "
            f"for {len(ids)} rows, in a vocabulary of {vocab_size}: each row needs a token of its own"
        )
