import json
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from models import HIDDEN, VOCAB, tiny_model, with_head
from transformers import TrainingArguments

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.training.head_inputs import HeadInputs
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.trainer import AcceptanceTrainer, AcceptanceTrainingArguments, fit_calibration

CURVE = Path(__file__).parent / "data" / "loss_curve.json"


def loss_curve(batch: int = 8, accumulated: int = 1) -> list[float]:
    """The loss of each of 50 steps on made-up rows with stored states."""
    generator = torch.Generator().manual_seed(0)
    uniform, rows = partial(torch.rand, generator=generator), []
    for n in (torch.arange(60) % 12 + 5).tolist():
        states = torch.randn(n, HIDDEN, generator=generator)
        drawn, response = torch.randint(VOCAB, (2, n), generator=generator)
        acceptance = torch.sigmoid(2 * states[:, 0] + 4 * uniform(n) - 2)
        row = {"response_ids": torch.where(uniform(n) < acceptance, drawn, response), "entropy": 3 * uniform(n)}
        row |= {"m_drawn": drawn, "m_acceptance": acceptance, "m_probability": uniform(n)}
        row |= {"m_before": states.flatten()}
        rows.append({name: value.tolist() for name, value in row.items()})
    features = ["probability", "entropy", "position"]
    config = {"num_layers": 2, "reads": "before", "features": features, "rejection_weight": 6.0}
    with tempfile.TemporaryDirectory() as folder:
        arguments = AcceptanceTrainingArguments(
            folder, max_steps=50, learning_rate=2e-3, per_device_train_batch_size=batch, logging_steps=1, use_cpu=True,
            gradient_accumulation_steps=accumulated,
            eval_strategy="no", save_strategy="no", load_best_model_at_end=False, disable_tqdm=True,
        )  # fmt: skip
        inputs = HeadInputs("m", Rows(), "before", features, stored=True)
        data = Dataset.from_list(rows).with_format("numpy")
        trainer = AcceptanceTrainer(with_head(tiny_model(), **config), inputs, args=arguments, train_dataset=data)
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_fifty_steps_follow_the_committed_loss_curve():
    """Another loss, rejection weight, feature, order of rows, optimizer or schedule makes other heads.

    Where that is meant, `python tests/training/test_trainer.py` writes the curve anew. The tolerance is 100 times what
    rounding errors of 1e-6 in the head make of it, a quarter of what a rejection weight of 6.01 instead of 6 makes.
    """
    assert loss_curve() == pytest.approx(json.loads(CURVE.read_text()), rel=1e-4)


def test_accumulated_batches_make_the_steps_of_one_batch():
    """The loss of all rows together; the mean of the batches' own quotients is another one."""
    assert loss_curve(2, 4) == pytest.approx(json.loads(CURVE.read_text()), rel=1e-4)


def test_several_gpus_do_not_multiply_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 4))
    arguments = AcceptanceTrainingArguments(str(tmp_path), per_device_train_batch_size=8)
    assert TrainingArguments(str(tmp_path), per_device_train_batch_size=8).train_batch_size == 32
    assert arguments.n_gpu == 1 and arguments.train_batch_size == 8 and arguments.eval_batch_size == 32


def test_calibration_recovers_a_known_distortion():
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(20000, generator=generator) * 2
    config = AcceptanceHeadConfig(rejection_weight=6.0)
    raw = (true_logits - 0.4) / 1.5 - torch.log(torch.tensor(6.0))
    scale, offset = fit_calibration(config, raw, torch.sigmoid(true_logits))
    assert (scale, offset) == (pytest.approx(1.5, abs=1e-3), pytest.approx(0.4, abs=1e-3))


if __name__ == "__main__":
    CURVE.write_text(json.dumps([round(loss, 7) for loss in loss_curve()], indent=1) + "\n")
