"""What all commands share: the console, the options of loading, how much is said, and errors without tracebacks.

What is heavy is imported by the commands that need it, when they run.
"""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib.metadata import version
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from .options import Described

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Speculative decoding that knows when to stop.")
console = Console()

# How the pair is loaded, in every command that runs the target.
LOADING = Described("hub.loading", "load_model")
DTYPE = LOADING.option("dtype", default="bfloat16")
DEVICE_MAP = LOADING.option("device_map", note="Or JSON. Left out, all is on the GPU if there is one.")
ATTENTION = LOADING.option("attention")
QUANTIZATION = LOADING.option("quantization", note="As JSON.")
TARGET = typer.Option(..., help="Hub id or folder of the target.")
DRAFT = typer.Option(..., help="Hub id or folder of the draft.")
HEAD = typer.Option(None, help="Hub id or folder of the draft's head, if it has one.", show_default=False)
# How our own loop runs them.
STATIC = typer.Option(False, "--static", help="Run SpecDec++ in static caches, on a CPU with packed weights.")
COMPILED = typer.Option(False, "--compiled", help="Run SpecDec++ in static caches, compiled.")
VERBOSE = typer.Option(False, "--verbose", "-v", help="Say what transformers, datasets and others say, too.")


def running_asked(static: bool, compiled: bool) -> str:
    """How the two options ask models to run, see `decoding.static.keywords_of`."""
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
    """Gives `command` the option `--verbose`, without which only the command itself and warnings of ours are heard.

    The sentence of a `ValueError` or `TypeError` is shown instead of a traceback, and the exit status is 1.
    """

    @wraps(command)
    def wrapped(*args, verbose: bool = False, **kwargs):
        if getattr(kwargs.get("context"), "invoked_subcommand", None) is not None:
            return None  # the subcommand's turn
        if not verbose:
            silence_others()
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError) as error:
            Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=VERBOSE, annotation=bool)
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])
    wrapped.__annotations__ = {**command.__annotations__, "verbose": bool}
    return wrapped


def silence_others() -> None:
    """Other libraries say nothing but errors, and draw no progress bars."""
    import datasets
    import huggingface_hub
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # among others of its own nested generate in assisted decoding
    transformers_logging.disable_progress_bar()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    huggingface_hub.utils.disable_progress_bars()
    for name in ("accelerate", "peft", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # the library's own go through its logger


def show_version(asked: bool) -> None:
    if asked:
        console.print(version("hf_specdecpp"), highlight=False)
        raise typer.Exit


@app.callback()
def main(
    asked: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show it and exit."),
) -> None:
    """SpecDec++ for Hugging Face transformers."""
