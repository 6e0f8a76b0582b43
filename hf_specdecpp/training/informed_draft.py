"""Trains an EAGLE-3 draft for a target on the target's own responses; killed, it goes on from its last checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..acceptance import model_signature
from ..decoding.taps import read_whole
from ..drafting.informed.config import Eagle3Config, layers_read
from ..drafting.informed.eagle3 import Eagle3ForCausalLM
from ..evidence.files import atomically, keep_settings
from ..hub.data import prompt_ids
from ..hub.loading import load_draft
from .unrolling import DraftQuality, Lesson, UnrolledLoss

NAMES = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
         "max_position_embeddings", "rope_parameters", "attention_bias", "mlp_bias", "initializer_range")  # fmt: skip
CHECKPOINT = "checkpoint.pt"
HELD_OUT = 32  # every so many prompts are kept from training


@dataclass(frozen=True)
class Text:
    """A prompt and the target's response to it.

    Attributes:
        ids (`list[int]`): of both.
        response (`int`): where the response begins.
    """

    ids: list[int]
    response: int


@dataclass(frozen=True)
class DraftTraining:
    """How a draft is trained. The rate rises over `warm_up` of the steps and falls by a cosine to 3 % of its height.

    Args:
        steps (`int`): unrolled, see `training.unrolling`.
        epochs (`float`), learning_rate (`float`), weight_decay (`float`): of AdamW.
        batch_tokens (`int`): the most tokens of a batch, padding included; of each process.
        top (`int`): the target's likeliest tokens that are learned.
        save_every (`int`): steps between checkpoints.
    """

    steps: int = 3
    epochs: float = 8.0
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warm_up: float = 0.03
    batch_tokens: int = 3072
    top: int = 32
    save_every: int = 100
    seed: int = 0


def read_responses(path: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, Text]]:
    """The number of each prompt in its source and the text, from JSONL of `row`, `prompt` and `response_ids`.

    Where a line has `prompt_ids`, of several turns perhaps, they are the prompt as it is.

    Raises:
        ValueError: if there is no such file, or a line is no such row.
    """
    if not path.exists():
        raise ValueError(f"the file {str(path)!r} does not exist: give a JSONL file of responses")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            row = json.loads(line)
            asked = list(map(int, row["prompt_ids"])) if "prompt_ids" in row else prompt_ids(tokenizer, row["prompt"])
            response = list(map(int, row["response_ids"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"line {number + 1} of {str(path)!r} is no response ({type(error).__name__}: {error}): each line is a "
                "JSON object with prompt (or prompt_ids) and response_ids"
            ) from error
        if response and len(asked) > 1:
            yield row.get("row", number), Text(asked + response, len(asked))


def training_texts(
    responses: Iterable[Path], judged: Iterable[str], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[Text]]:
    """What a draft is trained on, `train`, what is held out of it, `held_out`, and `named_texts`.

    Raises:
        ValueError: if nothing is left to train on, or for what is no response, see `read_responses`.
    """
    files = list(responses)
    rows = [row for path in files for row in read_responses(path, tokenizer)]
    texts = {
        "train": [text for number, text in rows if number % HELD_OUT],
        "held_out": [text for number, text in rows if not number % HELD_OUT],
    }
    if not texts["train"]:
        raise ValueError(f"{', '.join(map(repr, map(str, files)))} hold no responses to train on: sample some")
    return texts | named_texts(judged, tokenizer)


def named_texts(named: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Text]]:
    """The responses of files given as NAME=FILE, see `read_responses`."""
    found = {}
    for each in named:
        name, _, path = each.partition("=")
        found[name] = [text for _, text in read_responses(Path(path), tokenizer)]
    return found


def in_batches(texts: list[Text], tokens: int, seed: int = 0) -> list[list[Text]]:
    """Texts of similar length together, at most `tokens` with their padding, in a random order that is always so."""
    found: list[list[Text]] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if not found or (len(found[-1]) + 1) * len(text.ids) > tokens:
            found.append([])
        found[-1].append(text)
    random.Random(seed).shuffle(found)
    return found


def choose_vocabulary(texts: list[Text], size: int, vocab_size: int) -> Tensor:
    """The tokens worth a row, (size,), ascending: those of the texts by how often they are there.

    Among tokens that are seldom there the order of the merges decides, which follows their frequency elsewhere (Zipf).
    """
    counts = torch.bincount(torch.tensor([i for text in texts for i in text.ids]), minlength=vocab_size).double()
    prior = 1 / torch.arange(10, vocab_size + 10, dtype=torch.double)
    return (counts / counts.sum() + 0.1 * prior / prior.sum()).topk(size).indices.sort().values


@torch.no_grad()
def initial_draft(
    target: PreTrainedModel, token_ids: Tensor, target_layers: list[int] | None = None, **config: Any
) -> Eagle3ForCausalLM:
    """A draft of one layer that begins as the target's last, with the target's rows for `token_ids`.

    Where the target's layer is of another kind than Llama's or Qwen3's, what has no likeness there begins at random.

    Args:
        token_ids (`torch.LongTensor` of shape `(draft_vocab_size,)`): what it can say, ascending.
        target_layers (`list[int]`, *optional*): indices of the `hidden_states` that it reads. Left out, a quarter and
            two thirds of the way through, and what the last layer reads.
        config: of `Eagle3Config` besides.
    """
    theirs = target.config.get_text_config()
    depth, width = theirs.num_hidden_layers, theirs.hidden_size
    layers = target_layers or [depth // 4, 2 * depth // 3, depth - 1]
    shape = {name: getattr(theirs, name) for name in NAMES if getattr(theirs, name, None) is not None}
    if "rope_theta" not in (shape.get("rope_parameters") or {}):  # none, or one for each kind of layer
        shape.pop("rope_parameters", None)
    shape.setdefault("intermediate_size", 4 * width)
    last = dict(target.get_decoder().layers[-1].named_parameters()) if hasattr(target.get_decoder(), "layers") else {}
    norm = getattr(target.get_decoder(), "norm", None)
    settings = {
        "hidden_size": width, "num_hidden_layers": 1, "vocab_size": theirs.vocab_size, "target_layers": layers,
        "draft_vocab_size": len(token_ids), "layout": "speculators", "fc_norm": True, "tie_word_embeddings": False,
        "num_attention_heads": theirs.num_attention_heads, "qk_norm": "self_attn.q_norm.weight" in last,
        "pad_token_id": theirs.pad_token_id, "bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id,
    }  # fmt: skip
    torch.manual_seed(0)
    draft = Eagle3ForCausalLM(Eagle3Config(**settings | shape | config)).float()
    layers_read(draft.config, target.config)
    fused = draft.model.fc.weight
    fused.normal_(0, 0.01)
    fused[:, -width:] += torch.eye(width)  # the last tap passes, the others are to be learned
    for name, own in draft.model.layers[0].named_parameters():
        source = last.get(name)
        if source is None:
            continue
        source = source.to(own)
        if own.shape != source.shape and own.ndim == 2:  # it reads embedding and state, half of each
            source = torch.cat((source, source), dim=-1) / math.sqrt(2)
        if own.shape == source.shape:
            own.copy_(source)
    if "input_layernorm.weight" in last:
        draft.model.layers[0].hidden_norm.weight.copy_(last["input_layernorm.weight"])
    if norm is not None and norm.weight.shape == draft.model.norm.weight.shape:
        draft.model.norm.weight.copy_(norm.weight)
    draft.lm_head.weight.copy_(target.get_output_embeddings().weight[token_ids])
    draft.lm_head.d2t.copy_(token_ids - torch.arange(len(token_ids)))
    return draft


def trained_draft(name: str, target: PreTrainedModel) -> Eagle3ForCausalLM:
    """An EAGLE-3 draft to train further, in float32, see `load_draft`.

    Raises:
        ValueError: if it is no EAGLE-3 draft for `target`.
    """
    draft = load_draft(name, target, dtype=torch.float32)
    if not isinstance(draft, Eagle3ForCausalLM) or getattr(draft, "peft_config", None):
        raise ValueError(f"{name!r} is no EAGLE-3 draft, and no other is trained: name the folder of one")
    return draft


class Teacher:
    """What the target says in batches of texts, asked once and kept in a folder, or each time anew.

    A file of the folder is of one batch, with the states in bfloat16: of SmolLM2-135M 3.5 kB a token. They are written
    whole or not at all; a process that was killed goes on with those that are missing.

    Args:
        layers (`tuple[int, ...]`): the hidden states that are kept.
        folder (`Path`, *optional*): without one the target is asked each time.
    """

    def __init__(
        self, target: PreTrainedModel, batches: list[list[Text]], layers: tuple[int, ...], top: int,
        folder: Path | None = None, writes: bool = True,
    ):  # fmt: skip
        self.target, self.batches, self.layers, self.top, self.folder = target, batches, layers, top, folder
        if folder is not None:
            texts = [[(text.ids, text.response) for text in batch] for batch in batches]
            about = {"target": model_signature(target.config), "layers": list(layers), "top": top}
            about["texts_sha256"] = fingerprint_of(texts)
            keep_settings(folder / "settings.json", about, f"{str(folder)!r} holds states made", writes=writes)

    def lesson(self, number: int) -> Lesson:
        """Of a batch, on the CPU or on the target's device."""
        path = None if self.folder is None else self.folder / f"{number:06}.safetensors"
        if path is not None and path.exists():
            with safe_open(path, "pt") as file:
                return Lesson(padded(self.batches[number]), **{name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        lesson = self._asked(self.batches[number])
        if path is not None:
            tensors = {name: value.cpu().contiguous() for name, value in vars(lesson).items() if name != "input_ids"}
            with atomically(path) as partial:
                save_file(tensors, partial)
        return lesson

    @torch.no_grad()
    def _asked(self, batch: list[Text]) -> Lesson:
        ids = padded(batch)
        logits, taps = read_whole(self.target, ids, self.layers)
        text = torch.cat([torch.full((len(t.ids) - t.response,), i) for i, t in enumerate(batch)])
        entry = torch.cat([torch.arange(t.response - 2, len(t.ids) - 2) for t in batch])
        tokens, values = [], []
        for row, at in zip(text.split(512), entry.split(512), strict=True):  # in parts, for it is in float32
            chosen = logits[row.to(logits.device), (at + 1).to(logits.device)].float()
            best = chosen.topk(min(self.top, chosen.shape[-1]), -1)
            tokens.append(best.indices.int().cpu())
            values.append((best.values - chosen.logsumexp(-1, keepdim=True)).half().cpu())
        return Lesson(ids, taps.bfloat16().cpu(), text, entry, torch.cat(tokens), torch.cat(values))


def padded(batch: list[Text]) -> Tensor:
    """(texts, longest), padded on the right, which a causal model's earlier positions never see."""
    return nn.utils.rnn.pad_sequence([torch.tensor(text.ids) for text in batch], batch_first=True)


def fingerprint_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def train_draft(
    draft: Eagle3ForCausalLM,
    teacher: Teacher,
    training: DraftTraining,
    output: Path,
    accelerator: Accelerator,
    max_steps: int | None = None,
    on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> list[float]:
    """Trains `draft` in place, and returns the losses of all steps.

    The order of the batches follows from the seed and checkpoints hold all else, so a run that was killed ends as one
    that was not.

    Args:
        output (`Path`): the folder of the checkpoint.
        max_steps (`int`, *optional*): instead of `training.epochs`.
        on_step: called with the number of the step, that of all, and the loss.
    """
    processes, count = accelerator.num_processes, len(teacher.batches)
    of_epoch = math.ceil(count / processes)
    total = max_steps or max(round(training.epochs * of_epoch), 1)
    warm = max(training.warm_up * total, 1)
    module = UnrolledLoss(draft, training.steps)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=training.learning_rate, betas=(0.9, 0.95), weight_decay=training.weight_decay
    )
    module, optimizer = accelerator.prepare(module, optimizer)
    checkpoint, begin, losses = output / CHECKPOINT, 0, []
    if checkpoint.exists():
        held = torch.load(checkpoint, map_location="cpu", weights_only=True)
        begin, losses = held["step"], held["losses"]
        draft.load_state_dict(held["draft"])
        optimizer.load_state_dict(held["optimizer"])
    module.train()
    for step in range(begin, total):
        height = min(1.0, (step + 1) / warm) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / total)))
        for group in optimizer.param_groups:
            group["lr"] = height * training.learning_rate
        epoch, place = divmod(step, of_epoch)
        order = list(range(count))
        random.Random(training.seed + epoch).shuffle(order)
        number = order[(place * processes + accelerator.process_index) % count]
        lesson = teacher.lesson(number).to(accelerator.device)
        with accelerator.autocast():
            loss = module(lesson)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        on_step(step + 1, total, losses[-1])
        if accelerator.is_main_process and ((step + 1) % training.save_every == 0 or step + 1 == total):
            state = {"draft": draft.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            with atomically(checkpoint) as partial:
                torch.save(state | {"losses": losses}, partial)
    draft.eval()
    return losses


def judge_draft(draft: Eagle3ForCausalLM, teacher: Teacher) -> dict[str, Any]:
    """See `DraftQuality`, over all batches of `teacher`."""
    quality = DraftQuality()
    for number in range(len(teacher.batches)):
        quality.add(draft, teacher.lesson(number).to(draft.device))
    return quality.summary()
