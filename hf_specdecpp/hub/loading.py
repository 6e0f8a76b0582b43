"""Models and tokenizers by name, for the command line and the recipes; a wrong name gets one sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

# Where the library keeps what it made itself: the unpacked target of the demo, calibrations.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hf_specdecpp"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_model(
    name: str,
    dtype: str,
    device_map: str | dict | None = None,
    attention: str | None = None,
    quantization: dict[str, Any] | None = None,
) -> PreTrainedModel:
    """A causal language model for inference, on the GPU if there is one.

    Args:
        dtype (`str`): bfloat16, float16 or float32.
        device_map (`str` or `dict`, *optional*): where its parts go, as for `from_pretrained`: `"auto"` spreads it
            over all GPUs and what does not fit over the CPU's memory.
        attention (`str`, *optional*): its `attn_implementation`, such as `"sdpa"` or `"flash_attention_2"`.
        quantization (`dict`, *optional*): its `quantization_config`, such as
            `{"quant_method": "bitsandbytes", "load_in_8bit": True}`.

    Raises:
        ValueError: if there is no such model, if it cannot be loaded so, or for another dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    asked = {"device_map": device_map, "attn_implementation": attention, "quantization_config": quantization}
    asked = {name: value for name, value in asked.items() if value is not None}
    try:
        model = _load(AutoModelForCausalLM, name, dtype=DTYPES[dtype], **asked)
        if device_map is None and not getattr(model, "is_quantized", False):  # quantised ones are where they must be
            model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    except (ImportError, RuntimeError, AssertionError) as error:  # no package, no such device, no room on it
        how = ", ".join(f"{name}={value!r}" for name, value in {"dtype": dtype, **asked}.items())
        reason = " ".join(str(error).split())
        raise ValueError(f"{name!r} cannot be loaded with {how} on this machine: {reason}") from error
    return model.eval()


def load_pair(
    target: str,
    draft: str,
    dtype: str,
    device_map: str | dict | None = None,
    attention: str | None = None,
    quantization: dict[str, Any] | None = None,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and draft, see `load_model`; `device_map` and `quantization` are for the target, which may be large."""
    return load_model(target, dtype, device_map, attention, quantization), load_model(draft, dtype, None, attention)


def load_config(name: str) -> PreTrainedConfig:
    """A model's configuration, without the model.

    Raises:
        ValueError: if there is none.
    """
    return _load(AutoConfig, name)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer that comes with a model.

    Raises:
        ValueError: if there is none.
    """
    return _load(AutoTokenizer, name)


def load_head(draft: PreTrainedModel, name: str) -> None:
    """Loads an acceptance head into `draft`, in place.

    Raises:
        ValueError: if there is none.
    """
    check_folder(name)
    if not (Path(name) / "adapter_config.json").exists() and Path(name).exists():
        raise ValueError(f"the folder {name!r} holds no adapter_config.json: give the folder that a head was saved in")
    try:
        cached_file(name, "adapter_config.json")  # for load_adapter, a repository that is refused lacks the file
        draft.load_adapter(name)
    except OSError as error:
        raise ValueError(
            f"no head could be loaded from {name!r}: give the folder that a head was saved in, or the id of one on a "
            "Hub that this machine reaches, logged in if it is private"
        ) from error


def check_folder(name: str) -> None:
    """Raises `ValueError` for what can only be a folder and is not there, before the Hub is asked for it."""
    if (name.startswith((".", "~", os.sep)) or name.count("/") > 1) and not Path(name).exists():
        raise ValueError(f"there is no folder {name!r}: give one with a checkpoint, or the id of a model on the Hub")


def _load(auto_class: Any, name: str, **kwargs: Any) -> Any:
    check_folder(name)
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except OSError as error:
        raise ValueError(
            f"nothing could be loaded from {name!r}: give a folder with a checkpoint, or the id of a model on a Hub "
            "that this machine reaches, logged in if it is private"
        ) from error
