import pytest
import torch
from datasets import Dataset
from models import similar_draft
from peft import PeftModel

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.acceptance import acceptance_layer
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.hub.data import fingerprint, tokenized_prompts
from hf_specdecpp.training.head_quality import judged_tokens, quality
from hf_specdecpp.training.judging import calibration_tokens, head_predictions, judge, judged_rows, predictor_table
from hf_specdecpp.training.label_folder import LabelsCard
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.pipeline import label_prompts, shares, train_head
from hf_specdecpp.training.trainer import AcceptanceTrainingArguments

MODES = {"greedy": Decoding(), "sampling": Decoding(True, top_k=20)}


@pytest.fixture(scope="module")
def made(target, tokenizer, tmp_path_factory):
    """Labels to train on, the same of other prompts with and without states, a head, and its metrics."""
    folder = tmp_path_factory.mktemp("judging")
    for name, numbers, states in (
        ("train", range(60), ["before"]),
        ("stored", range(60, 90), ["before"]),
        ("test", range(60, 90), []),
    ):
        rows = tokenized_prompts(tokenizer, Dataset.from_dict({"prompt": [f"{i} + {i * i}?" for i in numbers]}))
        draft = similar_draft(target, noise=0.25)
        card = LabelsCard.of(
            target, draft, Decoding(True), MODES, Rows(), states=states, max_new_tokens=24, batch_size=30, seed=0,
            prompts=len(rows), prompts_sha256=fingerprint(rows),
        )  # fmt: skip
        label_prompts(target, draft, rows, folder / name, card)
    config = AcceptanceHeadConfig(
        num_layers=1, reads="before", features=["probability"], decoding=MODES["sampling"].__dict__
    )
    arguments = AcceptanceTrainingArguments(
        str(folder / "checkpoints"), num_train_epochs=12, learning_rate=3e-3, per_device_train_batch_size=8,
        disable_tqdm=True,
    )  # fmt: skip
    return folder, train_head(draft, folder / "train", folder / "head", config, arguments)


def test_a_saved_head_predicts_what_it_predicted_when_it_was_trained(made, target):
    folder, metrics = made
    config = AcceptanceHeadConfig.from_pretrained(folder / "head")
    rows, inputs = judged_rows(folder / "train", config)
    test = shares(rows)[2]
    model = PeftModel.from_pretrained(similar_draft(target, noise=0.25), folder / "head")
    found = quality(head_predictions(model, test, inputs), judged_tokens(test, inputs))
    for name in ("binary_kl", "roc_auc", "expected_calibration_error", "predicted", "acceptance", "labels"):
        assert found[name] == pytest.approx(metrics[name], rel=1e-4), name


def test_the_head_is_judged_beside_predictors_without_one_on_the_same_tokens(made, target):
    folder, _ = made
    draft = similar_draft(target, noise=0.25)
    found = judge(draft, folder / "head", folder / "test", folder / "train")
    assert list(found) == ["head", "constant", "probability", "fitted probability", "fitted entropy"]
    assert len({(metrics["labels"], metrics["acceptance"]) for metrics in found.values()}) == 1
    assert found["constant"]["binary_kl"] == found["head"]["binary_kl_constant"]
    assert found["fitted probability"]["binary_kl"] < found["probability"]["binary_kl"]
    assert found["fitted probability"]["roc_auc"] == pytest.approx(found["probability"]["roc_auc"], abs=1e-3)
    assert found["constant"]["roc_auc"] == 0.5
    with pytest.raises(ValueError, match="has no acceptance head"):
        acceptance_layer(draft)
    stored = judge(draft, folder / "head", folder / "stored", folder / "train")
    assert stored["head"]["binary_kl"] == pytest.approx(found["head"]["binary_kl"], rel=1e-2)


def test_the_labels_that_calibrate_are_neither_trained_nor_judged_on(made):
    folder, _ = made
    config = AcceptanceHeadConfig.from_pretrained(folder / "head")
    rows, inputs = judged_rows(folder / "train", config)
    parts = [{tuple(row["prompt_ids"]) for row in part} for part in shares(rows)]
    assert [len(part) for part in parts] == [48, 6, 6] and len(set.union(*parts)) == 60
    dev = judged_tokens(shares(rows)[1], inputs)
    assert torch.equal(calibration_tokens(folder / "train", config).acceptance, dev.acceptance)


def test_a_table_shows_the_lead_of_the_head():
    head = {"labels": 1234, "acceptance": 0.5, "binary_kl": 0.5, "roc_auc": 0.8, "expected_calibration_error": 0.01}
    head |= {"brier_score": 0.2}
    lines = predictor_table({"head": head, "constant": head | {"binary_kl": 0.6, "roc_auc": None}}).splitlines()
    assert lines[0].startswith("1,234 tokens, mean acceptance 0.500")
    assert lines[-2:] == [
        "| head | 0.5000 | 0.8000 | 0.0100 | 0.2000 |",
        "| constant | 0.6000 (+0.1000) |  | 0.0100 (+0.0000) | 0.2000 (+0.0000) |",
    ]
