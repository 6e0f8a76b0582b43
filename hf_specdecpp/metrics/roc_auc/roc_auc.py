"""The probability that an accepted token was given a higher predicted acceptance than a rejected one."""

import datasets
import evaluate
import numpy as np


class RocAuc(evaluate.Metric):
    """
    Args:
        predictions (`list[float]`): predicted probabilities of acceptance, in [0, 1].
        references (`list[float]`): acceptances, in [0, 1]; 0 or 1 under greedy decoding.

    Returns:
        `roc_auc`: in [0, 1], higher is better, 0.5 without any knowledge.

    Raises:
        ValueError: if there is nothing to judge, a value outside [0, 1], or only accepted or only rejected tokens.
    """

    def _info(self) -> evaluate.MetricInfo:
        values = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="Hanley and McNeil, The Meaning and Use of the Area under a ROC Curve, Radiology 143(1), 1982",
            inputs_description=self.__doc__,
            features=datasets.Features({"predictions": values, "references": values}),
        )

    def _compute(self, predictions, references):
        return compute(predictions, references)


def compute(predictions: list[float], references: list[float]) -> dict:
    """What the class says, for those who do without evaluate's caches."""
    predicted, actual = probabilities(predictions, references)
    _, group = np.unique(predicted, return_inverse=True)
    accepted, rejected = np.bincount(group, actual), np.bincount(group, 1 - actual)
    pairs = accepted.sum() * rejected.sum()
    if pairs == 0:
        raise ValueError("roc_auc tells accepted from rejected tokens: references must hold some of each")
    below = np.cumsum(rejected) - rejected / 2  # a tie counts half
    return {"roc_auc": float(accepted @ below / pairs)}


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
