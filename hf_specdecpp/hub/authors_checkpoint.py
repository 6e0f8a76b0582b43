"""Heads published by the authors of SpecDec++, or trained with their code, as heads of this library.

Their format (Kaffaljidhmah2/SpecDec_pp, wrap_model.py) is a folder written by `PyTorchModelHubMixin`: `config.json`
with `hidden_size` and `num_layers`, and `model.safetensors` with a `Sequential` called `model`: residual blocks and a
linear layer to two logits, of rejection and of acceptance. Their blocks are one object, so the file holds one block.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ..acceptance import AcceptanceHeadConfig, acceptance_layer, model_signature
from ..decoding import Decoding
from .loading import load_config


def convert_authors_head(
    checkpoint: str | Path, output: str | Path, *, draft: str, target: str, **config: Any
) -> None:
    """Writes the head in the folder `checkpoint`, in the authors' format, into the folder `output`, in ours.

    The raw logit of acceptance stays the same: theirs is the difference of two. Of draft and target only the
    configurations are loaded. The published head, hacky/acchead-llama2-chat-7bx70b, downloaded into `acchead`:

        convert_authors_head(
            "acchead", "head", draft="meta-llama/Llama-2-7b-chat-hf", target="meta-llama/Llama-2-70b-chat-hf"
        )

    Args:
        checkpoint: the folder with `config.json` and `model.safetensors`.
        output: a folder for the head.
        draft, target: Hub ids or folders of the pair that the head was trained for.
        config: other fields of `AcceptanceHeadConfig` than the published head's, whose `rejection_weight` is 6 and
            whose labels are for sampling at temperature 1 from all tokens. The authors do not take the weight out when
            they decode, so their thresholds hold with `rejection_weight=1.0`.

    Raises:
        ValueError: if the folder holds no such checkpoint, or that of another draft.
    """
    weights, shape = _read(Path(checkpoint))
    draft_config = load_config(draft)
    hidden_size = draft_config.get_text_config().hidden_size
    if shape["hidden_size"] != hidden_size:
        raise ValueError(
            f"the head in {str(checkpoint)!r} reads hidden states of size {shape['hidden_size']}, but those of "
            f"{draft!r} have size {hidden_size}: give the draft that it was trained for"
        )
    facts = {
        "decoding": asdict(Decoding(do_sample=True, top_k=0, coupling="rejection")),
        "target_name_or_path": target,
        "target_signature": model_signature(load_config(target)),
    }
    with torch.device("meta"):  # only the place of the head in the draft is needed
        model = AutoModelForCausalLM.from_config(draft_config)
    model = get_peft_model(model, AcceptanceHeadConfig(**facts | shape | config))
    acceptance_layer(model).acceptance_head["default"].load_state_dict(weights, assign=True)
    model.save_pretrained(output, save_embedding_layers=False)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of an `AcceptanceHead`, and the fields of its configuration that give its shape."""
    path = folder / "model.safetensors"
    if not path.exists():
        pickle = (folder / "pytorch_model.bin").exists()
        found = "only pytorch_model.bin, a pickle, which could run anything when loaded" if pickle else "no checkpoint"
        raise ValueError(f"the folder {str(folder)!r} holds {found}: give one with config.json and {path.name}")
    try:
        theirs = json.loads((folder / "config.json").read_text())
        hidden_size, num_layers = theirs["hidden_size"], theirs.get("num_layers", 0)
        tensors = {name.removeprefix("model."): tensor.float() for name, tensor in load_file(path).items()}
        blocks = sorted({int(name.split(".")[0]) for name in tensors if ".linear." in name})
        weights = {
            f"blocks.{i}.linear.{part}": tensors[f"{block}.linear.{part}"]
            for i, block in enumerate(blocks)
            for part in ("weight", "bias")
        }
        for part in ("weight", "bias"):
            rejection, acceptance = tensors[f"{num_layers}.{part}"].chunk(2)
            weights[f"out.{part}"] = acceptance - rejection
        # Copies of the one block, made on the way here, are as good as the one.
        if len(blocks) not in (min(num_layers, 1), num_layers) or weights["out.weight"].shape != (1, hidden_size):
            raise LookupError(f"{len(blocks)} blocks for {num_layers} layers")
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"the folder {str(folder)!r} is not in the authors' format: it needs config.json with hidden_size and "
            f"num_layers, and a sound {path.name} with such a Sequential of residual blocks and two logits"
        ) from error
    return weights, {"hidden_size": hidden_size, "num_layers": num_layers, "tied": len(blocks) < num_layers}
