"""The two long jobs, from prompts to labels and from labels to a head. Both go on where they were interrupted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from datasets import Dataset
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError, safe_open
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)
from transformers.utils import logging

from ..acceptance import AcceptanceHeadConfig, acceptance_layer
from ..decoding import Decoding
from ..drafting.informed.block_config import check_reads
from ..drafting.informed.config import ReadsTarget, layers_read
from ..evidence.files import atomically, keep_settings, write_atomically
from ..hub.data import lengths
from ..metrics.reliability import plot_reliability
from .head_inputs import HeadInputs, add_states
from .head_quality import binary_kl, judged_tokens, quality
from .label_folder import LabelsCard, is_written, open_labels, read_card, read_labels, write_shard
from .labels import label_responses
from .responses import end_of_sequence, generate_responses
from .server import request_responses
from .trainer import AcceptanceTrainer, AcceptanceTrainingArguments, fit_calibration
from .unrolled import label_unrolled

logger = logging.get_logger(__name__)

SEQUENCES_PER_PASS = 8  # bounds the logits in memory: 8 x 200 tokens x 50,000 words are 300 MB in float32

FEW = 100  # responses, with which no head can be good

# Token ids of prompts, and a seed -> token ids of responses.
Respond = Callable[..., list[list[int]]]


def label_prompts(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Dataset,
    output: Path,
    card: LabelsCard,
    respond: Respond | None = None,
    on_batch: Callable[[int, float], None] = lambda n, rate: None,
) -> None:
    """Writes labels into the folder `output`, batch by batch, skipping batches that are there.

    Under `accelerate launch` each process makes its share of the batches, the same as one process would.

    Args:
        prompts (`Dataset`): see `tokenized_prompts`; a row with `response_ids` keeps them.
        respond: takes token ids of prompts and a seed, returns those of responses; left out, `target` generates.
        on_batch: called after each batch with its number of rows and this process's tokens/s (0 before any were made).

    Raises:
        ValueError: if a prompt with its response exceeds the context of a model, if the folder holds other labels, if
            the disk is full, or for labels that a draft which reads the target's states cannot have.
    """
    check_reads(draft.config, card.states)
    check_context(prompts, card, target, draft)
    is_informed = bool(layers_read(draft.config, target.config))
    if is_informed and (card.procedure != "on-policy" or len(card.decodings) > 1 or not card.states):
        raise ValueError(
            "a draft that reads the target's states is labelled on-policy, in one mode, and with states (before or "
            f"after): got {card.rows}, {', '.join(card.decodings)}, states {card.states}"
        )
    process = process_state()
    if process.is_main_process:
        open_labels(output, card)
    process.wait_for_everyone()
    decodings = {name: Decoding.stored(fields) for name, fields in card.decodings.items()}
    respond = respond or generator(target, card)
    tokens, start = 0, time.perf_counter()
    for number in range(card.batches):
        batch = prompts[number * card.batch_size : (number + 1) * card.batch_size]
        if number % process.num_processes == process.process_index and not is_written(output, number, card):
            responses, seed = batch["response_ids"], card.seed + number
            missing = [i for i, response in enumerate(responses) if response is None]
            if missing:
                made = respond([batch["prompt_ids"][i] for i in missing], seed=seed)
                for i, response in zip(missing, made, strict=True):
                    responses[i] = response
            rows = [{}] * len(responses)
            sizes = [len(p) + len(r) for p, r in zip(batch["prompt_ids"], responses, strict=True)]
            by_size = sorted(range(len(rows)), key=sizes.__getitem__)  # the less is padding in a pass
            for first in range(0, len(rows), SEQUENCES_PER_PASS):
                part = by_size[first : first + SEQUENCES_PER_PASS]
                pieces = [[source[i] for i in part] for source in (batch["prompt_ids"], responses)]
                drawn_by = seed * 1000 + first
                if is_informed:
                    [mode] = decodings.items()
                    labelled = label_unrolled(target, draft, *pieces, *mode, card.states, drawn_by)
                else:
                    labelled = label_responses(target, draft, *pieces, decodings, card.rows, drawn_by)
                    for mode in decodings:
                        for reads in card.states:
                            add_states(draft, labelled, HeadInputs(mode, card.rows, reads))
                for i, row in zip(part, labelled, strict=True):
                    rows[i] = row
            write_shard(output, number, rows, card)
            tokens += sum(map(len, responses))
        on_batch(len(batch["prompt_ids"]), tokens / (time.perf_counter() - start))
    process.wait_for_everyone()


def process_state() -> PartialState:
    """This process among those of `accelerate launch`, as an `Accelerator` would see it."""
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))


def leave_processes() -> None:
    """Ends what `accelerate launch` began, when all are done: one that just exits may abort while others work on."""
    state = process_state()
    state.wait_for_everyone()
    state.destroy_process_group()


def generator(target: PreTrainedModel, card: LabelsCard) -> Respond:
    """Responses by `target` itself, as `card` says."""
    eos_token_ids, decoding = end_of_sequence(target), Decoding.stored(card.responses)
    return lambda prompts, seed: generate_responses(
        target, prompts, decoding, card.max_new_tokens, eos_token_ids, seed
    )


def served(
    url: str,
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    target: PreTrainedModel,
    card: LabelsCard,
    key_variable: str | None = None,
) -> Respond:
    """Responses by a server's `model`, as `card` says.

    Args:
        url (`str`): address of an OpenAI-compatible server that writes the responses.
        model (`str`): the server's name for the target.
        key_variable (`str`, *optional*): the environment variable with the server's API key; left out, none is sent.

    Raises:
        ValueError: if there is no such variable.
    """
    if key_variable is not None and not os.environ.get(key_variable):
        raise ValueError(f"the environment has no {key_variable}: put the server's API key in it, or name another")
    return partial(
        request_responses, url, model, tokenizer=tokenizer, decoding=Decoding.stored(card.responses),
        max_new_tokens=card.max_new_tokens, eos_token_ids=end_of_sequence(target),
        api_key=os.environ[key_variable] if key_variable else None,
        vocab_size=target.config.get_text_config().vocab_size,
    )  # fmt: skip


def check_context(prompts: Dataset, card: LabelsCard, *models: PreTrainedModel) -> None:
    """Raises `ValueError` if a prompt and its response are longer than the context of one of `models`."""
    contexts = [getattr(m.config.get_text_config(), "max_position_embeddings", None) for m in models]
    context = min((length for length in contexts if length), default=None)
    longest = int(lengths(prompts).max())
    if context is not None and longest + card.max_new_tokens > context:
        raise ValueError(
            f"the longest prompt with its response has {longest} tokens and may grow by {card.max_new_tokens}, but "
            f"the models have a context of {context}: leave such prompts out or lower max_new_tokens"
        )


def train_head(
    draft: PreTrainedModel,
    labels: Path,
    output: Path,
    config: AcceptanceHeadConfig,
    arguments: AcceptanceTrainingArguments,
    mode: str | None = None,
    label: str = "acceptance",
    patience: int | None = None,
    held_out: float = 0.1,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> dict[str, Any]:
    """Trains a head on the folder `labels`, calibrates it, and saves it in the folder `output`.

    The rows are split three ways: a share `held_out` chooses the best epoch and fits the calibration, another judges
    the head, the rest trains it. Hidden states that the labels hold are used, else the draft makes them. Without
    `mode` it is the labelled one that `config.decoding` is.

    Args:
        config (`AcceptanceHeadConfig`): of the head; the pair that it leaves out is that of the labels.
        mode (`str`, *optional*): which of the labelled decoding modes, greedy or sampling.
        label (`str`): learn the `"acceptance"` of the drawn token, or the `"overlap"`, its expectation over the draw.
        patience (`int`, *optional*): stop after so many epochs without a better one; left out, never.
        on_step: called after each step of the optimizer with its number and the most that there will be.

    Returns:
        `quality` on the judging share, and `raw_binary_kl` from before calibration; also in `metrics.json`, with a
        diagram in `reliability.png`.
    """
    card = read_card(labels)
    config = replace(
        config,
        target_name_or_path=config.target_name_or_path or card.target,
        target_signature=config.target_signature or card.target_signature,
        draft_signature=config.draft_signature or card.draft_signature,
    )
    mode = mode or mode_of(card, config.decoding)
    if label == "overlap" and Decoding.stored(card.decodings[mode]).has_noise:
        raise ValueError(
            "label='overlap' is what is accepted of a draw under rejection sampling, and these labels are for "
            "coupling='seeded': learn label='acceptance', or label with coupling='rejection'"
        )
    rows = read_labels(labels).with_format("numpy")
    if len(rows) < 10:
        raise ValueError(f"{str(labels)!r} holds {len(rows)} responses: label at least 10, and better hundreds")
    if len(rows) < FEW:
        logger.warning(
            f"{str(labels)!r} holds {len(rows)} responses: the head and its calibration will be poor, label hundreds"
        )
    inputs = HeadInputs(
        mode, card.rows, config.reads, config.features, label, stored=f"{mode}_{config.reads}" in rows.column_names
    )
    check_reads(draft.config, [config.reads])
    if isinstance(draft.config, ReadsTarget) and not inputs.stored:
        raise ValueError(
            f"{str(labels)!r} holds no states {config.reads!r} a token, and the draft reads those of its target, "
            f"which training does not run: label with --states {config.reads}"
        )
    checkpoints = Path(arguments.output_dir)
    keep_settings(
        checkpoints / "settings.json",
        settings_of(config, arguments)
        | {"labels": asdict(card), "mode": mode, "label": label, "patience": patience, "held_out": held_out},
        f"{str(output)!r} holds a head trained",
        writes=process_state().is_main_process,
    )
    train_rows, dev, test = shares(rows.select_columns(inputs.columns), held_out)
    torch.manual_seed(arguments.seed)
    model = get_peft_model(draft, config)
    callbacks = [Told(on_step), *([EarlyStoppingCallback(patience)] if patience is not None else [])]
    trainer = AcceptanceTrainer(
        model, inputs, args=arguments, train_dataset=train_rows, eval_dataset=dev, callbacks=callbacks
    )
    trainer.remove_callback(PrinterCallback)  # the Trainer's, where its progress bar is turned off
    trainer.train(resume_from_checkpoint=newest_whole_checkpoint(checkpoints))

    head = acceptance_layer(model).head_configs["default"]
    raw_logits, acceptance = predicted(trainer, dev)
    head.calibration_scale, head.calibration_offset = fit_calibration(head, raw_logits, acceptance)
    if head.rule == "cost-aware":  # what it expects before it has seen any round
        head.rule_settings = {"mean_acceptance": round(acceptance.mean().item(), 2)} | head.rule_settings
    if trainer.is_world_process_zero():
        save_head(model, output)  # before it is judged, whatever becomes of that
    raw_logits, _ = predicted(trainer, test)
    uncalibrated = AcceptanceHeadConfig(rejection_weight=head.rejection_weight)
    judged = judged_tokens(test, inputs)
    metrics = quality(torch.sigmoid(head.acceptance_logits(raw_logits.double())), judged)
    before = torch.sigmoid(uncalibrated.acceptance_logits(raw_logits.double()))
    metrics = {"raw_binary_kl": binary_kl(before, judged)} | metrics
    if trainer.is_world_process_zero():
        write_atomically(output / "metrics.json", json.dumps(metrics, indent=2))
        with atomically(output / "reliability.png") as partial:
            plot_reliability(metrics["bins"], partial, by_length=metrics.get("by_length"))
    trainer.accelerator.wait_for_everyone()
    return metrics


class Told(TrainerCallback):
    """Calls `on_step` after each step of the optimizer, see `train_head`."""

    def __init__(self, on_step: Callable[[int, int], None]):
        self.on_step = on_step

    def on_step_end(self, args, state, control, **kwargs):
        self.on_step(state.global_step, state.max_steps)


def settings_of(config: AcceptanceHeadConfig, arguments: AcceptanceTrainingArguments) -> dict[str, Any]:
    """What a training is of: another value of these makes another head."""
    training = ("num_train_epochs", "learning_rate", "per_device_train_batch_size", "seed", "max_steps")
    head = ("num_layers", "tied", "reads", "features", "rejection_weight", "decoding")
    return {name: getattr(arguments, name) for name in training} | {name: getattr(config, name) for name in head}


def newest_whole_checkpoint(folder: Path) -> str | None:
    """The checkpoint to go on from; one that was being written when the process died does not count."""
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.name.split("-")[1].isdecimal()]
    for path in sorted(checkpoints, key=lambda path: int(path.name.split("-")[1]), reverse=True):
        try:
            with safe_open(path / "adapter_model.safetensors", "pt"):
                json.loads((path / "trainer_state.json").read_text())  # the last that the Trainer writes
        except (OSError, ValueError, SafetensorError):
            continue
        return str(path)
    return None


def save_head(model: PeftModel, output: Path) -> None:
    """Saves the adapter, each file whole; the configuration, by which others find it, comes last."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # with an empty form of a card, which nobody needs
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            write_atomically(output / name, (Path(folder) / name).read_bytes())


def shares(rows: Dataset, held_out: float = 0.1) -> tuple[Dataset, Dataset, Dataset]:
    """Rows to train on; a share `held_out` to choose the epoch and to calibrate by; as many to judge by."""
    split = rows.train_test_split(2 * held_out, seed=0)
    held = split["test"].train_test_split(0.5, seed=0)
    return split["train"], held["train"], held["test"]


def mode_of(card: LabelsCard, decoding: dict[str, Any]) -> str:
    """The name under which `card` has the labels for `decoding`.

    Raises:
        ValueError: if it has none.
    """
    for name, fields in card.decodings.items():
        if Decoding.stored(fields).same_law(Decoding.stored(decoding)):
            return name
    raise ValueError(f"the labels are for {card.decodings}, but the head is for {decoding}: label that mode too")


def predicted(trainer: AcceptanceTrainer, rows: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw logits and labels of the labelled tokens of `rows`, (n,) each."""
    result = trainer.predict(rows)
    acceptance = torch.from_numpy(result.label_ids)
    labelled = acceptance >= 0
    return torch.from_numpy(result.predictions)[labelled], acceptance[labelled]
