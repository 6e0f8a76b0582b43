"""`specdecpp train` and its sweep."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from .app import LOADING, console, progress, speaks_plainly
from .options import Described

HEAD = Described("acceptance.config", "AcceptanceHeadConfig")
TRAINING = Described("training.trainer", "AcceptanceTrainingArguments")
JOB = Described("training.pipeline", "train_head")
SWEEP = Described("training.sweep", "sweep")


@speaks_plainly
def train(
    labels: list[Path] = typer.Option(..., help="Folder made by `specdecpp label`; a sweep takes several."),
    output: Path = typer.Option(..., help="Folder for the head; an interrupted run goes on in it."),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the labels' draft)", show_default=False),
    mode: str = JOB.option("mode", note="(default: the first that the labels hold)"),
    reads: str = HEAD.option("reads", default="before"),
    feature: list[str] = HEAD.option("features", default=["probability", "entropy"], note="Or none."),
    label: str = JOB.option("label"),
    num_layers: int = HEAD.option("num_layers", default=1, min=0),
    tied: bool = HEAD.option("tied"),
    rejection_weight: float = HEAD.option("rejection_weight"),
    threshold: float = HEAD.option("threshold", min=0, max=1),
    max_draft_length: int = HEAD.option("max_draft_length", min=1),
    epochs: float = TRAINING.option("num_train_epochs", default=12.0),
    patience: int = JOB.option("patience", default=3, min=1),
    learning_rate: float = TRAINING.option("learning_rate", default=1e-3),
    batch_size: int = TRAINING.option("per_device_train_batch_size", default=8, min=1),
    report_to: str = TRAINING.option("report_to"),
    dtype: str = LOADING.option("dtype", default="bfloat16", note="Of the frozen draft: the one it will draft in."),
    seed: int = TRAINING.option("seed", default=0),
    sweep: bool = typer.Option(False, help="Train variants of this head, one choice changed at a time; compare them."),
    choice: list[str] = SWEEP.option("choices", note="(default: all)"),
    traces: Path = SWEEP.option(
        "traces", default=None, note="A file of `specdecpp trace --states`; with --sweep alone."
    ),
    costs: Path = SWEEP.option(
        "costs", default=None, note="A JSON file of `specdecpp calibrate --output`; with --sweep alone."
    ),
) -> None:
    """Fit an acceptance head to labels, calibrate it on held-out ones, and save it."""
    from hf_specdecpp.acceptance import AcceptanceHeadConfig
    from hf_specdecpp.hub.loading import load_model
    from hf_specdecpp.training.label_folder import read_card
    from hf_specdecpp.training.pipeline import leave_processes, train_head
    from hf_specdecpp.training.trainer import AcceptanceTrainingArguments

    if len(labels) > 1 and not sweep:
        raise ValueError(f"a head is trained on one folder of labels, got {len(labels)}: a --sweep compares several")
    card = read_card(labels[0])
    mode = mode or next(iter(card.decodings))
    if mode not in card.decodings:
        raise ValueError(f"the labels in {str(labels[0])!r} are for {', '.join(card.decodings)}, not for {mode!r}")
    config = AcceptanceHeadConfig(
        num_layers=num_layers, tied=tied, reads=reads, features=[name for name in feature if name != "none"],
        rejection_weight=rejection_weight, decoding=card.decodings[mode], rule="cost-aware", threshold=threshold,
        min_draft_length=min(1 if reads == "before" else 2, max_draft_length), max_draft_length=max_draft_length,
    )  # fmt: skip

    def arguments(checkpoints: Path) -> AcceptanceTrainingArguments:
        return AcceptanceTrainingArguments(
            str(checkpoints), num_train_epochs=epochs, learning_rate=learning_rate, seed=seed,
            per_device_train_batch_size=batch_size, report_to=report_to,
        )  # fmt: skip

    if sweep:
        run_sweep(
            partial(load_model, draft or card.draft, dtype), labels, output, config, arguments, traces, costs,
            patience, choice,
        )  # fmt: skip
        return
    model = load_model(draft or card.draft, dtype)
    with progress() as shown:
        task = shown.add_task("training, at most", total=None)
        metrics = train_head(
            model, labels[0], output, config, arguments(output / "checkpoints"), mode, label, patience,
            on_step=lambda step, steps: shown.update(task, completed=step, total=steps),
        )  # fmt: skip
    for name, value in metrics.items():
        if isinstance(value, float | int):
            console.print(f"{name:<28}{value:.4g}")
    console.print(f"head saved in {output}")
    leave_processes()


def run_sweep(new_draft, labels, output, config, arguments, traces, costs, patience, choices) -> None:
    """The sweep of `train`, with its table and its plot."""
    from rich.table import Table

    from hf_specdecpp.bench.report import markdown
    from hf_specdecpp.costs.store import Calibration
    from hf_specdecpp.evidence.files import write_atomically
    from hf_specdecpp.evidence.trace import read_states, read_traces
    from hf_specdecpp.training.sweep import plot_sweep, sweep, variants

    if traces is None or costs is None:
        raise ValueError("a sweep tells what heads are worth in decoding: give --traces and --costs")
    profile = next(iter(Calibration.load(costs).profiles.values()))
    with progress() as shown:
        task = shown.add_task("variants", total=len(variants(config, labels, choices)))

        def told(name: str, row: dict) -> None:
            console.print(f"{name}: binary KL {row['binary_kl']:.4f}", highlight=False)
            shown.advance(task)

        rows = sweep(
            new_draft, labels, output, config, arguments, read_traces(traces), read_states(traces), profile, patience,
            choices, on_variant=told,
        )  # fmt: skip
    cells = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    table = Table(*rows[0])
    for row in cells:
        table.add_row(*row)
    console.print(table)
    columns = (name.replace("_", " ") for name in rows[0])
    write_atomically(output / "sweep.md", "\n".join([*markdown(columns, cells), ""]))
    plot_sweep(rows, output / "sweep.png")
    console.print(f"heads, table and plot in {output}")
