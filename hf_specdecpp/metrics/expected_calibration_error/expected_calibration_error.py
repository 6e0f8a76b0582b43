"""How far predicted acceptance is from actual acceptance, over bins of similar predictions."""

import datasets
import evaluate
import numpy as np


class ExpectedCalibrationError(evaluate.Metric):
    """
    Args:
        predictions (`list[float]`): predicted probabilities of acceptance, in [0, 1].
        references (`list[float]`): acceptances, in [0, 1]; 0 or 1 under greedy decoding.
        n_bins (`int`): bins of equal width, (0, 1/n], ..., (1 - 1/n, 1]; a prediction of 0 is in the first.

    Returns:
        `expected_calibration_error`: in [0, 1], lower is better; and `bins`, those that hold a prediction, each with
        its edges `lower` and `upper`, its `count`, and its mean `predicted` and `actual` acceptance.

    Raises:
        ValueError: if there is nothing to judge, a value outside [0, 1], or no bin.
    """

    def _info(self) -> evaluate.MetricInfo:
        values = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural Networks, arXiv 1706.04599",
            inputs_description=self.__doc__,
            features=datasets.Features({"predictions": values, "references": values}),
        )

    def _compute(self, predictions, references, n_bins=15):
        return compute(predictions, references, n_bins)


def compute(predictions: list[float], references: list[float], n_bins: int = 15) -> dict:
    """What the class says, for those who do without evaluate's caches."""
    if n_bins < 1:
        raise ValueError(f"n_bins must be 1 or more, got {n_bins}")
    predicted, actual = probabilities(predictions, references)
    index = np.searchsorted(np.arange(1, n_bins) / n_bins, predicted)
    bins = [
        {
            "lower": i / n_bins,
            "upper": (i + 1) / n_bins,
            "count": int((index == i).sum()),
            "predicted": float(predicted[index == i].mean()),
            "actual": float(actual[index == i].mean()),
        }
        for i in np.unique(index).tolist()
    ]
    error = sum(b["count"] * abs(b["predicted"] - b["actual"]) for b in bins) / len(predicted)
    return {"expected_calibration_error": error, "bins": bins}


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
