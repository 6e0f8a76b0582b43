"""A folder of labels: Arrow files, one a batch, that are memory-mapped, and a card of how they were made.

Each file is there whole or not at all, so a killed run goes on where it stopped. The folder is a dataset that
`datasets.load_dataset` reads and a Hub repository can hold.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, Sequence, Value, concatenate_datasets
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedModel

from ..acceptance import model_signature
from ..decoding import Decoding
from ..evidence.files import atomically, drop_partial, keep_settings, write_atomically
from .labels import Rows


@dataclass(frozen=True)
class LabelsCard:
    """How a folder of labels was made, stored as its `labels.json`.

    Args:
        target (`str`), draft (`str`): names or paths of the pair.
        target_signature (`str`), draft_signature (`str`): see `model_signature`.
        responses (`dict`): how the responses were decoded, the fields of `Decoding`.
        decodings (`dict[str, dict]`): the modes that were labelled, by name, likewise.
        procedure (`str`), mixing (`float`): see `Rows`.
        states (`list[str]`): hidden states of the draft that are stored, of `"before"` and `"after"` each token.
        max_new_tokens (`int`): most tokens of a response that is generated.
        batch_size (`int`): responses generated at once, which are the rows of a file.
        seed (`int`): of responses, drawn tokens and mixing.
        prompts (`int`): their number.
        prompts_sha256 (`str`): of the prompts' tokens and of the responses that came with them.
    """

    target: str
    draft: str
    target_signature: str
    draft_signature: str
    responses: dict
    decodings: dict[str, dict]
    procedure: str
    mixing: float
    states: list[str]
    max_new_tokens: int
    batch_size: int
    seed: int
    prompts: int
    prompts_sha256: str

    @classmethod
    def of(
        cls,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        responses: Decoding,
        decodings: dict[str, Decoding],
        rows: Rows,
        **settings,
    ) -> LabelsCard:
        return cls(
            target=target.config._name_or_path,
            draft=draft.config._name_or_path,
            target_signature=model_signature(target.config),
            draft_signature=model_signature(draft.config),
            responses=asdict(responses),
            decodings={name: asdict(decoding) for name, decoding in decodings.items()},
            **asdict(rows),
            **settings,
        )

    @property
    def rows(self) -> Rows:
        return Rows(self.procedure, self.mixing)

    @property
    def batches(self) -> int:
        return -(-self.prompts // self.batch_size)

    def features(self) -> Features:
        """The columns of the dataset; see `label_responses`. Hidden states are flat, `tokens x hidden_size`."""
        columns = {"prompt_ids": "int32", "response_ids": "int32", "entropy": "float32"}
        for name in self.decodings:
            columns |= {f"{name}_drawn": "int32"}
            columns |= {f"{name}_{kind}": "float32" for kind in ("acceptance", "probability", "overlap")}
            columns |= {f"{name}_mixed": "bool"} if self.procedure == "specdec++" else {}
            columns |= {f"{name}_{state}": "float16" for state in self.states}
        return Features({name: Sequence(Value(dtype)) for name, dtype in columns.items()})


def open_labels(folder: Path, card: LabelsCard) -> None:
    """Makes `folder` ready for labels of `card`, new or begun.

    Raises:
        ValueError: if the folder holds labels that were made otherwise.
    """
    keep_settings(folder / "labels.json", asdict(card), f"{str(folder)!r} holds labels made")
    drop_partial(folder)
    write_atomically(folder / "README.md", dataset_card(card))


def read_card(folder: Path) -> LabelsCard:
    """The card of a folder of labels.

    Raises:
        ValueError: if the folder has none, or one of another version.
    """
    path = folder / "labels.json"
    if not path.exists():
        raise ValueError(f"{str(folder)!r} holds no labels.json: make the labels with `specdecpp label`")
    try:
        return LabelsCard(**json.loads(path.read_text()))
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged or of another version ({error}): make the labels again in another folder"
        ) from error


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"labels-{number:05}.arrow"


def read_shard(folder: Path, number: int, card: LabelsCard) -> Dataset:
    """One batch, memory-mapped.

    Raises:
        ValueError: if it is not there, or not whole.
    """
    path = shard_path(folder, number)
    if not path.exists():
        raise ValueError(
            f"{str(folder)!r} lacks batch {number + 1} of {card.batches}: run `specdecpp label` to its end"
        )
    try:
        rows = Dataset.from_file(str(path))
    except (pa.ArrowInvalid, OSError):
        rows = []
    if len(rows) != min(card.batch_size, card.prompts - number * card.batch_size):
        raise ValueError(f"{str(path)!r} is damaged: run `specdecpp label` again, it is then made anew")
    return rows


def is_written(folder: Path, number: int, card: LabelsCard) -> bool:
    """Whether a batch is there; a damaged one counts as missing."""
    try:
        read_shard(folder, number, card)
    except ValueError:
        return False
    return True


def write_shard(folder: Path, number: int, rows: list[dict], card: LabelsCard) -> None:
    """Writes one batch of rows; it is there whole or not at all.

    Raises:
        ValueError: if the disk is full.
    """
    path = shard_path(folder, number)
    with atomically(path) as partial, ArrowWriter(path=str(partial), features=card.features()) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()


def read_labels(folder: Path) -> Dataset:
    """All rows of a folder of labels, memory-mapped.

    Raises:
        ValueError: if the labels are not complete, or a file is damaged.
    """
    card = read_card(folder)
    return concatenate_datasets([read_shard(folder, number, card) for number in range(card.batches)])


def dataset_card(card: LabelsCard) -> str:
    """The README of a folder of labels, with the front matter by which `load_dataset` finds the files."""
    how = "\n".join(f"| {name} | `{json.dumps(value)}` |" for name, value in asdict(card).items())
    return f"""\
---
configs:
- config_name: default
  data_files: labels-*.arrow
tags:
- speculative-decoding
- specdec++
---

# Labels for an acceptance head

What `{card.target}` says of the tokens of `{card.draft}` at every position of its own responses, made by
`specdecpp label`. Columns: token ids of prompt and response, and for each decoding mode the drawn tokens, their
acceptance, their probability under the draft, and the overlap of the two distributions.

| setting | value |
| --- | --- |
{how}
"""
