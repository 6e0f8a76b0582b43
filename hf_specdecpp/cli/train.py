"""`specdecpp train` and its sweep."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from .app import console, speaks_plainly


@speaks_plainly
def train(
    labels: list[Path] = typer.Option(..., help="Folder made by `specdecpp label`; a sweep takes several."),
    output: Path = typer.Option(..., help="Folder for the head; an interrupted run goes on in it."),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the labels' draft)", show_default=False),
    mode: str = typer.Option(
        None, help="greedy or sampling. (default: the first that the labels hold)", show_default=False
    ),
    reads: str = typer.Option("before", help="The state before a token, or, as in the paper, the one after it."),
    feature: list[str] = typer.Option(
        ["probability", "entropy"], help="What the head sees besides: probability, entropy, position, or none."
    ),
    label: str = typer.Option("acceptance", help="Learn the acceptance of the drawn token, or the overlap."),
    num_layers: int = typer.Option(1, min=0, help="Residual blocks of the head (depth)."),
    tied: bool = typer.Option(False, help="One block applied repeatedly, as in the authors' code."),
    rejection_weight: float = typer.Option(6.0, help="Weight of rejections in the loss."),
    threshold: float = typer.Option(0.7, min=0, max=1, help="Recommended for the rule of SpecDec++."),
    max_draft_length: int = typer.Option(20, min=1, help="Recommended bound, stored with the head."),
    epochs: float = typer.Option(12.0, help="Passes over the labels, at most."),
    patience: int = typer.Option(3, min=1, help="Stop after so many epochs without a better one."),
    learning_rate: float = typer.Option(1e-3, help="Peak learning rate."),
    batch_size: int = typer.Option(8, min=1, help="Responses a step."),
    report_to: str = typer.Option("none", help="Where to log, as in transformers: tensorboard, wandb, ..."),
    dtype: str = typer.Option("bfloat16", help="Of the frozen draft: the one it will draft in."),
    seed: int = typer.Option(0),
    sweep: bool = typer.Option(False, help="Train variants of this head, one choice changed at a time; compare them."),
    choice: list[str] = typer.Option(
        [],
        help="For a sweep: depth, blocks, rejection-weight, reads, features, label or rows; repeat it for more. "
        "(default: all)",
        show_default=False,
    ),
    traces: Path = typer.Option(
        None,
        help="For a sweep: made by `specdecpp trace --states`, of prompts that are in no labels.",
        show_default=False,
    ),
    costs: Path = typer.Option(
        None, help="For a sweep: a JSON file of `specdecpp calibrate --output`.", show_default=False
    ),
) -> None:
    """Fit an acceptance head to labels, calibrate it on held-out ones, and save it."""
    from ..acceptance import AcceptanceHeadConfig
    from ..hub.loading import load_model
    from ..training.label_folder import read_card
    from ..training.pipeline import leave_processes, train_head
    from ..training.trainer import AcceptanceTrainingArguments

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
        target_name_or_path=card.target, target_signature=card.target_signature, draft_signature=card.draft_signature,
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
    metrics = train_head(model, labels[0], output, config, arguments(output / "checkpoints"), mode, label, patience)
    for name, value in metrics.items():
        if isinstance(value, float | int):
            console.print(f"{name:<28}{value:.4g}")
    console.print(f"head saved in {output}")
    leave_processes()


def run_sweep(new_draft, labels, output, config, arguments, traces, costs, patience, choices) -> None:
    """The sweep of `train`, with its table and its plot."""
    from rich.table import Table

    from ..bench.report import markdown
    from ..costs.store import Calibration
    from ..evidence.files import write_atomically
    from ..evidence.trace import read_states, read_traces
    from ..training.sweep import plot_sweep, sweep

    if traces is None or costs is None:
        raise ValueError("a sweep tells what heads are worth in decoding: give --traces and --costs")
    profile = next(iter(Calibration.load(costs).profiles.values()))
    rows = sweep(
        new_draft, labels, output, config, arguments, read_traces(traces), read_states(traces), profile, patience,
        choices,
        on_variant=lambda name, row: console.print(f"{name}: binary KL {row['binary_kl']:.4f}", highlight=False),
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
