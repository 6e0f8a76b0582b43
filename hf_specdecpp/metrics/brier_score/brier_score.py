"""Mean squared error of predicted acceptance, in expectation over the outcome."""

import datasets
import evaluate
import numpy as np


class BrierScore(evaluate.Metric):
    """
    Args:
        predictions (`list[float]`): predicted probabilities of acceptance, in [0, 1].
        references (`list[float]`): acceptances, in [0, 1]; 0 or 1 under greedy decoding.

    Returns:
        `brier_score`: in [0, 1], lower is better.

    Raises:
        ValueError: if there is nothing to judge, or a value outside [0, 1].
    """

    def _info(self) -> evaluate.MetricInfo:
        values = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="Brier, Verification of Forecasts Expressed in Terms of Probability, 1950",
            inputs_description=self.__doc__,
            features=datasets.Features({"predictions": values, "references": values}),
        )

    def _compute(self, predictions, references):
        return compute(predictions, references)


def compute(predictions: list[float], references: list[float]) -> dict:
    """What the class says, for those who do without evaluate's caches."""
    predicted, actual = probabilities(predictions, references)
    return {"brier_score": float(np.mean(actual * (1 - predicted) ** 2 + (1 - actual) * predicted**2))}


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
