"""Static caches and compiled passes: a pass has one of few widths, and nothing about it changes but its numbers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, CompileConfig, GenerationConfig, PreTrainedModel
from transformers.utils import ModelOutput, logging

from ..acceptance.layer import AcceptanceHeadLayer
from .cache import Slots, growing_cache
from .engine import Engine, Pass, can_take_masks
from .masks import within_windows
from .packing import drop_packed, packed
from .taps import Taps

logger = logging.get_logger(__name__)

WIDTHS = (1, 8, 16, 32)  # of compiled passes, in tokens of a text; wider ones are eager
LEAST_ROOM = 256  # slots; rooms are powers of two, so that few prompts need a graph of their own

# Of each model the caches that no generation uses, by rows and slots, and the compiled passes, by what shapes them.
_caches: WeakKeyDictionary[PreTrainedModel, dict[tuple[int, int], Cache]] = WeakKeyDictionary()
_passes: WeakKeyDictionary[PreTrainedModel, dict[tuple, Callable[..., ModelOutput]]] = WeakKeyDictionary()
_lock = threading.RLock()


@dataclass
class Running:
    """How the models of a generation run: as it stands, eager and in caches that grow.

    Attributes:
        room (`int`): slots of a static cache; 0 for one that grows.
        width (`int`, *optional*): tokens of every pass of the target behind the prompt.
        compiled (`dict`, *optional*): keywords of `torch.compile`.
        graphs (`int`): compiled in this generation so far, which took time that no later round takes.
    """

    room: int = 0
    width: int | None = None
    compiled: dict[str, Any] | None = None
    graphs: int = 0
    engines: list[StaticEngine] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What costs are kept apart by."""
        width = f", {self.width} tokens a pass" if self.width else ""
        return ("compiled" if self.compiled else "static" if self.room else "eager") + width

    @property
    def most(self) -> int | None:
        """The widest pass, if there is one; drafts are kept below it."""
        return self.width or (WIDTHS[-1] if self.compiled else None)

    def target(self, model: PreTrainedModel, padding: list[int], taps: Taps | None = None) -> Engine:
        """What the target runs in."""
        return self._engine(model, padding, taps, (self.width,) if self.width else self._compiled_widths)

    def draft(self, model: PreTrainedModel, padding: list[int]) -> Engine:
        """What the draft runs in; how wide its passes are changes no output."""
        return self._engine(model, padding, None, self._compiled_widths)

    @property
    def _compiled_widths(self) -> tuple[int, ...]:
        return WIDTHS if self.compiled else ()

    def _engine(
        self, model: PreTrainedModel, padding: list[int], taps: Taps | None, widths: tuple[int, ...]
    ) -> Engine:
        if not self.room or not can_take_masks(model):
            return Engine(model, padding, taps)
        self.engines.append(StaticEngine(model, padding, taps, self, widths))
        return self.engines[-1]

    @contextmanager
    def ready(self, *models: PreTrainedModel | None) -> Iterator[None]:
        """Within the context `models` may run; behind it their caches wait for the next generation."""
        with packed(*models):
            yield
            for engine in self.engines:
                engine.put_back()


def keywords_of(running: str) -> dict[str, Any]:
    """Keywords of `generate` that ask models to run so: `"eager"`, `"static"` or `"compiled"`, on any device.

    Raises:
        ValueError: for another name.
    """
    if running == "compiled":
        config = CompileConfig()
        config._compile_all_devices = True  # transformers' own decoding leaves a CPU out otherwise
        return {"cache_implementation": "static", "compile_config": config}
    if running == "static":
        return {"cache_implementation": "static", "disable_compile": True}
    if running == "eager":
        return {}
    raise ValueError(f"models run eager, static or compiled, not {running!r}")


def running_of(
    model: PreTrainedModel,
    draft: PreTrainedModel | None,
    generation_config: GenerationConfig,
    width: int | None = None,
) -> Running:
    """How a call of `generate` asks its models to run.

    Args:
        width (`int`, *optional*): of every pass of the target.

    Raises:
        ValueError: if the target cannot have such passes.
    """
    if generation_config.cache_implementation != "static" and width is None:
        return Running()
    for each in (model, draft):
        if each is None or can_take_masks(each):
            continue
        unable = (
            f"{type(each).__name__} cannot run in a static cache of ours with {each.config._attn_implementation!r}"
        )
        if each is model and width is not None:
            raise ValueError(f"{unable} attention: load it with attn_implementation='sdpa', or leave out reproducible")
        logger.warning_once(f"{unable} attention, so it runs eagerly in one that grows")
        if each is model:
            return Running()
    compiled = compilation(model, generation_config)
    widest = width or WIDTHS[-1]
    most = max(generation_config.max_length, getattr(generation_config, "max_cache_len", None) or 0) + widest
    return Running(max(2 ** math.ceil(math.log2(most)), LEAST_ROOM), width, compiled)


