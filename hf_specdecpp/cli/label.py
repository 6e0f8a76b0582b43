"""`specdecpp label`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer
from rich.progress import TextColumn

from .app import ATTENTION, DEVICE_MAP, QUANTIZATION, console, loading, progress, speaks_plainly


@speaks_plainly
def label(
    target: str = typer.Option(..., help="Hub id or folder of the target."),
    draft: str = typer.Option(..., help="Hub id or folder of the draft."),
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
    temperature: float = typer.Option(
        None, help="Of sampling. (default: the target's generation config, else 1.0)", show_default=False
    ),
    top_k: int = typer.Option(
        None, help="Of sampling; 0 keeps all tokens. (default: likewise, else 50)", show_default=False
    ),
    top_p: float = typer.Option(None, help="Of sampling. (default: likewise, else 1.0)", show_default=False),
    coupling: str = typer.Option("seeded", help="How sampling verifies drafts: seeded, or rejection as in the paper."),
    procedure: str = typer.Option("on-policy", help="on-policy, or specdec++ for the paper's mixed sequences."),
    mixing: float = typer.Option(0.15, help="For specdec++: share of the target's tokens (r in the paper)."),
    states: list[str] = typer.Option(
        [],
        help="before or after: store these hidden states, so that training never runs the draft. (default: none, or "
        "both for a draft that reads the target's)",
        show_default=False,
    ),
    server: str = typer.Option(
        None, help="URL of an OpenAI-compatible server that writes the responses.", show_default=False
    ),
    server_model: str = typer.Option(None, help="Its name for the target. (default: --target)", show_default=False),
    server_key_variable: str = typer.Option(
        None, help="Environment variable with its API key. (default: none is sent)", show_default=False
    ),
    max_new_tokens: int = typer.Option(192, min=1, help="Longest response."),
    limit: int = typer.Option(None, min=1, help="Only the first rows of each source.", show_default=False),
    batch_size: int = typer.Option(64, min=1, help="Responses generated at once."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    seed: int = typer.Option(0),
) -> None:
    """Label the draft's tokens with the target's verdicts, on the target's own responses."""
    from ..decoding import Decoding
    from ..drafting.informed.config import layers_read
    from ..drafting.pair import check_pair
    from ..hub.data import fingerprint, load_rows, tokenized_prompts
    from ..hub.loading import load_pair, load_tokenizer
    from ..training.label_folder import LabelsCard
    from ..training.labels import Rows
    from ..training.pipeline import label_prompts, leave_processes, process_state, served
    from ..training.responses import sampling_of

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
        states = states or ["before", "after"]
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
