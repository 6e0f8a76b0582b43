"""Labels for the acceptance head: what the target says of the draft's tokens at every position of its own responses.

One teacher-forced pass of each model over a batch of responses. The dataset is a folder of Parquet files, one a batch,
each written atomically, beside `labels.json`, which tells how they were made; a killed run goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from datasets import Dataset, load_dataset
from torch import Tensor
from transformers import PreTrainedModel

from .acceptance import model_signature
from .decoding import Decoding

UNLABELLED = -1.0  # in the column `acceptance`, at prompt tokens and where the input is not the draft's own token


@dataclass(frozen=True)
class LabelsCard:
    """How a dataset of labels was made, stored as its `labels.json`.

    Args:
        target (`str`), draft (`str`): names or paths of the pair.
        target_signature (`str`), draft_signature (`str`): see `model_signature`.
        decoding (`dict`): the fields of `Decoding`.
        mixing (`float`): probability that an input token is the target's instead of the draft's, `r` in the paper.
        max_new_tokens (`int`): length of the longest response.
        seed (`int`): of responses, drawn tokens and mixing.
    """

    target: str
    draft: str
    target_signature: str
    draft_signature: str
    decoding: dict
    mixing: float
    max_new_tokens: int
    seed: int

    @classmethod
    def of(cls, target: PreTrainedModel, draft: PreTrainedModel, decoding: Decoding, **settings) -> LabelsCard:
        return cls(
            target=target.config._name_or_path,
            draft=draft.config._name_or_path,
            target_signature=model_signature(target.config),
            draft_signature=model_signature(draft.config),
            decoding=asdict(decoding),
            **settings,
        )


def acceptance(target_logits: Tensor, draft_logits: Tensor, drawn: Tensor, decoding: Decoding) -> Tensor:
    """The probability that the target accepts each drawn token (arXiv 2405.19715, section 3.2: `min(1, p / q)`).

    Under greedy decoding it is the indicator that the target's most likely token is the drawn one. When sampling, `p`
    and `q` are the warped distributions that the run will draw from (the authors' code leaves them unwarped).

    Args:
        target_logits, draft_logits (`torch.FloatTensor` of shape `(n, vocab_size)`): unprocessed.
        drawn (`torch.LongTensor` of shape `(n,)`): tokens drawn from the draft.

    Returns:
        `torch.FloatTensor` of shape `(n,)`, in [0, 1].
    """
    if not decoding.do_sample:
        return (target_logits.argmax(-1) == drawn).float()
    index = drawn[:, None]
    log_p = decoding.processed(target_logits).log_softmax(-1).gather(-1, index)
    log_q = decoding.processed(draft_logits).log_softmax(-1).gather(-1, index)
    return (log_p - log_q).clamp(max=0).exp().squeeze(-1)


@torch.inference_mode()
def label_responses(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: list[list[int]],
    responses: list[list[int]],
    decoding: Decoding,
    mixing: float,
    seed: int,
) -> list[dict]:
    """Rows for the head, by the paper's procedure (section 3.2), for one batch.

    At position i of the target's response X, `Y_i` is drawn from the draft after `x_<i`. The row's input has `X_i`
    with probability `mixing`, else `Y_i`, and a label where its token is `Y_i`.

    Returns:
        One `dict` a response: `input_ids` and `acceptance`, two lists of the length of prompt and response.
    """
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.tensor(p + r) for p, r in zip(prompts, responses, strict=True)]
    # Padding on the right: earlier positions of a causal model never see it.
    input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    first = min(map(len, prompts))
    logits = [predictions(m, input_ids, first) for m in (target, draft)]
    vocab_size = min(each.shape[-1] for each in logits)  # one tokenizer, padded differently
    rows = []
    for b, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
        answer = slice(len(prompt) - first, len(sequence) - first)
        target_logits, draft_logits = (each[b, answer, :vocab_size].float().cpu() for each in logits)
        drawn = decoding.draw(draft_logits, generator)
        accepted = acceptance(target_logits, draft_logits, drawn, decoding)
        own = torch.rand(drawn.shape, generator=generator) >= mixing
        mixed = torch.where(own, drawn, sequence[len(prompt) :])
        labels = torch.where(mixed == drawn, accepted, UNLABELLED)
        unlabelled = [UNLABELLED] * len(prompt)
        rows.append({"input_ids": prompt + mixed.tolist(), "acceptance": unlabelled + labels.tolist()})
    return rows


def predictions(model: PreTrainedModel, input_ids: Tensor, first: int) -> Tensor:
    """Logits for the tokens from position `first` on, (batch, length - first, vocab_size)."""
    kept = {"logits_to_keep": input_ids.shape[1] - first + 1} if model._supports_logits_to_keep() else {}
    return model(input_ids.to(model.device), **kept).logits[:, -(input_ids.shape[1] - first + 1) : -1]


def open_labels(folder: Path, card: LabelsCard) -> None:
    """Makes `folder` ready for labels of `card`, new or begun.

    Raises:
        ValueError: if the folder holds labels that were made otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "labels.json"
    if path.exists():
        found = read_card(folder)
        if found != card:
            differ = [name for name, value in asdict(card).items() if value != getattr(found, name)]
            raise ValueError(
                f"{str(folder)!r} holds labels made with another {', '.join(differ)}: choose another output folder"
            )
    write_atomically(path, json.dumps(asdict(card), indent=2))


def read_card(folder: Path) -> LabelsCard:
    """The card of a folder of labels.

    Raises:
        ValueError: if the folder has none.
    """
    path = folder / "labels.json"
    if not path.exists():
        raise ValueError(f"{str(folder)!r} holds no labels.json: make the labels with `specdecpp label`")
    return LabelsCard(**json.loads(path.read_text()))


def write_shard(folder: Path, number: int, rows: list[dict]) -> None:
    """Writes one batch of rows; it is there whole or not at all."""
    path = shard_path(folder, number)
    Dataset.from_list(rows).to_parquet(f"{path}.partial")
    os.replace(f"{path}.partial", path)


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"labels-{number:05}.parquet"


def read_labels(folder: Path) -> Dataset:
    """All rows of a folder of labels, memory-mapped."""
    files = sorted(str(path) for path in folder.glob("labels-*.parquet"))
    if not files:
        raise ValueError(f"{str(folder)!r} holds no labels yet: run `specdecpp label` to its end")
    return load_dataset("parquet", data_files=files, split="train")


def write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)
