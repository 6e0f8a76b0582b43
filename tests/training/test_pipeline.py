"""The two long jobs: killed, sharded, and fed with what they cannot use."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from models import LABELLED_MODES as MODES
from models import card_of, prompts, similar_draft
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.acceptance import model_signature
from hf_specdecpp.training.label_folder import read_labels, shard_path
from hf_specdecpp.training.pipeline import label_prompts, newest_whole_checkpoint, train_head
from hf_specdecpp.training.trainer import AcceptanceTrainer, AcceptanceTrainingArguments


@pytest.fixture
def pair(target):
    return target, similar_draft(target)


def test_labels_hold_every_prompt_once_the_shortest_first(pair, tokenizer, tmp_path):
    rows, heard = prompts(tokenizer), []
    label_prompts(*pair, rows, tmp_path, card_of(pair, rows), on_batch=lambda n, rate: heard.append((n, rate > 0)))
    found = read_labels(tmp_path)
    assert found["prompt_ids"] == rows["prompt_ids"] and heard == [(4, True), (4, True), (2, True)]
    lengths = [len(ids) for ids in found["prompt_ids"]]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_given_responses_are_kept_and_others_are_asked_for(pair, tokenizer, tmp_path):
    rows = prompts(tokenizer, 2, response_ids=[[20, 21, 22], None])
    asked = []

    def respond(ids, seed):
        asked.append((ids, seed))
        return [[30, 31]]

    label_prompts(*pair, rows, tmp_path, card_of(pair, rows, seed=5), respond)
    assert sorted(read_labels(tmp_path)["response_ids"]) == [[20, 21, 22], [30, 31]]
    assert asked == [([rows["prompt_ids"][rows["response_ids"].index(None)]], 5)]


TESTS = str(Path(__file__).parents[1])
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from models import byte_tokenizer, card_of, prompts, similar_draft, tiny_model
from accelerate import PartialState
from hf_specdecpp.training import pipeline

target = tiny_model()
pair = target, similar_draft(target)
rows = prompts(byte_tokenizer(), 48)
made, output = [], Path(sys.argv[1])
write = pipeline.write_shard
pipeline.write_shard = lambda *args: made.append(write(*args))
pipeline.label_prompts(*pair, rows, output, card_of(pair, rows, states=["before"], batch_size=2))
(output / f"by-{{PartialState().process_index}}").write_text(str(len(made)))
pipeline.leave_processes()
"""


def script(tmp_path):
    path = tmp_path / "label.py"
    path.write_text(SCRIPT.format(tests=TESTS))
    return path


def shards(folder):
    return {path.name: path.read_bytes() for path in folder.glob("labels-*.arrow")}


@pytest.mark.slow
def test_a_run_killed_in_the_middle_ends_in_the_same_dataset_bit_for_bit(tmp_path):
    command = [sys.executable, str(script(tmp_path))]
    running = subprocess.Popen([*command, str(tmp_path / "killed")])
    while len(shards(tmp_path / "killed")) < 3:
        assert running.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = shards(tmp_path / "killed")
    assert 3 <= len(kept) < 24
    times = {name: (tmp_path / "killed" / name).stat().st_mtime_ns for name in kept}
    subprocess.run([*command, str(tmp_path / "killed")], check=True)
    assert all((tmp_path / "killed" / name).stat().st_mtime_ns == t for name, t in times.items())
    subprocess.run([*command, str(tmp_path / "whole")], check=True)
    assert shards(tmp_path / "killed") == shards(tmp_path / "whole") and len(shards(tmp_path / "whole")) == 24


@pytest.mark.slow
def test_two_processes_make_the_labels_of_one(tmp_path):
    in_two_processes(script(tmp_path), tmp_path / "two")
    subprocess.run([sys.executable, str(script(tmp_path)), str(tmp_path / "one")], check=True)
    assert shards(tmp_path / "two") == shards(tmp_path / "one")
    assert {(tmp_path / "two" / f"by-{i}").read_text() for i in range(2)} == {"12"}


