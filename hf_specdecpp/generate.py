"""The one seam: lets `generate` take the keyword `candidate_generator`.

`generate` is wrapped once, on import. Without the keyword, or with `None` for it, the wrapper calls the original and
does nothing else; with it, the call becomes one with transformers' own `custom_generate` hook.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from typing import Any

from transformers import GenerationMixin, PreTrainedModel, StoppingCriteriaList, StopStringCriteria
from transformers.generation.candidate_generator import CandidateGenerator

from .decoding.specdecpp import generated
from .decoding.transformers_loop import accepted_by
from .drafting.config import DraftingConfig

_lock = threading.Lock()
_original = None


def enable() -> None:
    """Make `generate` take `candidate_generator`. Importing the package does it; calling it again changes nothing."""
    global _original
    with _lock:
        if _original is not None:
            return
        original = GenerationMixin.generate

        signature = inspect.signature(original)

        @functools.wraps(original)
        def generate(self, *args, **kwargs):
            check_custom_generate(kwargs.get("custom_generate"))
            if kwargs.get("candidate_generator") is None:
                kwargs.pop("candidate_generator", None)
                return original(self, *args, **kwargs)
            given = signature.bind(self, *args, **kwargs).arguments
            return original(self, **with_candidate_generator(given.pop("self"), **given.pop("kwargs"), **given))

        GenerationMixin.generate = generate  # type: ignore[method-assign]
        _original = original


def disable() -> None:
    """Give `generate` back as transformers made it. `enable()` reverses this.

    Raises:
        RuntimeError: if someone else wrapped `generate` after us, since taking ours out would drop theirs.
    """
    global _original
    with _lock:
        if _original is None:
            return
        if getattr(GenerationMixin.generate, "__wrapped__", None) is not _original:
            raise RuntimeError("generate was wrapped again after hf_specdecpp was enabled: undo that wrapper first")
        GenerationMixin.generate = _original  # type: ignore[method-assign]
        _original = None


def check_custom_generate(custom_generate: Any) -> None:
    """Raises `TypeError` for a class like `SpecDecPP`, which `generate` would call with arguments of its own."""
    if isinstance(custom_generate, type) and issubclass(custom_generate, CandidateGenerator):
        name = custom_generate.__name__
        raise TypeError(
            f"custom_generate={name} is a class: write candidate_generator={name}, or give custom_generate an object, "
            f"{name}(assistant_model=draft)"
        )


def with_candidate_generator(
    model: PreTrainedModel,
    candidate_generator,
    assistant_model=None,
    stopping_config=None,
    drafting_config=None,
    lookup_store=None,
    recycling_table=None,
    streamer=None,
    tokenizer=None,
    assistant_tokenizer=None,
    stop_strings=None,
    custom_generate=None,
    synced_gpus=None,
    **kwargs,
) -> dict[str, Any]:
    """The keywords for the original `generate` that run assisted decoding with `candidate_generator`.

    Raises:
        TypeError: if `candidate_generator` cannot be called, or cannot take the `stopping_config` given with it.
        ValueError: for keywords that contradict it.
    """
    if not callable(candidate_generator):
        raise TypeError(
            "candidate_generator must be a subclass of CandidateGenerator or a function that returns one, got "
            f"{type(candidate_generator).__name__}"
        )
    if isinstance(candidate_generator, CandidateGenerator):
        name = type(candidate_generator).__name__
        raise TypeError(
            f"candidate_generator takes the class, not an object of it: write candidate_generator={name}, and "
            "assistant_model= and stopping_config= beside it"
        )
    if custom_generate is not None:
        raise ValueError("candidate_generator and custom_generate both choose how to generate: give one of them")
    if synced_gpus:
        raise ValueError("synced_gpus=True: candidate_generator does not support sharded targets")
    if assistant_tokenizer is not None and (
        tokenizer is None or assistant_tokenizer.get_vocab() != tokenizer.get_vocab()
    ):
        raise ValueError(
            "assistant_tokenizer differs from tokenizer: candidate_generator needs a draft with the target's tokenizer"
        )
    if stopping_config is not None and not accepted_by(candidate_generator, {"stopping_config": stopping_config}):
        raise TypeError(f"{candidate_generator!r} takes no stopping_config: leave it out")
    if drafting_config is not None and not isinstance(drafting_config, DraftingConfig):
        raise TypeError(f"drafting_config must be a DraftingConfig, got {type(drafting_config).__name__}")

    # The hook keeps the tokenizer from `generate`, which needs it for stop strings only: make their criterion here.
    generation_config = kwargs.get("generation_config") or model.generation_config
    stop_strings = stop_strings or generation_config.stop_strings
    if stop_strings:
        if tokenizer is None:
            raise ValueError("stop_strings are matched in text: pass the target's tokenizer to generate as well")
        criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
        kwargs["stopping_criteria"] = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or []), criterion])
        if generation_config.stop_strings:
            kwargs["generation_config"] = copy.deepcopy(generation_config)
            kwargs["generation_config"].stop_strings = None

    def run(model, input_ids, **prepared):
        return generated(
            candidate_generator, model, input_ids, assistant_model=assistant_model, stopping_config=stopping_config,
            drafting_config=drafting_config, lookup_store=lookup_store, recycling_table=recycling_table,
            streamer=streamer, **prepared,
        )  # fmt: skip

    return kwargs | {"custom_generate": run, "streamer": streamer}
