"""Fits an acceptance head to labels with the Hugging Face `Trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from ..acceptance import AcceptanceHeadConfig
from .head_inputs import HeadInputs
from .losses import loss_weight, weighted_acceptance_loss


@dataclass
class AcceptanceTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the paper's settings as defaults: 3 epochs, batch 32, 5e-5, cosine, 3 % of warm-up.

    After each epoch the head is evaluated and saved; the best one is kept. A process trains on one device, so a batch
    has the size that was asked for; `accelerate launch` uses several.

    Args:
        num_train_epochs (`float`): passes over the labels, at most.
        per_device_train_batch_size (`int`): responses a step, of each process.
        learning_rate (`float`): the peak.
        report_to (`str`): where to log, as in transformers: tensorboard, wandb, ...
        seed (`int`): of weights and order.
    """

    num_train_epochs: float = field(default=3.0)
    per_device_train_batch_size: int = field(default=32)
    per_device_eval_batch_size: int = field(default=32)
    learning_rate: float = field(default=5e-5)
    lr_scheduler_type: str = field(default="cosine")
    warmup_steps: float = field(default=0.03)
    logging_steps: float = field(default=10)
    eval_strategy: str = field(default="epoch")
    save_strategy: str = field(default="epoch")
    save_total_limit: int | None = field(default=1)
    load_best_model_at_end: bool = field(default=True)
    remove_unused_columns: bool = field(default=False)
    report_to: str = field(default="none")
    dataloader_pin_memory: bool = field(default=False)

    @property
    def n_gpu(self) -> int:
        """With more than one the Trainer would wrap the draft in `nn.DataParallel` and multiply the batch."""
        return min(super().n_gpu, 1)


class AcceptanceTrainer(Trainer):
    """A `Trainer` for a `PeftModel` with an acceptance head. The draft runs frozen and without its vocabulary; where
    rows hold its hidden states, it does not run at all.

    Evaluation returns the raw logits and the labels of every token, unlabelled ones included.
    """

    def __init__(self, model, inputs: HeadInputs, **kwargs):
        super().__init__(model=model, data_collator=inputs, **kwargs)
        self.head_config: AcceptanceHeadConfig = model.active_peft_config
        self.label_names = ["acceptance"]
        self.model_accepts_loss_kwargs = False  # so the Trainer averages the losses of accumulated batches

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The batches of a step, and the mean of their weights: each batch's loss is divided by that, not by its own.

        Accumulated batches, and processes, average their gradients; quotients of their own would not average to the
        loss of all rows together.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        weights = [loss_weight(batch["acceptance"], self.head_config.rejection_weight) for batch in batches]
        if not batches:
            return batches, None
        return batches, self.accelerator.reduce(torch.stack(weights).mean().to(device), "mean")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        acceptance = inputs.pop("acceptance")
        raw_logits = model(**inputs, acceptance_only=True)
        loss, weight = weighted_acceptance_loss(raw_logits, acceptance, self.head_config.rejection_weight)
        loss = loss / (weight if num_items_in_batch is None else num_items_in_batch).clamp(min=1e-12)
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
