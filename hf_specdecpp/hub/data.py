"""Prompts from the Hub or from files, and the chat template around them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from datasets import Dataset, Features, Sequence, Value, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

FILE_FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


def load_rows(source: str) -> Dataset:
    """The rows of a local JSON, JSONL, Parquet or CSV file, or of `hub/id`, `hub/id:split` or `hub/id:config:split`.

    A split may be a slice, such as `train[:1000]`.

    Raises:
        ValueError: for a file of another format or without rows, or if there is no such file or dataset.
    """
    path = Path(source)
    if path.suffix in FILE_FORMATS:
        if not path.exists():
            raise ValueError(
                f"the file {source!r} does not exist: give a JSONL file or the id of a dataset on the Hub"
            )
        try:
            return load_dataset(FILE_FORMATS[path.suffix], data_files=source, split="train")
        except DatasetGenerationError as error:
            reason = error.__cause__ or error
            raise ValueError(f"the file {source!r} is damaged or no {path.suffix} of rows: {reason}") from error
    if path.exists():
        raise ValueError(f"{source!r} is none of {', '.join(FILE_FORMATS)}: give such a file or a dataset on the Hub")
    name, *config, split = re.split(r":(?![^\[]*\])", source) if ":" in source else (source, "train")
    try:
        return load_dataset(name, *config, split=split)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no dataset could be loaded from {source!r}: give the id of one on a Hub that this machine reaches, or a "
            f"local file ({error})"
        ) from error


def prompt_text(row: dict) -> str:
    """The user's words in a row of Alpaca, Dolly (`instruction`, `input` or `context`), GSM8K or HumanEval.

    Raises:
        ValueError: for a row without such fields.
    """
    for field in ("prompt", "question", "instruction"):
        if row.get(field):
            context = row.get("input") or row.get("context") if field == "instruction" else None
            return f"{row[field]}\n\n{context}" if context else row[field]
    raise ValueError(f"no prompt in a row with the fields {sorted(row)}: name it prompt, question or instruction")


def prompt_digest(text: str) -> str:
    """Sixteen hexadecimal digits by which a list can name a prompt without holding its text."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]


def listed(rows: Dataset, path: Path) -> Dataset:
    """Those of `rows` whose prompt is in the list `path`, one `prompt_digest` a line.

    Raises:
        ValueError: if none is.
    """
    digests = set(path.read_text().split())
    kept = rows.filter(lambda row: prompt_digest(prompt_text(row)) in digests)
    if not len(kept):
        raise ValueError(
            f"none of {len(rows)} prompts is in {str(path)!r}: give the prompts that the list was made of"
        )
    return kept


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """`text` as one user's turn, ready for the answer; tokenizers without a chat template get the bare text."""
    if tokenizer.chat_template is None:
        return tokenizer(text)["input_ids"]
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def tokenized_prompts(tokenizer: PreTrainedTokenizerBase, *sources: Dataset) -> Dataset:
    """The prompts of `sources` in the order of their length, the shortest first.

    Their tokens stay on disk; in memory there is a number for each.

    Returns:
        A `Dataset` of `prompt_ids`, `response_ids` (`None` where the row has no response yet), and `length`, the
        number of both.

    Raises:
        ValueError: for a row without a prompt or with an empty response.
    """
    ids = Sequence(Value("int32"))
    features = Features({"prompt_ids": ids, "response_ids": ids, "length": Value("int32")})

    def tokenized(row: dict, number: int) -> dict:
        prompt, response = prompt_ids(tokenizer, prompt_text(row)), row.get("response_ids")
        if response is not None and not len(response):
            raise ValueError(f"row {number} has an empty response: leave the row out, or its response_ids")
        return {"prompt_ids": prompt, "response_ids": response, "length": len(prompt) + len(response or [])}

    parts = [
        source.map(tokenized, with_indices=True, remove_columns=source.column_names, features=features)
        for source in sources
    ]
    prompts = concatenate_datasets(parts)
    return prompts.select(lengths(prompts).argsort(stable=True))


def lengths(prompts: Dataset) -> Tensor:
    """Of `tokenized_prompts`, with their responses, (n,)."""
    return prompts.with_format("torch", columns=["length"])["length"][:]


def fingerprint(prompts: Dataset) -> str:
    """SHA-256 of the tokens of `prompts`, in hexadecimal."""
    digest = hashlib.sha256()
    for row in prompts:
        digest.update(repr((row["prompt_ids"], row["response_ids"])).encode())
    return digest.hexdigest()