def compilation(model: PreTrainedModel, generation_config: GenerationConfig) -> dict[str, Any] | None:
    """Keywords of `torch.compile`, if a call asks for it: on a GPU unless it says no, on a CPU if it says how."""
    config = generation_config.compile_config
    on_cpu = model.device.type == "cpu"
    quantizer = getattr(model, "hf_quantizer", None)
    devices = set(map(str, getattr(model, "hf_device_map", {}).values()))
    offloaded = "disk" in devices or ("cpu" in devices and len(devices) > 1)
    if generation_config.disable_compile or (on_cpu and config is None):
        return None
    if offloaded or (quantizer is not None and not quantizer.is_compileable):
        logger.warning_once(f"{type(model).__name__} is offloaded or quantised in a way that cannot be compiled")
        return None
    settings = (config or CompileConfig()).to_dict()
    if on_cpu and settings.get("mode") == "reduce-overhead":  # CUDA graphs
        settings["mode"] = "default"
    if settings.get("options") is not None:
        settings.pop("mode", None)  # torch takes one of them
    return settings | {"dynamic": bool(settings.get("dynamic"))}


class StaticEngine(Engine):
    """An engine whose cache has all its slots from the beginning.

    Behind the prompt, passes of at most the largest of `widths` are padded to the next one; what padding writes lies
    behind the text, where the next pass writes and nobody sees it. Rows that have ended stay in place, for nobody.

    Args:
        running (`Running`): of the generation.
        widths (`tuple[int, ...]`): ascending; without any, passes have the width that they have.
    """

    def __init__(
        self, model: PreTrainedModel, padding: list[int], taps: Taps | None, running: Running, widths: tuple[int, ...]
    ):
        super().__init__(model, padding, taps)
        self.running, self.widths = running, widths
        self.checked: dict[tuple, Callable[..., ModelOutput]] = {}  # passes that ran in this generation
        self.live, self.rows = list(range(len(padding))), len(padding)
        with _lock:
            held = _caches.get(model, {}).pop((self.rows, running.room), None)
        if held is None:
            self.slots = Slots(room=running.room)
            self.cache = growing_cache(self.slots)
        else:
            self.cache, self.slots = held, held.layers[0].slots
            self.slots.begin, self.slots.of_rows, self.slots.fixed = 0, None, None
            for layer in held.layers:
                layer.keys.zero_()
                layer.values.zero_()
        self.heads = [m for m in model.modules() if isinstance(m, AcceptanceHeadLayer)]

    def read(
        self, tokens: Tensor, parents: Tensor | None = None, keep: int | list[int] | None = None, **inputs: Tensor
    ) -> Pass:
        n = tokens.shape[1]
        width = next((width for width in self.widths if width >= n), None) if any(self.lengths) else None
        if width is None and len(self.live) == self.rows:
            return super().read(tokens, parents, keep, **inputs)
        model = self.model if width is None else self._model(width, inputs)
        width = width or n
        given = {"input_ids": tokens.to(self.device)} | inputs
        given = {name: self._of_all(widened(values, width)) for name, values in given.items()}
        outputs, states = self._run(model, **given, **self._places(n, width, parents))
        self.slots.fixed = None
        self.fresh += n
        kept = list(range(n))[-keep:] if isinstance(keep, int) else keep or slice(n)
        found = (outputs.logits, states, outputs.get("states"))
        return Pass(*(None if x is None else self._of_live(x)[:, kept] for x in found))

    def _places(self, n: int, width: int, parents: Tensor | None) -> dict[str, Tensor]:
        """Keywords of a pass over `n` tokens, padded to `width`, whose attention spans the room."""
        joined = self._joined(n, parents)
        if parents is not None or self.parents is not None:
            self.parents = joined
        padded = F.pad(joined, (0, width - n), value=-1)
        slots, keys = self._slots(padded.shape[1]), torch.arange(self.running.room)
        seen, queries, places = self._sight(padded, slots, keys, width)
        # No part of `slots`: strides are compiled in too.
        newest = self._slots(padded.shape[1], padded.shape[1] - width)
        self.slots.fixed = self._of_all(newest).to(self.device)
        seen, queries, places = (self._of_all(x).to(self.device) for x in (seen, queries, places))
        mask = within_windows(self.windows, seen, queries, places, self.model.dtype)
        return {"attention_mask": mask, "position_ids": queries}

    def _model(self, width: int, inputs: dict[str, Tensor]) -> Callable[..., ModelOutput]:
        """What runs a pass of a width."""
        settings = self.running.compiled
        if settings is None:
            return self.model
        kind = (self.rows, self.running.room, width, *sorted(inputs), self.taps and self.taps.layers, str(settings))
        passes = _passes.setdefault(self.model, {})
        if kind in passes:
            if self.device.type != "cpu":
                torch.compiler.cudagraph_mark_step_begin()
            if kind in self.checked:
                return partial(self.checked[kind], self.model)

        def checking(**given: Any) -> ModelOutput:
            outputs = passes[kind](self.model, **given)
            self.checked[kind] = checked(passes[kind], self.model, given)
            return outputs

        def compiling(**given: Any) -> ModelOutput:
            name = type(self.model).__name__
            logger.info(f"compiling {name} for {width} tokens a pass, {self.running.room} slots")
            made = torch.compile(a_forward(), **settings)
            try:
                outputs = made(self.model, **given)
            except Exception as error:
                reason = " ".join(str(error).split()[:24])
                logger.warning_once(
                    f"{name} runs uncompiled, for compiling it failed: {type(error).__name__}: {reason}"
                )
                self.running.compiled = None
                return self.model(**given)
            passes[kind] = made
            self.running.graphs += 1
            return outputs

        return checking if kind in passes else compiling

    def _run(self, model: Callable[..., ModelOutput], **inputs: Tensor) -> tuple[ModelOutput, Tensor | None]:
        # What graphs write to is shared by all who run them.
        with nullcontext() if model is self.model else _lock:
            outputs, states = super()._run(model, **inputs)
            if self.heads and model is not self.model and self.running.compiled is not None:
                states = self.heads[0].heard
            if self.taps is not None:
                self.taps.fresh[-1] = self._of_live(self.taps.fresh[-1])
            if self.device.type != "cpu" and model is not self.model:  # the next replay overwrites them
                outputs.logits = outputs.logits.clone()
                states = None if states is None else states.clone()
                if outputs.get("states") is not None:
                    outputs.states = outputs.states.clone()
        return outputs, states

    def leave(self, going: list[int]) -> None:
        if not self.widths:
            return super().leave(going)
        if self.taps is not None:
            self.taps.leave(going)
        self.live, self.lengths, self.padding = (
            [values[row] for row in going] for values in (self.live, self.lengths, self.padding)
        )
        self.parents = None
        return None

    def put_back(self) -> None:
        """Leaves the cache to the next generation of as many rows and slots."""
        layers = self.cache.layers
        shape = (self.rows, self.running.room)
        if layers and all((len(layer.keys), layer.keys.shape[-2]) == shape for layer in layers):
            with _lock:
                _caches.setdefault(self.model, {})[shape] = self.cache

    def _move(self, sources: Tensor, places: Tensor) -> None:
        super()._move(self._of_all(sources), self._of_all(places))

    def _of_all(self, values: Tensor) -> Tensor:
        """`values` of the rows that go on, beside zeros of those that ended."""
        if len(self.live) == self.rows:
            return values
        whole = values.new_zeros(self.rows, *values.shape[1:])
        whole[self.live] = values
        return whole

    def _of_live(self, values: Tensor) -> Tensor:
        return values if len(self.live) == self.rows else values[self.live]