def in_two_processes(*command):
    """What `accelerate launch` does on machines without a GPU, where it leaves the processes to another launcher."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    subprocess.run([*launch, *map(str, command)], check=True, env=environment, capture_output=True)


def test_a_damaged_batch_is_made_anew(pair, tokenizer, tmp_path):
    rows = prompts(tokenizer)
    label_prompts(*pair, rows, tmp_path, card_of(pair, rows))
    whole = shards(tmp_path)
    shard_path(tmp_path, 1).write_bytes(b"half a file")
    label_prompts(*pair, rows, tmp_path, card_of(pair, rows))
    assert shards(tmp_path) == whole


def test_other_prompts_do_not_go_on_with_a_folder(pair, tokenizer, tmp_path):
    rows = prompts(tokenizer)
    label_prompts(*pair, rows, tmp_path, card_of(pair, rows))
    others = prompts(tokenizer, 11)
    with pytest.raises(ValueError, match="labels made with another prompts \\("):
        label_prompts(*pair, others, tmp_path, card_of(pair, others))


def test_what_cannot_be_labelled_is_refused_before_any_work(pair, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"row 1 has an empty response: leave the row out"):
        prompts(tokenizer, 2, response_ids=[[20], []])
    rows = prompts(tokenizer, 2)
    with pytest.raises(ValueError, match=r"may grow by 600, but the models have a context of 512"):
        label_prompts(*pair, rows, tmp_path, card_of(pair, rows, max_new_tokens=600))
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def labels(target, tokenizer, tmp_path_factory):
    """Labels of a draft on disk, with and without its hidden states."""
    folder = tmp_path_factory.mktemp("pair")
    similar_draft(target, noise=0.25).save_pretrained(folder / "draft")
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    rows = prompts(tokenizer, 60)
    for name, states in (("labels", []), ("stored", ["before", "after"])):
        card = card_of((target, draft), rows, states=states, max_new_tokens=24, batch_size=30)
        label_prompts(target, draft, rows, folder / name, card)
    return folder


def trained(labels, output, name="stored", **changes):
    config = {"num_layers": 1, "reads": "before", "features": ["probability"], "decoding": MODES["greedy"].__dict__}
    config |= {key: changes.pop(key) for key in list(changes) if key in ("reads", "features", "decoding")}
    options = {key: changes.pop(key) for key in list(changes) if key in ("label", "patience")}
    settings = {"num_train_epochs": 12, "learning_rate": 3e-3, "per_device_train_batch_size": 16}
    arguments = AcceptanceTrainingArguments(str(output / "checkpoints"), disable_tqdm=True, **(settings | changes))
    draft = AutoModelForCausalLM.from_pretrained(labels / "draft")
    return train_head(draft, labels / name, output, AcceptanceHeadConfig(**config), arguments, **options)


SCALARS = ("raw_binary_kl", "binary_kl", "roc_auc", "predicted", "labels")


@pytest.fixture(scope="module")
def whole(labels, tmp_path_factory):
    """A head that was trained in one go, and its metrics."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, trained(labels, folder)


def test_a_trained_head_predicts_better_than_the_mean_and_is_saved_calibrated(labels, whole):
    folder, metrics = whole
    assert metrics["binary_kl"] < 0.98 * metrics["binary_kl_constant"] and metrics["roc_auc"] > 0.6
    assert metrics["predicted"] == pytest.approx(metrics["acceptance"], abs=0.1)
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert (folder / "reliability.png").read_bytes()[:4] == b"\x89PNG"
    assert not (folder / "README.md").exists()  # PEFT's, an empty form
    saved = json.loads((folder / "adapter_config.json").read_text())
    assert saved["calibration_scale"] != 1.0 and (saved["reads"], saved["features"]) == ("before", ["probability"])
    draft = AutoModelForCausalLM.from_pretrained(labels / "draft")
    trained = PeftModel.from_pretrained(draft, folder).active_peft_config
    assert trained.features == ["probability"]
    assert trained.target_signature == trained.draft_signature == model_signature(draft.config)  # the labels' pair


@pytest.mark.slow
@pytest.mark.parametrize("reads", ("before", "after"))
def test_stored_states_train_the_same_head_as_the_draft_itself(labels, tmp_path, reads):
    for mode in MODES.values():
        by_draft, by_store = (
            trained(labels, tmp_path / name / str(mode), name, reads=reads, decoding=mode.__dict__, num_train_epochs=3)
            for name in ("labels", "stored")
        )
        assert by_draft["binary_kl"] == pytest.approx(by_store["binary_kl"], rel=1e-2)
        assert by_draft["labels"] == by_store["labels"] and by_draft != by_store


