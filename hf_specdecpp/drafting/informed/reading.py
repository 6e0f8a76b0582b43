"""Layer ids mean two things (see `config`), and some drafts are published with the one where the other belongs."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from .config import layers_read
from .dflash import DFlashForCausalLM
from .eagle3 import Eagle3ForCausalLM

logger = logging.get_logger(__name__)


@torch.no_grad()
def check_reading(
    draft: Eagle3ForCausalLM | DFlashForCausalLM,
    target: PreTrainedModel,
    prompts: list[list[int]],
    max_new_tokens: int = 32,
) -> None:
    """Warns if the draft says more of the target's own tokens when its layer ids are read the other way.

    Args:
        prompts (`list[list[int]]`): token ids; the target goes on from them by greedy decoding, some hundred tokens
            together are enough.
    """
    layers = layers_read(draft.config, target.config)
    step = 1 if draft.config.layout == "speculators" else -1
    other = tuple(layer + step for layer in layers)
    depth = target.config.get_text_config().num_hidden_layers
    if draft.config.target_layers is None or min(other) < 0 or max(other) > depth:
        return
    agrees = block_agreement if isinstance(draft, DFlashForCausalLM) else agreement
    right = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=target.device)
        settings = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": max_new_tokens}
        text = target.generate(ids, **settings)
        states = target(text, output_hidden_states=True).hidden_states
        right.append(torch.stack([agrees(draft, text, states, read)[len(prompt) - 1 :] for read in (layers, other)]))
    ours, theirs = torch.cat(right, dim=-1)
    won, lost = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
    if won - lost > 3 * (won + lost) ** 0.5:  # three standard deviations of tosses of a coin
        logger.warning(
            f"the draft says {int(ours.sum())} of {len(ours)} tokens of the target's own when it reads the hidden "
            f"states {list(layers)}, as its configuration says, and {int(theirs.sum())} when it reads {list(other)}: "
            f"load it with target_layers={list(other)}"
        )


def agreement(draft: Eagle3ForCausalLM, text: Tensor, states: tuple[Tensor, ...], layers: tuple[int, ...]) -> Tensor:
    """For each token of `text`, (1, length), from the third on, whether the draft says it, (length - 2,)."""
    taps = torch.cat([states[layer] for layer in layers], dim=-1)[:, :-2]
    said = draft(text[:, 1:-1].to(draft.device), taps=taps.to(draft.device)).logits.argmax(-1)
    return (said == text[:, 2:].to(said.device))[0]


def block_agreement(
    draft: DFlashForCausalLM, text: Tensor, states: tuple[Tensor, ...], layers: tuple[int, ...]
) -> Tensor:
    """`agreement` of the first tokens of blocks."""
    taps = torch.cat([states[layer] for layer in layers], dim=-1).to(draft.device)
    text, place = text.to(draft.device), int(not draft.config.sample_from_anchor)
    masks = text.new_full((1, draft.config.block_size - 1), draft.config.mask_token_id)
    said = []
    for anchor in range(1, text.shape[1] - 1):
        found = draft(torch.cat((text[:, : anchor + 1], masks), dim=-1), taps=taps[:, :anchor])
        memory = None
        for number in range(place + 1):
            logits, memory = draft.biased(found.logits[:, number], text[:, anchor], found.states[:, number], memory)
        said.append(logits.argmax(-1))
    return torch.cat(said) == text[0, 2:]
