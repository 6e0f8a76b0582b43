"""How good predictions of acceptance are, by the metrics of `metrics/`, and beside what predicts without a head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..metrics import all_metrics, compute
from .head_inputs import HeadInputs

WINDOW = 8  # tokens of a chain whose survival is judged


@dataclass(frozen=True)
class JudgedTokens:
    """Labelled tokens, (n,) each, in the order in which `HeadInputs` collates their rows.

    Attributes:
        acceptance: the label.
        accepted: whether the draft's token came out; rounds along a response have the law of real ones.
        probability, entropy: of the draft, see `DraftedToken`.
        response: the number of the response that a token is in.
    """

    acceptance: Tensor
    accepted: Tensor
    probability: Tensor
    entropy: Tensor
    response: Tensor


def judged_tokens(rows: Iterable[dict], inputs: HeadInputs) -> JudgedTokens:
    """The labelled tokens of `rows`."""
    columns: list[tuple[Tensor, ...]] = []
    for number, row in enumerate(rows):
        labels = inputs.labels(row)
        kept = labels >= 0
        accepted = inputs.drawn(row) == torch.tensor(row["response_ids"])
        values = labels, accepted, inputs.drawn(row, "probability"), torch.tensor(row["entropy"])
        columns.append((*(value[kept] for value in values), torch.full((int(kept.sum()),), number)))
    return JudgedTokens(*(torch.cat(column) for column in zip(*columns, strict=True)))


def quality(probabilities: Tensor, tokens: JudgedTokens) -> dict[str, Any]:
    """Metrics of predicted acceptances.

    Survival is judged on chains of up to 8 successive tokens of a response.

    Args:
        probabilities (`torch.DoubleTensor` of shape `(n,)`): predictions for `tokens`.

    Returns:
        What `all_metrics` returns; `binary_kl_constant`, that of always predicting the mean; the mean `acceptance` and
        the mean `predicted` acceptance (equal when unbiased); the count of `labels`.
    """
    acceptance = tokens.acceptance.double().clamp(0, 1)
    chains: tuple[list, list] = [], []
    for number in tokens.response.unique().tolist():
        own = tokens.response == number
        for chain, values in zip(chains, (probabilities[own], tokens.accepted[own].double()), strict=True):
            chain += [part.tolist() for part in values.split(WINDOW)]
    return all_metrics(probabilities.tolist(), acceptance.tolist(), chains) | {
        "binary_kl_constant": binary_kl(acceptance.mean().expand_as(acceptance), tokens),
        "acceptance": acceptance.mean().item(),
        "predicted": probabilities.mean().item(),
        "labels": len(acceptance),
    }


def binary_kl(probabilities: Tensor, tokens: JudgedTokens) -> float:
    """The one of the metrics, in nats, for predictions that need no more."""
    references = tokens.acceptance.double().clamp(0, 1).tolist()
    return compute("binary_kl", predictions=probabilities.tolist(), references=references)["binary_kl"]
