"""What the target says of the draft's tokens at every position of its own responses, in every mode asked for.

One teacher-forced pass of each model over a batch of responses. Knows tensors and models; `label_folder` stores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .decoding import Decoding


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


def overlap(target_logits: Tensor, draft_logits: Tensor, decoding: Decoding) -> Tensor:
    """`sum min(p, q)`, the expectation of `acceptance` over the draft's draw: 1 minus the total variation distance.

    Args:
        target_logits, draft_logits (`torch.FloatTensor` of shape `(n, vocab_size)`): unprocessed.

    Returns:
        `torch.FloatTensor` of shape `(n,)`, in [0, 1].
    """
    if not decoding.do_sample:
        return (target_logits.argmax(-1) == draft_logits.argmax(-1)).float()
    p, q = (decoding.processed(logits).softmax(-1) for logits in (target_logits, draft_logits))
    return torch.minimum(p, q).sum(-1)


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
    generator = torch.Generator().manual_seed(seed)
    # Padding on the right: earlier positions of a causal model never see it.
    sequences = [torch.tensor(p + r) for p, r in zip(prompts, responses, strict=True)]
    input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    first = min(map(len, prompts))
    logits = [predictions(m, input_ids, first) for m in (target, draft)]
    vocab_size = min(each.shape[-1] for each in logits)  # one tokenizer, padded differently
    labelled = []
    for b, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        answer = slice(len(prompt) - first, len(prompt) - first + len(response))
        p, q = (each[b, answer, :vocab_size].float().cpu() for each in logits)
        target_ids = torch.tensor(response)
        row = {"prompt_ids": prompt, "response_ids": response, "entropy": torch.special.entr(q.softmax(-1)).sum(-1)}
        for name, decoding in decodings.items():
            if rows.procedure == "specdec++":
                drawn = decoding.draw(q, generator)
                row[f"{name}_mixed"] = torch.rand(drawn.shape, generator=generator) < rows.mixing
            else:
                drawn = decoding.draw_beside(q, p, target_ids, generator)
            probabilities = decoding.processed(q).softmax(-1)
            row[f"{name}_drawn"] = drawn
            row[f"{name}_acceptance"] = acceptance(p, q, drawn, decoding)
            row[f"{name}_probability"] = probabilities.gather(-1, drawn[:, None]).squeeze(-1)
            row[f"{name}_overlap"] = overlap(p, q, decoding)
        labelled.append({k: v.tolist() if isinstance(v, Tensor) else v for k, v in row.items()})
    return labelled


def predictions(model: PreTrainedModel, input_ids: Tensor, first: int) -> Tensor:
    """Logits for the tokens from position `first` on, (batch, length - first, vocab_size)."""
    kept = {"logits_to_keep": input_ids.shape[1] - first + 1} if model._supports_logits_to_keep() else {}
    return model(input_ids.to(model.device), **kept).logits[:, -(input_ids.shape[1] - first + 1) : -1]