def test_an_interrupted_training_goes_on_and_ends_in_the_same_head(labels, whole, tmp_path, monkeypatch):
    (_, whole), counts = whole, []
    step = AcceptanceTrainer.training_step

    def interrupted(self, *args, **kwargs):
        counts.append(1)
        if len(counts) == 17:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(AcceptanceTrainer, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(labels, tmp_path / "cut")
    resumed = trained(labels, tmp_path / "cut")
    assert {k: resumed[k] for k in SCALARS} == pytest.approx({k: whole[k] for k in SCALARS})
    assert len(counts) < 2 * 12 * 3


def test_a_checkpoint_that_was_being_written_is_passed_over(labels, tmp_path):
    """A process killed while it saves leaves the newest folder without some of its files, or with half of one."""
    whole = trained(labels, tmp_path / "cut", num_train_epochs=4)
    checkpoints = tmp_path / "cut" / "checkpoints"
    last = Path(newest_whole_checkpoint(checkpoints))
    for number, name in ((91, "adapter_model.safetensors"), (100, "trainer_state.json")):
        half = shutil.copytree(last, checkpoints / f"checkpoint-{number}")
        (half / name).write_bytes((half / name).read_bytes()[:100])
    (checkpoints / "checkpoint-1000").mkdir()
    assert newest_whole_checkpoint(checkpoints) == str(last)
    assert newest_whole_checkpoint(tmp_path / "nowhere") is None
    assert trained(labels, tmp_path / "cut", num_train_epochs=4)["binary_kl"] == pytest.approx(whole["binary_kl"])


def test_training_stops_early_when_nothing_gets_better(labels, tmp_path):
    trained(labels, tmp_path, num_train_epochs=40, learning_rate=0.05, patience=2)
    last = max((tmp_path / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    state = json.loads((last / "trainer_state.json").read_text())
    assert state["epoch"] < 40 and state["best_global_step"] <= state["global_step"]


def test_a_folder_that_holds_another_training_is_refused_and_left_alone(labels, tmp_path):
    trained(labels, tmp_path, num_train_epochs=1)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("adapter_*")}
    with pytest.raises(ValueError, match=r"holds a head trained with another learning_rate \(0.003 there, 0.002"):
        trained(labels, tmp_path, num_train_epochs=1, learning_rate=0.002)
    assert before == {path.name: path.read_bytes() for path in tmp_path.glob("adapter_*")}
    trained(labels, tmp_path, num_train_epochs=1)


def test_labels_of_another_mode_or_too_few_are_refused(labels, pair, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"but the head is for .*'temperature': 0.5.*: label that mode too"):
        trained(labels, tmp_path, decoding={"do_sample": True, "temperature": 0.5})
    rows = prompts(tokenizer, 2)
    label_prompts(*pair, rows, tmp_path / "few", card_of(pair, rows))
    with pytest.raises(ValueError, match="holds 2 responses: label at least 10"):
        train_head(
            pair[1], tmp_path / "few", tmp_path, AcceptanceHeadConfig(), AcceptanceTrainingArguments(str(tmp_path))
        )


GRADIENTS = """
import sys
sys.path.insert(0, {tests!r})
import torch
from pathlib import Path
from peft import get_peft_model
from transformers import AutoModelForCausalLM
from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.acceptance import model_signature
from hf_specdecpp.training.head_inputs import HeadInputs
from hf_specdecpp.training.label_folder import read_labels
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.pipeline import leave_processes
from hf_specdecpp.training.trainer import AcceptanceTrainer, AcceptanceTrainingArguments

labels, output, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
draft = AutoModelForCausalLM.from_pretrained(labels.parent / "draft")
model = get_peft_model(draft, AcceptanceHeadConfig(num_layers=1, reads="before", features=["entropy"]))
arguments = AcceptanceTrainingArguments(
    str(output), max_steps=3, per_device_train_batch_size=batch, eval_strategy="no", save_strategy="no",
    load_best_model_at_end=False, disable_tqdm=True, optim="sgd", learning_rate=0.5, warmup_steps=0, use_cpu=True,
    max_grad_norm=0.0, train_sampling_strategy="sequential",
)
inputs = HeadInputs("sampling", Rows(), "before", ["entropy"], stored=True)
rows = read_labels(labels).with_format("numpy")
trainer = AcceptanceTrainer(model, inputs, args=arguments, train_dataset=rows)
trainer.train()
if trainer.is_world_process_zero():
    model.save_pretrained(output)
    (output / "processes").write_text(str(trainer.args.world_size))
leave_processes()
"""


@pytest.mark.slow
def test_two_processes_make_the_gradients_of_one(labels, tmp_path):
    """Three steps of plain gradient descent: the weights agree although each process had half of every batch."""
    path = tmp_path / "gradients.py"
    path.write_text(GRADIENTS.format(tests=TESTS))
    in_two_processes(path, labels / "stored", tmp_path / "two", 8)
    subprocess.run([sys.executable, str(path), str(labels / "stored"), str(tmp_path / "one"), "16"], check=True)
    one, two = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and (tmp_path / "two" / "processes").read_text() == "2"
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-5, rtol=1e-4)