def widened(values: Tensor, width: int) -> Tensor:
    """(rows, n, ...) -> (rows, width, ...), with zeros."""
    return F.pad(values, (0, 0) * (values.ndim - 2) + (0, width - values.shape[1]))


def forward(model: PreTrainedModel, **inputs: Any) -> ModelOutput:
    return model(**inputs)


def a_forward() -> Callable[..., ModelOutput]:
    """`forward` with code of its own: torch keeps few graphs of one code, and each goes when its code does."""
    return FunctionType(forward.__code__.replace(), forward.__globals__, forward.__name__)


def checked(
    made: Callable[..., ModelOutput], model: PreTrainedModel, inputs: dict[str, Any]
) -> Callable[..., ModelOutput]:
    """What a compiled `forward` ran for these arguments, as code that no longer asks whether it is for them.

    In every pass torch asks all of a model whether it still is what was compiled: 2 ms for 30 layers. Nobody changes a
    model while it generates, so a generation asks once. Where torch keeps no such code, or code that needs it around
    because the graph breaks, it is `made` itself.
    """
    own = made._torchdynamo_orig_callable
    try:
        entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(own.__code__)
        found = next(each for each in entries if each.guard_manager.check({"model": model, "inputs": inputs}))
    except (AttributeError, StopIteration):
        return made
    if any(name.startswith("__resume") for name in found.code.co_names):
        return made
    return FunctionType(found.code, own.__globals__)


def free_static(model: PreTrainedModel | None = None) -> None:
    """Frees what generations keep for the next one: packed weights, static caches, graphs.

    Args:
        model (`PreTrainedModel`, *optional*): of which; left out, of all.
    """
    models = [model] if model is not None else list({*_caches, *_passes})
    with _lock:
        for each in models:
            _caches.pop(each, None)
            _passes.pop(each, None)
        drop_packed(model)
