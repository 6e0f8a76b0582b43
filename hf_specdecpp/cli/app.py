"""What all commands share: the console, the options of loading, and errors without tracebacks.

What is heavy is imported by the commands that need it, when they run.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib.metadata import version
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Speculative decoding that knows when to stop.")
console = Console()


# How the pair is loaded, in every command that runs the target.
DEVICE_MAP = typer.Option(
    None,
    help="Where the parts of the target go: auto, balanced, cpu, ..., or JSON. (default: on the GPU if there is one)",
    show_default=False,
)
ATTENTION = typer.Option(
    None, help="Of both models: eager, sdpa, flash_attention_2, ... (default: transformers')", show_default=False
)
QUANTIZATION = typer.Option(
    None,
    help='Of the target, as JSON that transformers takes: {"quant_method": "bitsandbytes", "load_in_8bit": true}.',
    show_default=False,
)
# How our own loop runs them.
STATIC = typer.Option(False, "--static", help="Run SpecDec++ in static caches, on a CPU with packed weights.")
COMPILED = typer.Option(False, "--compiled", help="Run SpecDec++ in static caches, compiled.")


def running_asked(static: bool, compiled: bool) -> str:
    return "compiled" if compiled else "static" if static else "eager"


def loading(device_map: str | None, attention: str | None, quantization: str | None) -> dict[str, Any]:
    """The three options as keywords of `load_pair`."""
    if device_map is not None and device_map.startswith("{"):
        device_map = json_object("--device-map", device_map)
    if quantization is not None:
        quantization = json_object("--quantization", quantization)
    return {"device_map": device_map, "attention": attention, "quantization": quantization}


def json_object(option: str, text: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise ValueError(f"{option} takes a JSON object, got {text!r}")


def progress(*more: ProgressColumn) -> Progress:
    """A bar for each stage of a long job, with its count and the time left, and `more` behind them."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, *more, console=console)


def speaks_plainly(command: Callable) -> Callable:
    """Shows the sentence of a `ValueError` or `TypeError` instead of a traceback, and exits with 1."""

    @wraps(command)
    def wrapped(*args, **kwargs):
        import datasets
        from transformers.utils import logging

        logging.disable_progress_bar()
        datasets.disable_progress_bars()
        # PEFT 0.21 under transformers 5.23, at every construction of a PeftModel.
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError) as error:
            Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error

    return wrapped


def show_version(asked: bool) -> None:
    if asked:
        console.print(version("hf_specdecpp"), highlight=False)
        raise typer.Exit


@app.callback()
def main(
    asked: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show it and exit."),
) -> None:
    """SpecDec++ for Hugging Face transformers."""
