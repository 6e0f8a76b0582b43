"""`specdecpp demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import typer

from .app import ATTENTION, DEVICE_MAP, QUANTIZATION, console, loading, speaks_plainly
from .bench import SETTINGS, measure


@speaks_plainly
def demo(
    prompt: str = typer.Option("Explain in simple words why the sky is blue.", help="Answered first, as it is said."),
    target: str = SETTINGS.option("target", default=None),
    draft: str = SETTINGS.option("draft", default=None),
    head: str = SETTINGS.option("head", default=None),
    max_new_tokens: int = SETTINGS.option("max_new_tokens", default=48, min=2),
    sample: bool = SETTINGS.option("sample"),
    count: int = SETTINGS.option("count", default=6, min=1),
    repeats: int = SETTINGS.option("repeats", default=0, min=0),
    dtype: str = SETTINGS.option("dtype"),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
) -> None:
    """Answer a prompt with SpecDec++, then compare it with what else there is: a shorter `bench --quick`."""
    from hf_specdecpp.bench.methods import QUICK
    from hf_specdecpp.bench.run import Settings

    settings = Settings(
        target, draft, head, ["mixed"], list(QUICK), sample, count, repeats, max_new_tokens, dtype, traced=2,
        minutes=2.0, **loading(device_map, attention, quantization),
    ).filled()  # fmt: skip
    console.print(f"target: {settings.target}", highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        measure(settings, Path(folder) / "result.json", lambda *ready: stream(prompt, *ready))


def stream(prompt: str, bench: Any, tokenizer: Any, costs: Any) -> None:
    """Prints what SpecDec++ answers as it is generated, and what that came to."""
    import torch

    from hf_specdecpp import collect_stats
    from hf_specdecpp.bench.methods import new_method
    from hf_specdecpp.hub.data import prompt_ids

    from .answer import LEGEND, Answer

    ids = torch.tensor([prompt_ids(tokenizer, prompt)], device=bench.target.device)
    ours, answer = new_method("recommended", bench.target, bench.draft), Answer(console, tokenizer)
    console.print(f"\n[bold]{prompt}[/bold]\n")
    with collect_stats(on_round=answer.hear):
        _, seconds = bench.run(ours, ids, streamer=answer)
    console.print(f"\n{LEGEND}\n{answer.summary(seconds, costs)}\n", highlight=False, soft_wrap=True)
