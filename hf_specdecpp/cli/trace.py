"""`specdecpp trace`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import ATTENTION, DEVICE_MAP, QUANTIZATION, console, loading, progress, speaks_plainly


@speaks_plainly
def trace(
    target: str = typer.Option(..., help="Hub id or folder of the target."),
    draft: str = typer.Option(..., help="Hub id or folder of the draft."),
    head: str = typer.Option(None, help="Hub id or folder of the draft's head, if it has one.", show_default=False),
    prompts: str = typer.Option(..., help="A JSONL file or Hub dataset (id, id:split or id:config:split)."),
    output: Path = typer.Option(..., help="JSONL file of traces; an interrupted run goes on in it."),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    max_new_tokens: int = typer.Option(64, min=2, help="Tokens generated for each prompt."),
    max_length: int = typer.Option(None, help="Most tokens of prompt and response.", show_default=False),
    max_draft_length: int = typer.Option(20, min=1, help="Longest draft recorded."),
    branches: int = typer.Option(1, min=1, help="Tokens drafted behind one; from 2 on trees are recorded."),
    limit: int = typer.Option(None, min=1, help="Only the first prompts.", show_default=False),
    states: bool = typer.Option(False, help="Keep the draft's hidden states, by which other heads can be judged."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
) -> None:
    """Record what a long draft, or a tree, would be at every position, so that any stopping rule can be replayed."""
    from ..decoding import Decoding
    from ..evidence.trace import record_traces
    from ..hub.data import load_rows, prompt_ids, prompt_text
    from ..hub.loading import load_head, load_pair, load_tokenizer

    if states and not head:
        raise ValueError("hidden states are kept where a head reads them: give --head, any head of this draft")
    models = load_pair(target, draft, dtype, **loading(device_map, attention, quantization))
    if head:
        load_head(models[1], head)
    tokenizer = load_tokenizer(target)
    rows = load_rows(prompts)
    ids = [prompt_ids(tokenizer, prompt_text(row)) for row in rows.take(min(limit or len(rows), len(rows)))]
    with progress() as shown:
        task = shown.add_task("traces", total=len(ids))
        record_traces(
            *models, ids, output, Decoding(True) if sample else Decoding(), max_new_tokens, max_draft_length,
            on_prompt=lambda: shown.update(task, advance=1), keep_states=states, max_length=max_length,
            branches=branches,
        )  # fmt: skip
    console.print(f"traces of {len(ids)} prompts in {output}")
