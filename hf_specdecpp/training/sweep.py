"""What each choice in training a head is worth, in loss and in decoding: one choice changed at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..acceptance import AcceptanceHeadConfig, read_head
from ..decoding import Decoding
from ..drafting.informed.block_config import CONFIGS
from ..evidence.conditions import public, write_result
from ..evidence.files import save_figure
from ..evidence.replay import replay
from ..evidence.trace import Trace, judged
from ..stopping import CostProfile, StoppingConfig
from .label_folder import read_card
from .pipeline import train_head
from .trainer import AcceptanceTrainingArguments

CHOICES = ("depth", "blocks", "rejection-weight", "reads", "features", "label", "rows")
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Variant:
    """One head of a sweep: what is changed against the base, by the names that `train` has for it."""

    choice: str
    value: str
    config: dict[str, Any] = field(default_factory=dict)
    labels: Path | None = None
    label: str = "acceptance"

    @property
    def name(self) -> str:
        return f"{self.choice} {self.value}".strip()


def variants(base: AcceptanceHeadConfig, labels: list[Path], choices: Sequence[str] = ()) -> list[Variant]:
    """The base, and every other value of each of `choices`.

    Args:
        base: the base's configuration.
        labels: folders made from other rows (procedure, mixing); the first is the base's.
        choices: of `CHOICES`; all if there are none.

    Raises:
        ValueError: for another choice.
    """
    unknown = sorted(set(choices) - set(CHOICES))
    if unknown:
        raise ValueError(f"a sweep has no choice {unknown[0]!r}: choose among {', '.join(CHOICES)}")

    def changed(choice: str, **values: dict[str, Any]) -> list[Variant]:
        return [
            Variant(choice, value.replace("_", " "), config)
            for value, config in values.items()
            if any(getattr(base, name) != v for name, v in config.items())
        ]

    features = {"none": [], "probability": ["probability"], "entropy": ["entropy"], "position": ["position"]}
    features |= {"probability, entropy": ["probability", "entropy"], "all": ["probability", "entropy", "position"]}
    is_of_blocks = read_card(labels[0]).draft_signature.split("-")[0] in CONFIGS  # see `check_reads`
    reads = ("before",) if is_of_blocks else ("before", "after")
    deep = max(base.num_layers, 3)
    found = [
        *changed("depth", **{str(d): {"num_layers": d} for d in range(5)}),
        *changed("blocks", **{f"{deep}, tied": {"num_layers": deep, "tied": True}}),
        *changed("rejection-weight", **{str(w): {"rejection_weight": float(w)} for w in (1, 3, 6, 12)}),
        *changed("reads", **{each: {"reads": each} for each in reads}),
        *changed("features", **{name: {"features": value} for name, value in features.items()}),
        # What is accepted of a draw under rejection sampling; the seeded coupling has no such closed form.
        *([] if Decoding.stored(base.decoding).has_noise else [Variant("label", "overlap", label="overlap")]),
        *(Variant("rows", str(read_card(folder).rows), labels=folder) for folder in labels[1:]),
    ]
    return [Variant("base", ""), *(variant for variant in found if not choices or variant.choice in choices)]


def sweep(
    new_draft: Callable[[], PreTrainedModel],
    labels: list[Path],
    output: Path,
    base: AcceptanceHeadConfig,
    new_arguments: Callable[[Path], AcceptanceTrainingArguments],
    traces: list[Trace],
    states: list[Tensor],
    costs: CostProfile,
    patience: int | None = None,
    choices: Sequence[str] = (),
    on_variant: Callable[[str, dict], None] = lambda name, row: None,
) -> list[dict[str, Any]]:
    """Trains every variant into `output` (those that are there are kept) and replays it.

    Args:
        new_draft: loads the draft afresh; a head changes the model that it is put on.
        new_arguments: those of a training whose checkpoints go into a folder.
        traces, states: what was drafted for prompts that are in no labels, see `record_trace`.
        costs: what a pair costs on the machine whose decoding is of interest.
        choices: what is changed: depth, blocks, rejection-weight, reads, features, label or rows; all if there are
            none.

    Returns:
        A row a variant: `variant`, metrics on held-out labels, and `speedup` (tokens a second of plain decoding) under
        the cost-aware rule, which nothing is chosen for, and under SpecDec++'s at its best threshold. Also written to
        `sweep.json`, with the conditions.
    """
    evidence = {
        "decoding": base.decoding,
        "labels": [
            asdict(card) | {"target": public(card.target), "draft": public(card.draft)}
            for card in map(read_card, labels)
        ],
        "traces": len(traces),
        "costs_seconds": asdict(costs),
    }
    rows = []
    for variant in variants(base, labels, choices):
        folder = output / variant.name.replace(" ", "-")
        if not (folder / "metrics.json").exists():
            train_head(
                new_draft(), variant.labels or labels[0], folder, replace(base, **variant.config),
                new_arguments(folder / "checkpoints"), label=variant.label, patience=patience,
            )  # fmt: skip
        metrics = json.loads((folder / "metrics.json").read_text())
        found = [judged(trace, s, *read_head(folder)) for trace, s in zip(traces, states, strict=True)]
        row = {"variant": variant.name} | {k: metrics[k] for k in METRICS} | worth(found, costs, metrics["acceptance"])
        rows.append(row)
        write_result(output / "sweep.json", evidence | {"variants": rows})
        on_variant(variant.name, row)
    return rows


METRICS = ("binary_kl", "roc_auc", "expected_calibration_error", "survival_calibration_error")


def worth(traces: list[Trace], costs: CostProfile, mean_acceptance: float) -> dict[str, float]:
    """Tokens a second, relative to plain decoding, that a head in `traces` gives the rules that ask it."""
    longest = max(len(draft.tokens) for trace in traces for draft in trace.drafts)
    settings = {"mean_acceptance": mean_acceptance, "max_length": longest}
    aware = StoppingConfig(None, 1, longest, "cost-aware", settings)
    found = {h: replay(traces, StoppingConfig(h, 1, longest, "specdec++").new_rule, costs).speedup for h in THRESHOLDS}
    best = max(found, key=found.get)
    return {
        "cost_aware_speedup": replay(traces, lambda: aware.new_rule(costs=costs), costs).speedup,
        "threshold_speedup": found[best],
        "threshold": best,
    }


def plot_sweep(rows: list[dict[str, Any]], path: Path) -> None:
    """Loss and speed of every variant, as a PNG or an SVG by the suffix of `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 + 0.3 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row["variant"] for row in rows]
    places = torch.arange(len(rows)).flip(0).tolist()
    left.plot([row["binary_kl"] for row in rows], places, "o")
    left.set(xlabel="binary KL on its own held-out labels, nats", yticks=places, yticklabels=names)
    right.plot([row["cost_aware_speedup"] for row in rows], places, "o", label="cost-aware, nothing chosen")
    right.plot([row["threshold_speedup"] for row in rows], places, "s", label="SpecDec++, best threshold")
    right.set(xlabel="tokens/s relative to plain decoding, by replay")
    right.legend(loc="center", fontsize="small")
    for axes, key in ((left, "binary_kl"), (right, "cost_aware_speedup")):
        axes.axvline(rows[0][key], color="grey", linewidth=0.5)
        axes.grid(axis="y", alpha=0.3)
    save_figure(figure, path)
