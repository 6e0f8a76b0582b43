"""A saved head judged on labels that it has not seen, beside what predicts acceptance without a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from ..acceptance import AcceptanceHeadConfig
from .head_inputs import HeadInputs
from .head_quality import JudgedTokens, judged_tokens, quality
from .label_folder import read_card, read_labels
from .pipeline import SEQUENCES_PER_PASS, mode_of, shares
from .trainer import fit_calibration

# Columns of a table; 1 where less is better.
TABLE = {"binary_kl": 1, "roc_auc": -1, "expected_calibration_error": 1, "brier_score": 1}


def judge(draft: PreTrainedModel, head: Path, labels: Path, trained_on: Path) -> dict[str, dict[str, Any]]:
    """How well a head predicts the acceptance in the folder `labels`, beside predictors without one.

    Those that are fitted are fitted to the labels that the head was calibrated on.

    Args:
        draft (`PreTrainedModel`): without a head, which is how it is given back. Where `labels` hold the hidden states
            that the head reads, it does not run.
        head (`Path`): the folder that the head was saved in.
        trained_on (`Path`): the labels that it was trained on.

    Returns:
        `quality` of each predictor, on the same tokens: the calibrated `head`; `constant`, the mean acceptance of
        `labels` themselves, which no other constant betters; `probability`, the draft's own of the token; `fitted
        probability` and `fitted entropy`, Platt's scaling of its logit and of the draft's entropy.

    Raises:
        ValueError: if one of the folders has no labels for the head's decoding mode.
    """
    config = AcceptanceHeadConfig.from_pretrained(head)
    rows, inputs = judged_rows(labels, config)
    tokens, dev = judged_tokens(rows, inputs), calibration_tokens(trained_on, config)
    predictions = {
        "constant": tokens.acceptance.double().mean().expand(len(tokens.acceptance)),
        "probability": tokens.probability.double().clamp(0, 1),
        "fitted probability": fitted(dev, *(torch.logit(t.probability.double(), eps=1e-6) for t in (dev, tokens))),
        "fitted entropy": fitted(dev, dev.entropy, tokens.entropy),
    }
    model = PeftModel.from_pretrained(draft, head)
    predictions = {"head": head_predictions(model, rows, inputs)} | predictions
    model.unload()
    return {name: quality(probabilities, tokens) for name, probabilities in predictions.items()}


def calibration_tokens(labels: Path, config: AcceptanceHeadConfig) -> JudgedTokens:
    """The labelled tokens that `train_head` calibrates a head of `config` on, of the folder `labels`."""
    rows, inputs = judged_rows(labels, config)
    return judged_tokens(shares(rows)[1], inputs)


def judged_rows(labels: Path, config: AcceptanceHeadConfig) -> tuple[Dataset, HeadInputs]:
    """The rows of a folder, and what a head of `config` reads of them."""
    card, rows = read_card(labels), read_labels(labels).with_format("numpy")
    mode = mode_of(card, config.decoding)
    stored = f"{mode}_{config.reads}" in rows.column_names
    return rows, HeadInputs(mode, card.rows, config.reads, config.features, stored=stored)


@torch.inference_mode()
def head_predictions(model: PeftModel, rows: Dataset, inputs: HeadInputs) -> Tensor:
    """Calibrated acceptances of the labelled tokens of `rows`, in the order of `judged_tokens`, (n,) in double."""
    logits = []
    for first in range(0, len(rows), SEQUENCES_PER_PASS):
        part = [rows[i] for i in range(first, min(first + SEQUENCES_PER_PASS, len(rows)))]
        batch = {name: tensor.to(model.device) for name, tensor in inputs(part).items()}
        labelled = batch.pop("acceptance") >= 0
        logits.append(model(**batch, acceptance_only=True)[labelled].double().cpu())
    return torch.sigmoid(model.active_peft_config.acceptance_logits(torch.cat(logits)))


def fitted(dev: JudgedTokens, dev_values: Tensor, values: Tensor) -> Tensor:
    """Acceptances by the line through `dev_values` that fits the acceptance of `dev` best as a logit."""
    scale, offset = fit_calibration(AcceptanceHeadConfig(rejection_weight=1.0), dev_values, dev.acceptance)
    return torch.sigmoid(scale * values.double() + offset)


def predictor_table(found: dict[str, dict[str, Any]]) -> str:
    """What `judge` found, in Markdown, with the head's lead over the others."""
    head = found["head"]
    lines = [
        f"{head['labels']:,} tokens, mean acceptance {head['acceptance']:.3f}. In brackets, the head's lead.",
        "",
        "| predictor | binary KL, nats | ROC AUC | ECE | Brier score |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, metrics in found.items():
        cells = []
        for metric, sign in TABLE.items():
            value, best = metrics[metric], head[metric]
            ahead = f" ({sign * (value - best):+.4f})" if metrics is not head and value is not None else ""
            cells.append("" if value is None else f"{value:.4f}{ahead}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
