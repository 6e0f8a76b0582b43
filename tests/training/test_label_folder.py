import json
import resource

import pytest
from datasets import load_dataset
from models import similar_draft

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.training import label_folder
from hf_specdecpp.training.label_folder import LabelsCard, open_labels, read_card, read_labels, shard_path, write_shard
from hf_specdecpp.training.labels import Rows


@pytest.fixture
def card(target):
    draft = similar_draft(target)
    return LabelsCard.of(
        target, draft, Decoding(), {"greedy": Decoding()}, Rows(), states=["before"], max_new_tokens=8, batch_size=2,
        seed=0, prompts=3, prompts_sha256="0",
    )  # fmt: skip


def row(n):
    numbers = [0.5] * n
    return {
        "prompt_ids": [1, 2], "response_ids": list(range(n)), "entropy": numbers, "greedy_drawn": list(range(n)),
        "greedy_acceptance": numbers, "greedy_probability": numbers, "greedy_overlap": numbers,
        "greedy_before": [0.25] * 4 * n,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path, card):
    open_labels(tmp_path, card)
    write_shard(tmp_path, 0, [row(1), row(2)], card)
    write_shard(tmp_path, 1, [row(3)], card)
    return tmp_path


def test_rows_come_back_in_order_and_the_card_tells_how_they_were_made(folder, card):
    found = read_labels(folder)
    assert found.to_list() == [row(1), row(2), row(3)]
    assert found.features == card.features() and found.features["greedy_before"].feature.dtype == "float16"
    assert read_card(folder) == card and read_card(folder).rows == Rows()
    assert card.target_signature in (folder / "README.md").read_text()


def test_the_folder_is_a_dataset_for_everybody(folder, tmp_path):
    found = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert found["response_ids"] == [[0], [0, 1], [0, 1, 2]]


def test_a_folder_of_other_labels_is_not_written_into(folder, card):
    fields = json.loads((folder / "labels.json").read_text())
    with pytest.raises(ValueError, match=r"another batch_size .* seed .*: go on as it was begun, or choose another"):
        open_labels(folder, LabelsCard(**fields | {"seed": 1, "batch_size": 9}))


def test_labels_that_are_not_complete_or_damaged_are_refused(folder, card, tmp_path):
    path = shard_path(folder, 1)
    path.write_bytes(path.read_bytes()[:100])
    assert label_folder.is_written(folder, 0, card) and not label_folder.is_written(folder, 1, card)
    with pytest.raises(ValueError, match=r"labels-00001.arrow' is damaged: run `specdecpp label` again"):
        read_labels(folder)
    path.unlink()
    with pytest.raises(ValueError, match="lacks batch 2 of 2: run `specdecpp label` to its end"):
        read_labels(folder)
    write_shard(folder, 0, [row(1)], card)  # one of two
    assert not label_folder.is_written(folder, 0, card)
    with pytest.raises(ValueError, match=r"labels-00000.arrow' is damaged"):
        read_labels(folder)
    (folder / "labels.json").write_text(json.dumps({"target": "of long ago"}))
    with pytest.raises(ValueError, match="damaged or of another version"):
        read_labels(folder)
    with pytest.raises(ValueError, match=r"holds no labels.json"):
        read_labels(tmp_path / "nowhere")


def test_a_full_disk_gets_one_sentence_and_leaves_no_rest(folder, card):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ValueError, match="is full: free some space and run the same command again"):
            write_shard(folder, 0, [row(5000), row(5000)], card)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(folder.glob(".partial-*")) and read_labels(folder).to_list()[0] == row(1)


def test_what_a_killed_writer_left_goes(folder, card):
    (folder / ".partial-killed").mkdir()
    (folder / ".partial-killed" / "labels-00001.arrow").write_bytes(b"half")
    open_labels(folder, card)
    assert not list(folder.glob(".partial-*")) and len(read_labels(folder)) == 3
