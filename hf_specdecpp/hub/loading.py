"""Models and tokenizers by name, for the command line and the recipes; a wrong name gets one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file, find_adapter_config_file

from ..acceptance.layer import execution_device
from ..drafting.informed.block_config import block_kind
from ..drafting.informed.config import ReadsTarget, is_eagle3
from ..drafting.informed.dflash import BLOCK_DRAFTS
from ..drafting.informed.eagle3 import Eagle3ForCausalLM
from ..drafting.informed.mtp import MtpForCausalLM
from ..drafting.informed.reading import check_reading
from ..drafting.informed.tensors import HUB

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
        dtype (`str`): one of bfloat16, float16, float32.
        device_map (`str` or `dict`, *optional*): where the target's parts go, as for `from_pretrained`: `auto` spreads
            it over all GPUs and what does not fit over the CPU's memory.
        attention (`str`, *optional*): the `attn_implementation`, such as `sdpa` or `flash_attention_2`.
        quantization (`dict`, *optional*): the target's `quantization_config`, such as
            `{"quant_method": "bitsandbytes", "load_in_8bit": true}`.

    Raises:
        ValueError: if there is no such model, if it cannot be loaded so, or for another dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    asked = {"device_map": device_map, "attn_implementation": attention, "quantization_config": quantization}
    asked = {name: value for name, value in asked.items() if value is not None}
    with loaded_by(name, {"dtype": dtype, **asked}):
        model = _load(auto_class(name), name, dtype=DTYPES[dtype], **asked)
        if device_map is None and not getattr(model, "is_quantized", False):  # quantised ones are where they must be
            model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval()


def load_draft(
    name_or_path: str,
    target: PreTrainedModel,
    target_layers: list[int] | None = None,
    prompts: list[list[int]] | None = None,
    **kwargs: Any,
) -> PreTrainedModel:
    """A draft for `target`, to be `generate`'s `assistant_model`: a causal language model, an EAGLE-3, DFlash
    or DSpark draft, or the target's own MTP layer.

    EAGLE-3 drafts are read in both formats in which they are published, that of SafeAILab and SpecForge and that of
    speculators, DFlash drafts in that of z-lab and that of speculators, DSpark drafts in the latter's. One without an
    embedding or an output layer uses the target's, which is neither copied nor saved with it. The
    checkpoint that `target` was loaded from gives its MTP layer, if its configuration has `num_mtp_layers`: of several
    the first, which drafts all tokens of a round.

    Args:
        name_or_path (`str`): a folder, or an id on the Hub; that of an acceptance head loads its draft with the head.
        target (`PreTrainedModel`): the model that the draft is for.
        target_layers (`list[int]`, *optional*): which of the target's `hidden_states` the draft reads, in place
            of those that its configuration names. Published ids have two meanings, see `drafting.informed.config`.
        prompts (`list[list[int]]`, *optional*): token ids. Both meanings are tried on what the target says behind
            them, and a warning says if the other one fits better.
        kwargs: of `from_pretrained`. A draft that reads the target has its dtype if none is given, and any draft its
            device if no `device_map` is. An MTP layer is loaded as its target was, whatever they say.

    Returns:
        `PreTrainedModel`, for inference.

    Raises:
        ValueError: if there is no such draft, if it is of a kind that cannot be loaded, if its checkpoint is not whole
            or contradicts itself, or if it reads a target of another width, depth or vocabulary.
    """
    name, hub = str(name_or_path), {key: kwargs[key] for key in HUB if key in kwargs}
    check_folder(name)
    with found(name):
        head = find_adapter_config_file(name, **hub)
        if head is not None:
            base = json.loads(Path(head).read_text()).get("base_model_name_or_path")
            if base is None:
                raise ValueError(f"the head {name!r} does not say what draft it is for: load that, then load_adapter")
            own = {key: value for key, value in kwargs.items() if key not in ("revision", "subfolder")}
            draft = load_draft(base, target, target_layers, prompts, **own)
            draft.load_adapter(name, adapter_kwargs=hub)
            return draft
        config, _ = PreTrainedConfig.get_config_dict(name, **hub)
        informed = informed_class(config)
        if has_mtp(name, target):
            if target_layers is not None:
                raise ValueError(f"the MTP layer of {name!r} reads the last hidden state: leave target_layers out")
            draft = MtpForCausalLM.from_pretrained(target)
        elif informed is not None:
            draft = informed.from_pretrained(name, **{"dtype": target.dtype, **kwargs})
            if target_layers is not None and len(target_layers) != draft.config.num_taps:
                raise ValueError(
                    f"target_layers={target_layers} names {len(target_layers)} hidden states, and {name!r} reads "
                    f"{draft.config.num_taps}: name as many"
                )
            draft.config.target_layers = target_layers or draft.config.target_layers
            draft.borrow(target)
        elif target_layers is not None:
            raise ValueError(f"{name!r} is an ordinary draft, which reads no hidden states: leave target_layers out")
        else:
            check_ordinary(name, config)
            draft = AutoModelForCausalLM.from_pretrained(name, **kwargs)
    if kwargs.get("device_map") is None and not getattr(draft, "is_quantized", False):
        draft = draft.to(execution_device(target.get_input_embeddings()))
    draft.eval()
    if prompts and isinstance(draft.config, ReadsTarget):
        check_reading(draft, target, prompts)
    return draft


def has_mtp(name: str, target: PreTrainedModel) -> bool:
    """Whether a checkpoint is that of `target` and, by its configuration, holds MTP layers."""
    own = target.config._name_or_path
    is_own = name == own or (Path(name).exists() and Path(own).exists() and Path(name).samefile(own))
    return is_own and bool(getattr(target.config.get_text_config(), "num_mtp_layers", None))


def informed_class(config: dict[str, Any]) -> type[PreTrainedModel] | None:
    """Of a draft that reads its target, by a published configuration; `None` for an ordinary one."""
    kind = block_kind(config)
    return BLOCK_DRAFTS[kind] if kind else Eagle3ForCausalLM if is_eagle3(config) else None


def check_ordinary(name: str, config: dict[str, Any]) -> None:
    """Raises `ValueError` if a published configuration names neither a model that is known nor code of its own."""
    named = config.get("architectures") or []
    registered = {model.__name__ for model in AutoModelForCausalLM._model_mapping._extra_content.values()}
    known = not named or any(hasattr(transformers, each) or each in registered for each in named)
    if "speculators_model_type" in config or not (known or "AutoModelForCausalLM" in config.get("auto_map", {})):
        raise ValueError(
            f"{name!r} is a {config.get('speculators_model_type') or ', '.join(named)}, which cannot be loaded as a "
            "draft: give a causal language model or an EAGLE-3, DFlash or DSpark draft"
        )


@contextmanager
def loaded_by(name: str, how: dict[str, Any]) -> Iterator[None]:
    """Says in one sentence why a model cannot be loaded so: no package, no such device, no room on it."""
    try:
        yield
    except (ImportError, RuntimeError, AssertionError) as error:
        settings = ", ".join(f"{key}={value!r}" for key, value in how.items())
        reason = " ".join(str(error).split())
        raise ValueError(f"{name!r} cannot be loaded with {settings} on this machine: {reason}") from error


def load_pair(
    target: str,
    draft: str,
    dtype: str,
    device_map: str | dict | None = None,
    attention: str | None = None,
    quantization: dict[str, Any] | None = None,
    head: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and draft, see `load_model`; `device_map` and `quantization` are for the target, which may be large.

    Args:
        head (`str`, *optional*): of the draft, see `load_head`.
    """
    model = load_model(target, dtype, device_map, attention, quantization)
    asked = {} if attention is None else {"attn_implementation": attention}
    with loaded_by(draft, {"dtype": dtype, **asked}):
        loaded = load_draft(draft, model, dtype=DTYPES[dtype], **asked)
    if head:
        load_head(loaded, head)
    return model, loaded


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


def auto_class(name: str) -> type:
    """What loads the model of that name, be it a target or a draft without one."""
    check_folder(name)
    with found(name):
        return informed_class(PreTrainedConfig.get_config_dict(name)[0]) or AutoModelForCausalLM


def _load(auto_class: Any, name: str, **kwargs: Any) -> Any:
    check_folder(name)
    with found(name):
        return auto_class.from_pretrained(name, **kwargs)


@contextmanager
def found(name: str) -> Iterator[None]:
    """Says in one sentence that there is nothing to load."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"nothing could be loaded from {name!r}: give a folder with a checkpoint, or the id of a model on a Hub "
            "that this machine reaches, logged in if it is private"
        ) from error
