"""`specdecpp calibrate`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import (
    ATTENTION,
    COMPILED,
    DEVICE_MAP,
    DRAFT,
    HEAD,
    LOADING,
    QUANTIZATION,
    STATIC,
    TARGET,
    console,
    loading,
    progress,
    running_asked,
    speaks_plainly,
)
from .options import Described

CALIBRATION = Described("costs.measure", "calibrate")


@speaks_plainly
def calibrate(
    target: str = TARGET,
    draft: str = DRAFT,
    head: str = HEAD,
    dtype: list[str] = LOADING.option("dtype", default=["bfloat16"]),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    static: bool = STATIC,
    compiled: bool = COMPILED,
    context: list[int] = CALIBRATION.option("context_lengths", min=2),
    max_draft_length: int = CALIBRATION.option("max_draft_length", min=1),
    output: Path = typer.Option(None, help="Folder for a copy of the JSON files and a plot.", show_default=False),
    force: bool = typer.Option(False, help="Measure again what was measured before."),
) -> None:
    """Measure what draft and target cost on this machine; the cost-aware rule then uses it without being told."""
    from rich.table import Table

    from hf_specdecpp.costs.measure import calibrate as measure
    from hf_specdecpp.costs.measure import plot
    from hf_specdecpp.costs.store import pair_identity, stored_calibration, stored_path
    from hf_specdecpp.hub.loading import load_pair

    running = running_asked(static, compiled)
    table = Table("dtype", "context", "draft, ms", *(f"verify {n}, ms" for n in (1, 2, 4, 8)), "draft / step")
    found = {}
    for name in dtype:
        models = load_pair(target, draft, name, **loading(device_map, attention, quantization), head=head)
        path = stored_path(pair_identity(*models, running))
        before = None if force else stored_calibration(*models, running)
        if before is not None:
            found[name] = before
            console.print(f"{name}: measured before, {path} (--force measures again)", soft_wrap=True)
        else:
            with progress() as shown:
                task = shown.add_task(f"measuring in {name}", total=len(context))
                found[name] = measure(
                    *models, context, max_draft_length, lambda _, task=task: shown.advance(task), running
                )
            try:
                found[name].save(path)
            except (OSError, ValueError) as error:
                console.print(f"{name}: not kept, so generation will not find it: {error}", soft_wrap=True)
        for length, p in found[name].profiles.items():
            costs = [p.draft_seconds, *(p.verification(n) for n in (1, 2, 4, 8))]
            table.add_row(
                name, str(length), *(f"{1000 * s:.1f}" for s in costs), f"{p.draft_seconds / p.verification(1):.3f}"
            )
        if output:
            found[name].save(output / f"{name}.json")
    console.print(table)
    for name, calibration in found.items():
        fit = calibration.linear_fit()
        base, slope = 1000 * fit["base_seconds"], 1000 * fit["slope_seconds"]
        console.print(f"{name}: verifying n tokens takes {base:.1f} + {slope:.2f} n ms (R^2 {fit['r2']:.2f})")
    if output:
        plot(found, output / "costs.png")
        console.print(f"files and plot in {output}")
