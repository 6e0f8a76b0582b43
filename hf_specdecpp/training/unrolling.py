"""What an EAGLE-3 draft is trained for: to go on from its own states, as it must where it drafts (arXiv 2503.01840).

Step 0 reads the target's states at every entry. Step s reads, at entry t, what step s - 1 said at t - 1, as the s-th
token of a draft does that began at t - s. So a query of step s sees the keys of step 0 up to t - s, and of each later
step the one key that lies between. All steps take all entries side by side: the keys of earlier steps wait in a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache

from ..drafting.informed.eagle3 import Eagle3ForCausalLM

FADING = 0.8  # of a step's loss against that of the step before
POSITIONS = 5  # of a draft, that are judged


@dataclass
class Lesson:
    """A batch of texts and what the target says in them. Entry t of a text is its token t + 1.

    Attributes:
        input_ids (`torch.LongTensor` of shape `(texts, length)`): padded on the right.
        taps (`torch.Tensor` of shape `(texts, length, taps * target_hidden_size)`): the target's states.
        text, entry (`torch.LongTensor` of shape `(n,)`): where the target's word is known: what follows the entry.
        tokens (`torch.LongTensor` of shape `(n, k)`), log_probabilities (`torch.FloatTensor` of shape `(n, k)`): the
            target's likeliest tokens there, the likeliest first.
    """

    input_ids: Tensor
    taps: Tensor
    text: Tensor
    entry: Tensor
    tokens: Tensor
    log_probabilities: Tensor

    def to(self, device: torch.device) -> Lesson:
        return Lesson(**{name: value.to(device) for name, value in vars(self).items()})


def unrolled(draft: Eagle3ForCausalLM, lesson: Lesson, steps: int) -> Iterator[Tensor]:
    """Of each step what the draft says at every entry, before its vocabulary, (texts, length - 1, hidden_size).

    At entries before the step's number it says nothing of use: no draft began that early.
    """
    ids, cache, states = lesson.input_ids[:, 1:], DynamicCache(config=draft.config), None
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    for step in range(steps):
        outputs = draft.model(
            ids, taps=None if step else lesson.taps[:, :-1], states=states, position_ids=positions,
            attention_mask=visible(ids.shape[1], step).to(ids.device), past_key_values=cache, use_cache=True,
        )  # fmt: skip
        yield outputs.last_hidden_state
        states = F.pad(outputs.states, (0, 0, 1, 0))[:, :-1]


def visible(length: int, step: int) -> Tensor:
    """Which keys the queries of a step see, (1, 1, length, (step + 1) * length), bool."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    later = [key == query - (step - number) for number in range(1, step + 1)]
    return torch.cat([key <= query - step, *later], dim=-1)[None, None]


def rows_of(draft: Eagle3ForCausalLM) -> Tensor:
    """The draft's row of each token, -1 where it has none, `torch.LongTensor` of shape `(vocab_size,)`."""
    token_ids = draft.lm_head.token_ids
    found = torch.full((draft.config.vocab_size,), -1, device=token_ids.device)
    found[token_ids] = torch.arange(len(token_ids), device=token_ids.device)
    return found


class UnrolledLoss(nn.Module):
    """The cross-entropy of a draft to the target's likeliest tokens, over the steps, the later the less.

    What the target gives to tokens that the draft has no row for is left out.

    Args:
        steps (`int`): unrolled.
    """

    def __init__(self, draft: Eagle3ForCausalLM, steps: int):
        super().__init__()
        self.draft, self.steps = draft, steps
        self.register_buffer("row_of", rows_of(draft), persistent=False)

    def forward(self, lesson: Lesson) -> Tensor:
        rows, p = self.row_of[lesson.tokens], lesson.log_probabilities.float().exp()
        p, rows = p * (rows >= 0), rows.clamp(min=0)
        loss = 0.0
        for step, hidden in enumerate(unrolled(self.draft, lesson, self.steps)):
            own = lesson.entry >= step
            chosen = hidden[lesson.text[own], lesson.entry[own]]
            log_q = self.draft.lm_head.compact_logits(chosen).float().log_softmax(-1)
            each = -(p[own] * log_q.gather(-1, rows[own])).sum(-1)
            loss = loss + FADING**step * each.sum() / own.sum().clamp(min=1)
        return loss


class DraftQuality:
    """How well drafts go on, by position, over all lessons that were added.

    Both texts and laws are the target's. `match`: the share of positions where draft and target have the same
    likeliest token, of those where the draft would have said all tokens of the text since it began; `overlap`: the
    mean of `sum_v min(p_v, q_v)` over the target's likeliest tokens, at all positions; `first_four`: how often the
    target's likeliest token is among the draft's first four, at the first position.
    """

    def __init__(self):
        self.counts = torch.zeros(4, POSITIONS, dtype=torch.double)
        self.first_four = 0.0

    @torch.no_grad()
    def add(self, draft: Eagle3ForCausalLM, lesson: Lesson) -> None:
        alive = torch.ones_like(lesson.input_ids[:, 1:], dtype=torch.bool)
        following = F.pad(lesson.input_ids[:, 2:], (0, 1), value=-1)
        token_ids, row_of = draft.lm_head.token_ids, rows_of(draft)
        for step, hidden in enumerate(unrolled(draft, lesson, POSITIONS)):
            own = lesson.entry >= step
            text, entry, tokens = lesson.text[own], lesson.entry[own], lesson.tokens[own]
            logits = draft.lm_head.compact_logits(hidden[text, entry]).float()
            best = token_ids[logits.argmax(-1)]
            right, going = best == tokens[:, 0], alive[text, entry]
            rows = row_of[tokens]
            q = logits.softmax(-1).gather(-1, rows.clamp(min=0)) * (rows >= 0)
            overlap = torch.minimum(q, lesson.log_probabilities[own].float().exp()).sum(-1)
            said = torch.stack([(right & going).sum(), going.sum(), overlap.sum(), own.sum()])
            self.counts[:, step] += said.double().cpu()
            if not step:
                four = token_ids[logits.topk(min(4, logits.shape[-1]), -1).indices]
                self.first_four += (four == tokens[:, :1]).any(-1).sum().item()
            # A draft goes on to the next entry if it said the token there.
            agrees = torch.zeros_like(alive)
            agrees[text, entry] = going & (best == following[text, entry])
            alive = F.pad(agrees, (1, 0))[:, :-1]

    def summary(self) -> dict[str, float | int | list[float]]:
        right, going, overlap, count = self.counts
        return {
            "match": (right / going.clamp(min=1)).tolist(),
            "overlap": (overlap / count.clamp(min=1)).tolist(),
            "first_four": self.first_four / max(count[0].item(), 1),
            "tokens": int(count[0]),
        }
