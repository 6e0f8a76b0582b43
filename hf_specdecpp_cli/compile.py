"""`specdecpp compile`."""

from __future__ import annotations

import typer

from .app import (
    ATTENTION,
    DEVICE_MAP,
    DTYPE,
    HEAD,
    QUANTIZATION,
    TARGET,
    console,
    loading,
    progress,
    speaks_plainly,
)


@speaks_plainly
def compile(
    target: str = TARGET,
    draft: str = typer.Option(None, help="Hub id or folder of the draft.", show_default=False),
    head: str = HEAD,
    length: list[int] = typer.Option(
        [256], min=2, help="Tokens of the longest text, prompt and answer; repeat it for more."
    ),
    rows: list[int] = typer.Option([1], min=1, help="Texts in a batch; repeat it for more."),
    dtype: str = DTYPE,
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
) -> None:
    """Compile a pair's passes now: what the compiler keeps on disk, later processes find there."""
    import time

    from hf_specdecpp.costs.warm import rooms, warm
    from hf_specdecpp.decoding.static import WIDTHS
    from hf_specdecpp.hub.loading import load_model, load_pair

    if head and not draft:
        raise ValueError("--head is of a draft: give --draft too, or leave --head out")
    choices = loading(device_map, attention, quantization)
    models = (
        load_pair(target, draft, dtype, **choices, head=head)
        if draft
        else (load_model(target, dtype, **choices), None)
    )
    asked = rooms("compiled", *models, length)
    begun = time.monotonic()
    with progress() as shown:
        count = len(WIDTHS) * (2 if draft else 1) * len(asked) * len(rows)
        task = shown.add_task("compiling", total=count)
        for running in asked:
            for number in rows:
                describe = f"{running.room} slots, {number} {'text' if number == 1 else 'texts'}"

                def done(model: str, width: int, describe: str = describe) -> None:
                    shown.update(task, advance=1, description=f"{model}, {width} tokens a pass, {describe}")

                warm(running, *models, number, done)
    made = sum(running.graphs for running in asked)
    console.print(f"{made} graphs in {time.monotonic() - begun:.0f} s")
