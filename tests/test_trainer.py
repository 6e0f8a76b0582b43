import json

import pytest
import torch
from conftest import similar_draft
from peft import PeftModel
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.labels import LabelsCard
from hf_specdecpp.pipeline import label_prompts, train_head
from hf_specdecpp.trainer import AcceptanceTrainingArguments, collate, fit_calibration, head_metrics


@pytest.fixture(scope="module")
def labels(target, tokenizer, tmp_path_factory):
    """Greedy labels of a draft on disk: which tokens are accepted follows from what the head can read."""
    folder = tmp_path_factory.mktemp("pair")
    similar_draft(target, noise=0.25).save_pretrained(folder / "draft")
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    rows = [{"prompt": f"Tell me about the number {i}, please."} for i in range(60)]
    card = LabelsCard.of(target, draft, Decoding(), mixing=0.3, max_new_tokens=24, seed=0)
    label_prompts(target, draft, tokenizer, rows, folder / "labels", card, batch_size=30)
    return folder, card


def trained(labels, output, **changes):
    folder, card = labels
    settings = {"num_train_epochs": 25, "learning_rate": 3e-3, "per_device_train_batch_size": 16, "save_steps": 20}
    arguments = AcceptanceTrainingArguments(
        str(output / "checkpoints"), disable_tqdm=True, save_total_limit=1, **(settings | changes)
    )
    config = AcceptanceHeadConfig(num_layers=1, decoding=card.decoding, target_signature=card.target_signature)
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    return train_head(draft, folder / "labels", output, config, arguments)


def test_a_trained_head_predicts_better_than_the_mean_and_is_saved_calibrated(labels, tmp_path):
    metrics = trained(labels, tmp_path)
    assert metrics["binary_kl"] < 0.9 * metrics["binary_kl_constant"]
    assert metrics["predicted"] == pytest.approx(metrics["acceptance"], abs=1e-3)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert saved["calibration_scale"] != 1.0 and saved["target_signature"] == "llama-2x32-264"
    draft = AutoModelForCausalLM.from_pretrained(labels[0] / "draft")
    assert PeftModel.from_pretrained(draft, tmp_path).active_peft_config.decoding == labels[1].decoding


def test_an_interrupted_training_goes_on_from_its_checkpoint(labels, tmp_path):
    whole = trained(labels, tmp_path / "whole", num_train_epochs=10)
    trained(labels, tmp_path / "cut", num_train_epochs=5, lr_scheduler_type="constant", warmup_steps=0)
    steps = sorted(path.name for path in (tmp_path / "cut" / "checkpoints").iterdir())
    assert steps == ["checkpoint-20"]
    resumed = trained(labels, tmp_path / "cut", num_train_epochs=10)
    assert resumed["labels"] == whole["labels"] and resumed["binary_kl"] > 0


def test_batches_are_padded_on_the_right_and_padding_is_unlabelled():
    batch = collate(
        [{"input_ids": [5, 6, 7], "acceptance": [-1.0, 0.5, 1.0]}, {"input_ids": [8], "acceptance": [0.25]}]
    )
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["acceptance"].tolist() == [[-1.0, 0.5, 1.0], [0.25, -1.0, -1.0]]


def test_calibration_recovers_a_known_distortion():
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(20000, generator=generator) * 2
    config = AcceptanceHeadConfig(rejection_weight=6.0)
    raw = (true_logits - 0.4) / 1.5 - torch.log(torch.tensor(6.0))
    scale, offset = fit_calibration(config, raw, torch.sigmoid(true_logits))
    assert (scale, offset) == (pytest.approx(1.5, abs=1e-3), pytest.approx(0.4, abs=1e-3))


def test_metrics_are_those_of_their_definitions():
    acceptance = torch.tensor([0.0, 1.0, 1.0, 0.5])
    raw = torch.tensor([-1.0, 2.0, 0.5, 0.0])
    metrics = head_metrics(AcceptanceHeadConfig(rejection_weight=1.0), raw, acceptance)
    cross_entropy = F.binary_cross_entropy(torch.sigmoid(raw), acceptance)
    entropy = F.binary_cross_entropy(acceptance, acceptance)
    assert metrics["binary_kl"] == pytest.approx((cross_entropy - entropy).item(), abs=1e-6)
    assert metrics["acceptance"] == 0.625 and metrics["labels"] == 4
