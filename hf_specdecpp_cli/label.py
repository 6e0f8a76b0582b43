"""`specdecpp label`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer
from rich.progress import TextColumn

from .app import (
    ATTENTION,
    DEVICE_MAP,
    DRAFT,
    DTYPE,
    QUANTIZATION,
    TARGET,
    console,
    loading,
    progress,
    speaks_plainly,
)
from .options import Described

CARD = Described("training.label_folder", "LabelsCard")
DECODING = Described("decoding.mode", "Decoding")
ROWS = Described("training.labels", "Rows")
SERVER = Described("training.pipeline", "served")


@speaks_plainly
def label(
    target: str = TARGET,
    draft: str = DRAFT,
    prompts: list[str] = typer.Option(
        ..., help="A JSONL file or Hub dataset (id, id:split or id:config:split). Rows with `response_ids` keep them."
    ),
    output: Path = typer.Option(..., help="Folder for the labels; an interrupted run goes on in it."),
    sample: bool = typer.Option(False, help="Responses and labels by sampling instead of greedy decoding."),
    mode: list[str] = typer.Option(
        [],
        help="greedy or sampling: label for it; repeat it for both. (default: as the responses)",
        show_default=False,
    ),
    temperature: float = DECODING.option("temperature", default=None, note="(default: as the target's own config)"),
    top_k: int = DECODING.option("top_k", default=None, note="(default: likewise)"),
    top_p: float = DECODING.option("top_p", default=None, note="(default: likewise)"),
    coupling: str = DECODING.option("coupling"),
    procedure: str = ROWS.option("procedure"),
    mixing: float = ROWS.option("mixing"),
    states: list[str] = CARD.option(
        "states", default=[], note="Training then never runs the draft; one that reads the target needs them."
    ),
    server: str = SERVER.option("url", default=None),
    server_model: str = SERVER.option("model", default=None, note="(default: --target)"),
    server_key_variable: str = SERVER.option("key_variable"),
    max_new_tokens: int = CARD.option("max_new_tokens", default=192, min=1),
    limit: int = typer.Option(None, min=1, help="Only the first rows of each source.", show_default=False),
    batch_size: int = CARD.option("batch_size", default=64, min=1),
    dtype: str = DTYPE,
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    seed: int = CARD.option("seed", default=0),
) -> None:
    """Label the draft's tokens with the target's verdicts, on the target's own responses."""
    from hf_specdecpp.decoding import Decoding
    from hf_specdecpp.drafting.informed.block_config import DFlashConfig
    from hf_specdecpp.drafting.informed.config import layers_read
    from hf_specdecpp.drafting.pair import check_pair
    from hf_specdecpp.hub.data import fingerprint, load_rows, tokenized_prompts
    from hf_specdecpp.hub.loading import load_pair, load_tokenizer
    from hf_specdecpp.training.label_folder import LabelsCard
    from hf_specdecpp.training.labels import Rows
    from hf_specdecpp.training.pipeline import label_prompts, leave_processes, process_state, served
    from hf_specdecpp.training.responses import sampling_of

    process_state()  # under `accelerate launch`, chooses the GPU that this process loads models on
    own = "sampling" if sample else "greedy"
    for name, known in [(m, ("greedy", "sampling")) for m in mode] + [(s, ("before", "after")) for s in states]:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
    sources = [load_rows(source) for source in prompts]
    tokenizer = load_tokenizer(target)
    rows = tokenized_prompts(tokenizer, *(s.select(range(min(limit or len(s), len(s)))) for s in sources))
    models = load_pair(target, draft, dtype, **loading(device_map, attention, quantization))
    check_pair(None, models[1].config, models[0].config)
    if layers_read(models[1].config, models[0].config):
        states = states or ["before", *([] if isinstance(models[1].config, DFlashConfig) else ["after"])]
    sampling = replace(sampling_of(models[0], temperature, top_k, top_p), coupling=coupling)
    modes = {"greedy": Decoding(), "sampling": sampling}
    for name in dict.fromkeys([own, *mode]):
        settings = ", ".join(f"{key}={value}" for key, value in modes[name].generate_kwargs().items())
        settings += f", coupling={coupling}" if modes[name].do_sample else ""
        console.print(f"{name}: {settings}", highlight=False, soft_wrap=True)
    card = LabelsCard.of(
        *models, modes[own], {name: modes[name] for name in mode or [own]}, Rows(procedure, mixing), states=states,
        max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed, prompts=len(rows),
        prompts_sha256=fingerprint(rows),
    )  # fmt: skip
    respond = None
    if server:
        respond = served(server, server_model or target, tokenizer, models[0], card, server_key_variable)
    with progress(TextColumn("{task.fields[rate]}")) as shown:
        task = shown.add_task("responses and labels", total=len(rows), rate="")
        label_prompts(
            *models, rows, output, card, respond,
            on_batch=lambda n, rate: shown.update(task, advance=n, rate=f"{rate:.0f} tokens/s" if rate else ""),
        )  # fmt: skip
    console.print(f"labels of {len(rows)} responses in {output}")
    leave_processes()
