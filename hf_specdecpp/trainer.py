"""Fits an acceptance head to labels with the Hugging Face `Trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from .acceptance import AcceptanceHeadConfig
from .labels import UNLABELLED
from .losses import binary_kl, weighted_acceptance_loss


@dataclass
class AcceptanceTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the paper's settings as defaults: 3 epochs, batch 32, 5e-5, cosine, 3 % of warm-up."""

    num_train_epochs: float = field(default=3.0)
    per_device_train_batch_size: int = field(default=32)
    per_device_eval_batch_size: int = field(default=32)
    learning_rate: float = field(default=5e-5)
    lr_scheduler_type: str = field(default="cosine")
    warmup_steps: float = field(default=0.03)
    remove_unused_columns: bool = field(default=False)
    report_to: str = field(default="none")
    dataloader_pin_memory: bool = field(default=False)


def collate(rows: list[dict]) -> dict[str, Tensor]:
    """Rows of labels as a batch padded on the right: `input_ids`, `attention_mask`, `acceptance`, (batch, length)."""

    def padded(name: str, value: float, dtype: torch.dtype) -> Tensor:
        tensors = [torch.tensor(row[name], dtype=dtype) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    input_ids = padded("input_ids", 0, torch.long)
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "acceptance": padded("acceptance", UNLABELLED, torch.float),
    }


class AcceptanceTrainer(Trainer):
    """A `Trainer` for a `PeftModel` with an acceptance head. The draft runs frozen and without its vocabulary.

    Evaluation returns the raw logits and the labels of every position, unlabelled ones included.
    """

    def __init__(self, model, **kwargs):
        super().__init__(model=model, data_collator=collate, **kwargs)
        self.head_config: AcceptanceHeadConfig = model.active_peft_config
        self.label_names = ["acceptance"]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        acceptance = inputs.pop("acceptance")
        raw_logits = model(**inputs, acceptance_only=True)
        loss = weighted_acceptance_loss(raw_logits, acceptance, self.head_config.rejection_weight)
        return (loss, {"logits": raw_logits}) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs["acceptance"]
        with torch.no_grad():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        return loss, outputs["logits"], labels


def fit_calibration(config: AcceptanceHeadConfig, raw_logits: Tensor, acceptance: Tensor) -> tuple[float, float]:
    """Scale and offset of the calibrated logit that fit held-out labels best, in unweighted cross-entropy.

    This is Platt's scaling (1999) on soft labels, after the exact inversion of the rejection weight.

    Args:
        raw_logits, acceptance (`torch.FloatTensor` of shape `(n,)`): labelled positions only.
    """
    plain = AcceptanceHeadConfig(rejection_weight=config.rejection_weight).acceptance_logits(raw_logits).double()
    parameters = torch.tensor([1.0, 0.0], dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(parameters[0] * plain + parameters[1], acceptance.double())
        loss.backward()
        return loss

    optimizer.step(closure)
    scale, offset = parameters.tolist()
    return scale, offset


def head_metrics(config: AcceptanceHeadConfig, raw_logits: Tensor, acceptance: Tensor) -> dict[str, float]:
    """How good calibrated predictions are on labelled positions.

    Returns:
        `binary_kl` (nats, lower is better), `binary_kl_constant` (that of always predicting the mean), the mean
        `acceptance` and the mean `predicted` acceptance (equal when unbiased), and the count of `labels`.
    """
    mean = acceptance.mean()
    logits = config.acceptance_logits(raw_logits)
    return {
        "binary_kl": binary_kl(logits, acceptance).mean().item(),
        "binary_kl_constant": binary_kl(torch.logit(mean).expand_as(acceptance), acceptance).mean().item(),
        "acceptance": mean.item(),
        "predicted": torch.sigmoid(logits).mean().item(),
        "labels": acceptance.numel(),
    }
