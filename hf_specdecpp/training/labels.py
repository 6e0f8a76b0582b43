"""What the target says of the draft's tokens at every position of its own responses, in every mode asked for.

One teacher-forced pass of each model over a batch of responses. Knows tensors and models; `label_folder` stores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..decoding import Decoding, draw_beside, draw_tokens


@dataclass(frozen=True)
class Rows:
    """Which sequences the draft reads when the head learns to judge its tokens.

    Args:
        procedure (`str`): `"on-policy"` judges every token where real drafting meets it: after a prefix of the
            target's own response, which is what accepted tokens are. `"specdec++"` is the paper's procedure
            (section 3.2), one sequence in which drafted tokens follow drafted tokens, wrong ones included, with some
            of the target's mixed in.
        mixing (`float`): for `"specdec++"`, the probability that an input token is the target's, `r` in the paper.
    """

    procedure: str = "on-policy"
    mixing: float = 0.15

    def __post_init__(self):
        if self.procedure not in ("on-policy", "specdec++"):
            raise ValueError(f'rows are made "on-policy" or by the procedure of "specdec++", got {self.procedure!r}')
        if not 0 <= self.mixing <= 1:
            raise ValueError(f"mixing is the share of the target's tokens, in [0, 1], got {self.mixing}")

    def __str__(self) -> str:
        return f"{self.procedure}, mixing {self.mixing:g}" if self.procedure == "specdec++" else self.procedure


def acceptance(p: Tensor, q: Tensor, drawn: Tensor, coupling: str) -> Tensor:
    """The probability that the target accepts each drawn token.

    `"rejection"`: `min(1, p_y / q_y)` (arXiv 2405.19715, section 3.2). `"seeded"`: both take the least of exponential
    races under one noise, so it is the probability that `y` wins both, divided by `q_y`:
    `1 / (q_y sum_v max(p_v / p_y, q_v / q_y))`.

    Args:
        p, q (`torch.FloatTensor` of shape `(n, vocab_size)`): the distributions that target and draft draw from, see
            `Decoding.probabilities` (the authors' code leaves them unwarped). Under greedy decoding both are certain,
            and so is the acceptance.
        drawn (`torch.LongTensor` of shape `(n,)`): tokens drawn from `q`.
        coupling (`str`): see `DraftingConfig`.

    Returns:
        `torch.FloatTensor` of shape `(n,)`, in [0, 1].
    """
    y = drawn[:, None]
    p_y, q_y = p.gather(-1, y), q.gather(-1, y)
    if coupling == "rejection":
        return (p_y / q_y).clamp(max=1).squeeze(-1)
    # The fraction is multiplied by p_y, so that a token which the target rules out yields 0.
    return (p_y / torch.maximum(p * q_y, q * p_y).sum(-1, keepdim=True)).clamp(max=1).squeeze(-1)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """`sum min(p, q)`, the expectation of `acceptance` over the draft's draw: 1 minus the total variation distance.

    Args:
        p, q (`torch.FloatTensor` of shape `(n, vocab_size)`): see `acceptance`.

    Returns:
        `torch.FloatTensor` of shape `(n,)`, in [0, 1].
    """
    return torch.minimum(p, q).sum(-1).clamp(max=1)


@torch.inference_mode()
def label_responses(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: list[list[int]],
    responses: list[list[int]],
    decodings: dict[str, Decoding],
    rows: Rows,
    seed: int,
) -> list[dict]:
    """Rows for the head, for one batch.

    Returns:
        One `dict` a response: `prompt_ids`, `response_ids`, `entropy` of the draft's distribution at each position of
        the response (nats, before warpers), and for each mode `m` of `decodings` its `m_drawn` tokens, their
        `m_acceptance`, their `m_probability` under the draft (after warpers), and the `m_overlap` of the two
        distributions; by the procedure of the paper also `m_mixed`, true where the input keeps the target's token.
    """
    generator = torch.Generator(draft.device).manual_seed(seed)
    # Padding on the right: earlier positions of a causal model never see it.
    sequences = [torch.tensor(p + r) for p, r in zip(prompts, responses, strict=True)]
    input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    first = min(map(len, prompts))
    logits = [predictions(m, input_ids, first) for m in (target, draft)]
    vocab_size = min(each.shape[-1] for each in logits)  # one tokenizer, padded differently
    labelled = []
    for b, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        answer = slice(len(prompt) - first, len(prompt) - first + len(response))
        target_logits, draft_logits = (each[b, answer, :vocab_size].float() for each in logits)
        raw, target_ids = draft_logits.softmax(-1), torch.tensor(response, device=draft_logits.device)
        row = {"prompt_ids": prompt, "response_ids": response, "entropy": torch.special.entr(raw).sum(-1)}
        for name, decoding in decodings.items():
            p, q = decoding.probabilities(target_logits.to(raw.device)), decoding.probabilities(draft_logits)
            if rows.procedure == "specdec++":
                drawn = draw_tokens(q, generator).squeeze(-1)
                row[f"{name}_mixed"] = torch.rand(drawn.shape, generator=generator, device=q.device) < rows.mixing
            else:
                drawn = draw_beside(q, p, target_ids, generator, decoding.coupling)
            row[f"{name}_drawn"] = drawn
            row[f"{name}_acceptance"] = acceptance(p, q, drawn, decoding.coupling)
            row[f"{name}_probability"] = (q if decoding.do_sample else raw).gather(-1, drawn[:, None]).squeeze(-1)
            row[f"{name}_overlap"] = overlap(p, q)
        labelled.append({k: v.tolist() if isinstance(v, Tensor) else v for k, v in row.items()})
    return labelled


def predictions(model: PreTrainedModel, input_ids: Tensor, first: int) -> Tensor:
    """Logits for the tokens from position `first` on, (batch, length - first, vocab_size)."""
    kept = {"logits_to_keep": input_ids.shape[1] - first + 1} if model._supports_logits_to_keep() else {}
    return model(input_ids.to(model.device), **kept).logits[:, -(input_ids.shape[1] - first + 1) : -1]
