"""Mean binary Kullback-Leibler divergence, in nats, between acceptance and its prediction."""

import datasets
import evaluate
import numpy as np

EPSILON = 1e-12  # a prediction of exactly 0 or 1 that is wrong costs 27.6 nats, not infinity


class BinaryKL(evaluate.Metric):
    """
    Args:
        predictions (`list[float]`): predicted probabilities of acceptance, in [0, 1].
        references (`list[float]`): acceptances, in [0, 1]; 0 or 1 under greedy decoding.

    Returns:
        `binary_kl`: nats, 0 or more, lower is better.

    Raises:
        ValueError: if there is nothing to judge, or a value outside [0, 1].
    """

    def _info(self) -> evaluate.MetricInfo:
        values = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="Huang, Guo and Wang, SpecDec++, arXiv 2405.19715, whose dev metric it is",
            inputs_description=self.__doc__,
            features=datasets.Features({"predictions": values, "references": values}),
        )

    def _compute(self, predictions, references):
        return compute(predictions, references)


def compute(predictions: list[float], references: list[float]) -> dict:
    """What the class says, for those who do without evaluate's caches."""
    predicted, actual = probabilities(predictions, references)
    divergence = relative_entropy(actual, predicted) + relative_entropy(1 - actual, 1 - predicted)
    return {"binary_kl": float(divergence.mean())}


def relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """`p log(p / q)`, which is 0 at p = 0."""
    return p * np.log(np.where(p > 0, p, 1) / np.maximum(q, EPSILON))


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
