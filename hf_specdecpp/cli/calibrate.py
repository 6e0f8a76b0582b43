"""`specdecpp calibrate`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import (
    ATTENTION,
    COMPILED,
    DEVICE_MAP,
    QUANTIZATION,
    STATIC,
    console,
    loading,
    running_asked,
    speaks_plainly,
)


@speaks_plainly
def calibrate(
    target: str = typer.Option(..., help="Hub id or folder of the target."),
    draft: str = typer.Option(..., help="Hub id or folder of the draft."),
    head: str = typer.Option(None, help="Hub id or folder of the draft's head, if it has one.", show_default=False),
    dtype: list[str] = typer.Option(["bfloat16"], help="bfloat16, float16 or float32; repeat it for more."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    context: list[int] = typer.Option([128, 512, 1024], min=2, help="Tokens in the cache; repeat it for more."),
    static: bool = STATIC,
    compiled: bool = COMPILED,
    max_draft_length: int = typer.Option(12, min=1, help="Longest draft."),
    output: Path = typer.Option(None, help="Folder for a copy of the JSON files and a plot.", show_default=False),
    force: bool = typer.Option(False, help="Measure again what was measured before."),
) -> None:
    """Measure what draft and target cost on this machine; the cost-aware rule then uses it without being told."""
    from rich.table import Table

    from ..costs.measure import calibrate as measure
    from ..costs.measure import plot
    from ..costs.store import pair_identity, stored_calibration, stored_path
    from ..hub.loading import load_head, load_pair

    running = running_asked(static, compiled)
    table = Table("dtype", "context", "draft, ms", *(f"verify {n}, ms" for n in (1, 2, 4, 8)), "draft / step")
    found = {}
    for name in dtype:
        models = load_pair(target, draft, name, **loading(device_map, attention, quantization))
        if head:
            load_head(models[1], head)
        path = stored_path(pair_identity(*models, running))
        before = None if force else stored_calibration(*models, running)
        if before is not None:
            found[name] = before
            console.print(f"{name}: measured before, {path} (--force measures again)", soft_wrap=True)
        else:
            with console.status(f"measuring in {name}"):
                found[name] = measure(*models, context, max_draft_length, running=running)
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
