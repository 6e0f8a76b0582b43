"""The two long jobs, from prompts to labels and from labels to a head. Both go on where they were interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peft import get_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import get_last_checkpoint

from .acceptance import AcceptanceHeadConfig, acceptance_layer
from .data import prompt_ids, prompt_text
from .decoding import Decoding
from .labels import (
    LabelsCard,
    label_responses,
    open_labels,
    read_labels,
    shard_path,
    write_atomically,
    write_shard,
)
from .responses import generate_responses
from .trainer import AcceptanceTrainer, AcceptanceTrainingArguments, fit_calibration, head_metrics

SEQUENCES_PER_PASS = 8  # bounds the logits in memory: 8 x 200 tokens x 50,000 words are 300 MB in float32


def label_prompts(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    output: Path,
    card: LabelsCard,
    batch_size: int = 64,
    on_batch: Callable[[int, float], None] = lambda n, rate: None,
) -> None:
    """Writes labels for `rows` into the folder `output`, batch by batch, skipping batches that are there.

    Args:
        rows: each with a prompt (see `prompt_text`) and, if the response exists already, its `response_ids`.
        on_batch: called after each batch with its number of rows and the tokens/s so far (0 before any were made).
    """
    decoding = Decoding(**card.decoding)
    eos = target.generation_config.eos_token_id
    eos_token_ids = [] if eos is None else torch.as_tensor(eos).flatten().tolist()
    open_labels(output, card)
    # Prompts of similar length together; the order is a function of the rows alone, so that a later run agrees.
    work = sorted(((prompt_ids(tokenizer, prompt_text(row)), row) for row in rows), key=lambda item: len(item[0]))
    tokens, start = 0, time.perf_counter()
    for number, first in enumerate(range(0, len(work), batch_size)):
        batch = work[first : first + batch_size]
        if not shard_path(output, number).exists():
            prompts = [ids for ids, _ in batch]
            seed = card.seed + number
            given = [row.get("response_ids") for _, row in batch]
            missing = [i for i, response in enumerate(given) if response is None]
            if missing:
                made = generate_responses(
                    target, [prompts[i] for i in missing], decoding, card.max_new_tokens, eos_token_ids, seed
                )
                for i, response in zip(missing, made, strict=True):
                    given[i] = response
            labelled = []
            for piece in range(0, len(batch), SEQUENCES_PER_PASS):
                part = slice(piece, piece + SEQUENCES_PER_PASS)
                labelled += label_responses(
                    target, draft, prompts[part], given[part], decoding, card.mixing, seed * 1000 + piece
                )
            write_shard(output, number, labelled)
            tokens += sum(map(len, given))
        on_batch(len(batch), tokens / (time.perf_counter() - start))


def train_head(
    draft: PreTrainedModel,
    labels: Path,
    output: Path,
    config: AcceptanceHeadConfig,
    arguments: AcceptanceTrainingArguments,
    held_out: float = 0.1,
) -> dict[str, float]:
    """Trains a head on the folder `labels`, calibrates it on a held-out share, and saves it in the folder `output`.

    Returns:
        `head_metrics` on the held-out rows, before (`raw_binary_kl`) and after calibration; also in `metrics.json`.
    """
    rows = read_labels(labels).train_test_split(held_out, seed=0)
    torch.manual_seed(arguments.seed)
    model = get_peft_model(draft, config)
    trainer = AcceptanceTrainer(model, args=arguments, train_dataset=rows["train"], eval_dataset=rows["test"])
    checkpoints = Path(arguments.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints) if checkpoints.exists() else None)

    predicted = trainer.predict(rows["test"])
    acceptance = torch.from_numpy(predicted.label_ids)
    labelled = acceptance >= 0
    raw_logits, acceptance = torch.from_numpy(predicted.predictions)[labelled], acceptance[labelled]
    head = acceptance_layer(model).head_configs["default"]
    before = head_metrics(head, raw_logits, acceptance)["binary_kl"]
    head.calibration_scale, head.calibration_offset = fit_calibration(head, raw_logits, acceptance)
    metrics = {"raw_binary_kl": before} | head_metrics(head, raw_logits, acceptance)
    model.save_pretrained(output)
    write_atomically(output / "metrics.json", json.dumps(metrics, indent=2))
    return metrics
