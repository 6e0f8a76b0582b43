"""Calibration of the predicted probability that the first i tokens of a draft are all accepted."""

from itertools import chain

import datasets
import evaluate
import numpy as np


class SurvivalCalibration(evaluate.Metric):
    """
    Args:
        predictions (`list[list[float]]`): predicted acceptances in [0, 1], one list a draft, position by position.
        references (`list[list[float]]`): acceptances in [0, 1], in the same shape; 0 or 1 under greedy decoding.
        n_bins (`int`): bins of equal width for the calibration error, as in `expected_calibration_error`.

    Returns:
        `survival_calibration_error`: the expected calibration error of the survivals of all lengths together, in
        [0, 1], lower is better; and `by_length`, for each `length` the `count` of drafts that are as long or longer,
        their mean `predicted` and `actual` survival, and the `bias`, predicted - actual: above 0 is overconfident.

    Raises:
        ValueError: if there is nothing to judge, a value outside [0, 1], drafts of another length, or no bin.
    """

    def _info(self) -> evaluate.MetricInfo:
        values = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=__doc__,
            citation="Huang, Guo and Wang, SpecDec++, arXiv 2405.19715, whose rule consumes this product",
            inputs_description=self.__doc__,
            features=datasets.Features({"predictions": values, "references": values}),
        )

    def _compute(self, predictions, references, n_bins=15):
        return compute(predictions, references, n_bins)


def compute(predictions: list[list[float]], references: list[list[float]], n_bins: int = 15) -> dict:
    """What the class says, for those who do without evaluate's caches."""
    if n_bins < 1:
        raise ValueError(f"n_bins must be 1 or more, got {n_bins}")
    for number, (predicted, actual) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(actual):
            raise ValueError(f"draft {number} has {len(predicted)} predictions, but {len(actual)} references")
    probabilities(list(chain.from_iterable(predictions)), list(chain.from_iterable(references)))
    predicted, actual = (np.concatenate([np.cumprod(draft) for draft in side]) for side in (predictions, references))
    length = np.concatenate([np.arange(1, len(draft) + 1) for draft in predictions])
    index = np.searchsorted(np.arange(1, n_bins) / n_bins, predicted)
    error = np.abs(np.bincount(index, predicted - actual)).sum() / len(predicted)
    by_length = []
    for n in range(1, length.max() + 1):
        p, a = (float(survival[length == n].mean()) for survival in (predicted, actual))
        count = int((length == n).sum())
        by_length.append({"length": n, "count": count, "predicted": p, "actual": a, "bias": p - a})
    return {"survival_calibration_error": float(error), "by_length": by_length}


def probabilities(predictions: list[float], references: list[float]) -> np.ndarray:
    """Both as an array of shape (2, n); raises ValueError if there are none, or one that is no probability."""
    values = np.array([predictions, references], dtype=np.float64)
    wrong = values[~((values >= 0) & (values <= 1))]
    if wrong.size or not values.size:
        raise ValueError(
            "predictions and references must be probabilities in [0, 1], at least one of each, got "
            f"{wrong[0] if wrong.size else 'none'}"
        )
    return values
