"""Makes the compiled passes of a pair before somebody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..decoding.static import Running, StaticEngine, keywords_of, running_of
from ..decoding.taps import Taps
from ..drafting.informed.block_config import DFlashConfig
from ..drafting.informed.config import layers_read


def running_for(running: str, target: PreTrainedModel, draft: PreTrainedModel | None, length: int) -> Running:
    """How a pair runs texts of up to `length` tokens, see `keywords_of`."""
    config = GenerationConfig(max_length=length, **keywords_of(running))
    return running_of(target, draft, config)


def rooms(
    running: str, target: PreTrainedModel, draft: PreTrainedModel | None, lengths: Iterable[int]
) -> list[Running]:
    """How a pair runs texts of up to each of `lengths` tokens, once for each room if it is compiled; else nothing."""
    asked = [running_for(running, target, draft, length) for length in lengths] if running == "compiled" else []
    return list({each.room: each for each in asked}.values())


@torch.no_grad()
def warm(
    running: Running,
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    rows: int = 1,
    on_pass: Callable[[str, int], None] = lambda model, width: None,
) -> None:
    """Makes each compiled pass that generations of `rows` texts in one room may ask of a pair.

    Args:
        on_pass: called behind each with `"target"` or `"draft"` and its width in tokens.
    """
    layers = () if draft is None else layers_read(draft.config, target.config)
    taps = Taps(layers, rows) if layers else None
    asked = [("target", running.target(target, [0] * rows, taps), [{}])]
    if draft is not None and not isinstance(draft.config, DFlashConfig):  # whose blocks are read eagerly
        width = len(layers) * target.config.get_text_config().hidden_size
        states = {"taps": (width, target.dtype), "states": (draft.config.get_text_config().hidden_size, draft.dtype)}
        kinds = [{name: state} for name, state in states.items()] if layers else [{}]
        asked.append(("draft", running.draft(draft, [0] * rows), kinds))
    with running.ready(target, draft):
        for name, engine, kinds in asked:
            if not isinstance(engine, StaticEngine):
                continue

            def inputs(
                width: int, kind: dict[str, tuple[int, torch.dtype]], device: torch.device = engine.device
            ) -> dict[str, Tensor]:
                return {
                    key: torch.zeros(rows, width, size, dtype=dtype, device=device)
                    for key, (size, dtype) in kind.items()
                }

            engine.read(torch.zeros(rows, 1, dtype=torch.long), **inputs(1, kinds[0]))
            engine.keep([[0]] * rows)
            for width in engine.widths:
                for kind in kinds:
                    engine.read(torch.zeros(rows, width, dtype=torch.long), **inputs(width, kind))
                    engine.keep([[]] * rows)
                on_pass(name, width)
