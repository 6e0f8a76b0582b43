"""`specdecpp trace`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import (
    ATTENTION,
    DEVICE_MAP,
    DRAFT,
    DTYPE,
    HEAD,
    QUANTIZATION,
    TARGET,
    console,
    loading,
    progress,
    speaks_plainly,
)
from .options import Described

TRACES = Described("evidence.trace", "record_traces")


@speaks_plainly
def trace(
    target: str = TARGET,
    draft: str = DRAFT,
    head: str = HEAD,
    prompts: str = typer.Option(..., help="A JSONL file or Hub dataset (id, id:split or id:config:split)."),
    output: Path = typer.Option(..., help="JSONL file of traces; an interrupted run goes on in it."),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    max_new_tokens: int = TRACES.option("max_new_tokens", default=64, min=2),
    max_length: int = TRACES.option("max_length"),
    max_draft_length: int = TRACES.option("max_draft_length", min=1),
    branches: int = TRACES.option("branches", min=1),
    limit: int = typer.Option(None, min=1, help="Only the first prompts.", show_default=False),
    states: bool = TRACES.option("keep_states", note="Other heads can be judged by them."),
    dtype: str = DTYPE,
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
) -> None:
    """Record what a long draft, or a tree, would be at every position, so that any stopping rule can be replayed."""
    from hf_specdecpp.decoding import Decoding
    from hf_specdecpp.evidence.trace import record_traces
    from hf_specdecpp.hub.data import load_rows, prompt_ids, prompt_text
    from hf_specdecpp.hub.loading import load_pair, load_tokenizer

    if states and not head:
        raise ValueError("hidden states are kept where a head reads them: give --head, any head of this draft")
    models = load_pair(target, draft, dtype, **loading(device_map, attention, quantization), head=head)
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
