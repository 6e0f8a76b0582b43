"""`specdecpp demo`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import ATTENTION, DEVICE_MAP, QUANTIZATION, console, loading, speaks_plainly


@speaks_plainly
def demo(
    prompt: list[str] = typer.Option([], help="Your own prompt; repeat it for more.", show_default=False),
    target: str = typer.Option(None, help="Hub id or folder. (default: SmolLM2-135M-Instruct)", show_default=False),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the shipped draft)", show_default=False),
    head: str = typer.Option(None, help="Hub id or folder. (default: the shipped head)", show_default=False),
    threshold: float = typer.Option(None, help="In [0, 1]. (default: the head's)", show_default=False),
    max_new_tokens: int = typer.Option(48, min=2, help="Tokens generated for each prompt."),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    repeats: int = typer.Option(2, min=1, help="Timed runs of every method on every prompt."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    json_file: Path = typer.Option(None, "--json", help="Write everything measured to this file.", show_default=False),
) -> None:
    """Answer a few prompts with plain, assisted and SpecDec++ decoding, and compare them."""
    from transformers.utils import logging

    from ..bench.demo import run_demo

    logging.set_verbosity_error()  # transformers warns of its own nested generate in assisted decoding
    run_demo(
        prompts=prompt, target=target, draft=draft, head=head, threshold=threshold, max_new_tokens=max_new_tokens,
        sample=sample, repeats=repeats, dtype=dtype, json_file=json_file, console=console,
        **loading(device_map, attention, quantization),
    )  # fmt: skip
