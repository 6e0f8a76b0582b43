"""`specdecpp bench` and `specdecpp bench report`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .app import (
    ATTENTION,
    COMPILED,
    DEVICE_MAP,
    QUANTIZATION,
    STATIC,
    console,
    loading,
    progress,
    running_asked,
    speaks_plainly,
)
from .options import Described

SETTINGS = Described("bench.run", "Settings")
bench_app = typer.Typer()

if TYPE_CHECKING:
    from hf_specdecpp.bench.run import Settings


@bench_app.callback(invoke_without_command=True)
@speaks_plainly
def bench(
    context: typer.Context,
    target: str = SETTINGS.option("target", default=None),
    draft: str = SETTINGS.option("draft", default=None),
    head: str = SETTINGS.option("head", default=None),
    prompts: list[str] = SETTINGS.option("sets", "--set", default=["mixed"]),
    method: list[str] = SETTINGS.option("methods", default=[], note="Or all. (default: the usual ones, no rules)"),
    quick: bool = typer.Option(
        False, help="A verdict in about five minutes: few methods (unless --method names some), one run of each."
    ),
    sample: bool = SETTINGS.option("sample"),
    count: int = SETTINGS.option("count", min=1),
    repeats: int = SETTINGS.option("repeats", min=0, note="(--quick: 0)"),
    max_new_tokens: int = SETTINGS.option("max_new_tokens", min=2),
    dtype: str = SETTINGS.option("dtype"),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    static: bool = STATIC,
    compiled: bool = COMPILED,
    threads: int = SETTINGS.option("threads", min=1),
    output: Path = typer.Option(
        None,
        help="JSON file for the result; a killed run goes on beside it. (default: none is kept)",
        show_default=False,
    ),
) -> None:
    """Measure what this pair gains on this machine, on these prompts, beside the other ways to decode."""
    from hf_specdecpp.bench.methods import ALL, QUICK, USUAL, running_so
    from hf_specdecpp.bench.run import Settings

    names = [name for given in method for name in (ALL if given == "all" else [given])]
    names = running_so(names or list(QUICK if quick else USUAL), running_asked(static, compiled))
    settings = Settings(
        target, draft, head, prompts, names, sample, count, 0 if quick else repeats,
        max_new_tokens, dtype, threads, traced=4 if quick else None, minutes=5.0 if quick else None,
        **loading(device_map, attention, quantization),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        measure(settings, output or Path(folder) / "result.json")


def measure(settings: Settings, output: Path, on_ready: Callable[..., None] | None = None) -> None:
    """Runs the benchmark with a bar for each stage, and says what came out of it.

    Args:
        on_ready: called before anything is generated, see `run_bench`; it may print.
    """
    from rich.table import Table

    from hf_specdecpp.bench.report import COLUMNS, cells, obstacles
    from hf_specdecpp.bench.run import run_bench
    from hf_specdecpp.bench.verdict import verdict

    def ready(*found: Any) -> None:
        if on_ready is not None:
            shown.stop()
            on_ready(*found)
            shown.start()

    with progress() as shown:
        result = run_bench(
            settings, output, on_begin=lambda what, total: shown.add_task(what, total=total),
            on_step=lambda: shown.advance(shown.task_ids[-1]), on_ready=ready,
        )  # fmt: skip
    for name, found in result["sets"].items():
        table = Table(*COLUMNS[:1], *COLUMNS[2:-3], title=name)  # what fits in a terminal
        table.columns[0].no_wrap = True
        for row in cells(found, settings.sample):
            table.add_row(*row[:1], *row[2:-3])
        console.print(table)
    for sentence in obstacles(result["unavailable"]):
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"\n{verdict(result)}", highlight=False, soft_wrap=True)


@bench_app.command()
@speaks_plainly
def report(
    results: list[Path] = typer.Argument(help="JSON files of `specdecpp bench --output`."),
    output: Path = typer.Option(..., help="Folder for report.md and the figures."),
) -> None:
    """Make tables and figures from results of the benchmark."""
    from hf_specdecpp.bench.report import write_report
    from hf_specdecpp.bench.run import read_result

    found = {path.stem: read_result(path) for path in results}
    if len(found) < len(results):
        raise ValueError("two results have the same file name, which their figures are named by: rename one")
    files = write_report(found, output)
    console.print(f"{len(files)} files in {output}")
