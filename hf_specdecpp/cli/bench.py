"""`specdecpp bench` and `specdecpp bench report`."""

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
    progress,
    running_asked,
    speaks_plainly,
)

bench_app = typer.Typer()


@bench_app.callback(invoke_without_command=True)
@speaks_plainly
def bench(
    context: typer.Context,
    target: str = typer.Option(None, help="Hub id or folder. (default: SmolLM2-135M-Instruct)", show_default=False),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the shipped draft)", show_default=False),
    head: str = typer.Option(
        None,
        help="Hub id or folder; a draft of your own may go without. (default: the shipped head)",
        show_default=False,
    ),
    prompts: list[str] = typer.Option(
        ["mixed"],
        "--set",
        help="mixed, alpaca, gsm8k, humaneval, mt-bench, summaries, or NAME=SOURCE; repeat it for more.",
    ),
    method: list[str] = typer.Option(
        [],
        help="plain, compiled, assisted, assisted=K, lookup; recommended (SpecDec++), text (without a draft), model, "
        "chain or tree (from the draft alone), transformers-loop; a rule, RULE=THRESHOLD, fixed=K; ours behind "
        "static: or compiled: too; or all. Repeat it for more. (default: the usual ones, no single rules)",
        show_default=False,
    ),
    quick: bool = typer.Option(
        False, help="A verdict in about five minutes: few methods (unless --method names some), one run of each."
    ),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    count: int = typer.Option(12, min=1, help="Prompts of each set."),
    repeats: int = typer.Option(
        3, min=0, help="Timed runs of every method on every prompt, after one that counts; 0 times that. (--quick: 0)"
    ),
    max_new_tokens: int = typer.Option(64, min=2, help="Tokens generated for each prompt."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    static: bool = STATIC,
    compiled: bool = COMPILED,
    threads: int = typer.Option(None, min=1, help="Of the CPU. (default: torch's)", show_default=False),
    output: Path = typer.Option(
        None,
        help="JSON file for the result; a killed run goes on beside it. (default: none is kept)",
        show_default=False,
    ),
) -> None:
    """Measure what this pair gains on this machine, on these prompts, beside the other ways to decode."""
    if context.invoked_subcommand is not None:
        return
    import tempfile

    from rich.table import Table
    from transformers.utils import logging

    from ..bench.methods import ALL, QUICK, USUAL, running_so
    from ..bench.report import COLUMNS, cells
    from ..bench.run import Settings, run_bench
    from ..bench.verdict import verdict

    logging.set_verbosity_error()  # transformers warns of its own nested generate in assisted decoding
    names = [name for given in method for name in (ALL if given == "all" else [given])]
    names = running_so(names or list(QUICK if quick else USUAL), running_asked(static, compiled))
    settings = Settings(
        target, draft, head, prompts, names, sample, count, 0 if quick else repeats,
        max_new_tokens, dtype, threads, traced=4 if quick else None, minutes=5.0 if quick else None,
        **loading(device_map, attention, quantization),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, progress() as shown:
        result = run_bench(
            settings, output or Path(folder) / "result.json",
            on_begin=lambda what, total: shown.add_task(what, total=total),
            on_step=lambda: shown.update(shown.task_ids[-1], advance=1),
        )  # fmt: skip
    for name, found in result["sets"].items():
        table = Table(*COLUMNS[:1], *COLUMNS[2:-3], title=name)  # what fits in a terminal
        for row in cells(found, sample):
            table.add_row(*row[:1], *row[2:-3])
        console.print(table)
    for name, reason in result["unavailable"].items():
        console.print(f"{name} is not available here: {reason}", highlight=False, soft_wrap=True)
    console.print(f"\n{verdict(result)}", highlight=False, soft_wrap=True)


@bench_app.command()
@speaks_plainly
def report(
    results: list[Path] = typer.Argument(help="JSON files of `specdecpp bench --output`."),
    output: Path = typer.Option(..., help="Folder for report.md and the figures."),
) -> None:
    """Make tables and figures from results of the benchmark."""
    from ..bench.report import write_report
    from ..bench.run import read_result

    found = {path.stem: read_result(path) for path in results}
    if len(found) < len(results):
        raise ValueError("two results have the same file name, which their figures are named by: rename one")
    files = write_report(found, output)
    console.print(f"{len(files)} files in {output}")
