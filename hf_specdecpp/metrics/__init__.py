"""How well acceptance is predicted: metrics in the form that `evaluate.load` takes, a folder and a card each.

A folder is complete in itself, evaluate and numpy aside, so that it can be loaded without this package.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluate import EvaluationModule

METRICS = ("binary_kl", "brier_score", "expected_calibration_error", "roc_auc", "survival_calibration")


def load_metric(name: str) -> EvaluationModule:
    """A metric by the name of its folder; nothing is fetched.

    Inputs are kept in memory, so processes that share a file system do not meet; the modules cache of Hugging Face
    (`HF_MODULES_CACHE`), where evaluate imports a copy of the folder from, is locked by evaluate.

    Raises:
        ValueError: if there is no such metric.
    """
    if name not in METRICS:
        raise ValueError(f"the metric must be one of {', '.join(METRICS)}, got {name!r}")
    import evaluate  # takes seconds: it imports transformers' pipelines

    return evaluate.load(str(Path(__file__).parent / name), keep_in_memory=True)


def all_metrics(
    probabilities: list[float],
    acceptance: list[float],
    chains: tuple[list[list[float]], list[list[float]]] | None = None,
) -> dict[str, Any]:
    """What every metric returns, in one dictionary for JSON; the cards say what it means.

    Args:
        probabilities, acceptance: a predicted and an actual acceptance in [0, 1] for each token.
        chains: the same as two lists of drafts, position by position; without it there is no `survival_calibration`.

    Returns:
        Numbers by name, and the lists `bins` and `by_length` that `plot_reliability` draws. `roc_auc` is None where
        all tokens are accepted or none is: there is nothing to tell apart.

    Raises:
        ValueError: if there is nothing to judge, or a value outside [0, 1].
    """
    inputs = {"predictions": probabilities, "references": acceptance}
    results = {"roc_auc": None}
    for name in METRICS[:3]:
        results |= compute(name, **inputs)
    if 0 < sum(acceptance) < len(acceptance):
        results |= compute("roc_auc", **inputs)
    if chains:
        results |= compute("survival_calibration", predictions=chains[0], references=chains[1])
    return results


def compute(name: str, **inputs: Any) -> dict[str, Any]:
    """What `load_metric(name).compute` returns, without evaluate's caches: a home that is read-only loses nothing."""
    return import_module(f".{name}.{name}", __name__).compute(**inputs)
