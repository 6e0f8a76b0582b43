"""Prompts from the Hub or from files, and the chat template around them."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import PreTrainedTokenizerBase

FILE_FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


def load_rows(source: str) -> Dataset:
    """The rows of a local JSON, JSONL, Parquet or CSV file, or of `hub/id`, `hub/id:split` or `hub/id:config:split`.

    Raises:
        ValueError: for a file of another format, or a path that does not exist.
    """
    path = Path(source)
    if path.suffix in FILE_FORMATS:
        if not path.exists():
            raise ValueError(
                f"the file {source!r} does not exist: give a JSONL file or the id of a dataset on the Hub"
            )
        return load_dataset(FILE_FORMATS[path.suffix], data_files=source, split="train")
    if path.exists():
        raise ValueError(f"{source!r} is none of {', '.join(FILE_FORMATS)}: give such a file or a dataset on the Hub")
    name, *config, split = source.split(":") if ":" in source else (source, "train")
    return load_dataset(name, *config, split=split)


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


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """`text` as one user's turn, ready for the answer; tokenizers without a chat template get the bare text."""
    if tokenizer.chat_template is None:
        return tokenizer(text)["input_ids"]
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
