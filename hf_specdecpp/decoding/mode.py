"""How a model decodes: greedy, or sampling behind logits warpers. Labels are made for one such mode."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

COUPLINGS = ("seeded", "rejection")


@dataclass(frozen=True)
class Decoding:
    """A decoding mode, with the defaults and the order of `generate`.

    Args:
        do_sample (`bool`): sample, or take the most likely token; the other fields then mean nothing.
        temperature (`float`): divides the logits, above 0.
        top_k (`int`): keep the `k` most likely tokens; 0 keeps all.
        top_p (`float`): keep the most likely tokens of this total probability, in (0, 1].
        coupling (`str`): how sampling verifies drafts, `"seeded"` or `"rejection"`, see `DraftingConfig`.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    coupling: str = "seeded"

    def __post_init__(self):
        if self.coupling not in COUPLINGS:
            raise ValueError(f"there is no coupling {self.coupling!r}: choose one of {', '.join(COUPLINGS)}")
        if not self.temperature > 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                "temperature must be above 0, top_k 0 or more and top_p in (0, 1], got "
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}"
            )

    @classmethod
    def stored(cls, fields: dict[str, Any]) -> Decoding:
        """From what a head or a folder of labels says; those made before 0.2 name no coupling, for there was one."""
        return cls(**{"coupling": "rejection"} | fields)

    def same_law(self, other: Decoding) -> bool:
        """Whether drafts are accepted alike: greedy decoding has no other settings."""
        return self == other or not (self.do_sample or other.do_sample)

    @property
    def has_noise(self) -> bool:
        """Whether draft and target choose under one noise."""
        return self.do_sample and self.coupling == "seeded"

    def processors(self) -> LogitsProcessorList:
        """The warpers of sampling, none for greedy decoding."""
        warpers = LogitsProcessorList()
        if not self.do_sample:
            return warpers
        if self.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1.0:
            warpers.append(TopPLogitsWarper(self.top_p))
        return warpers

    def processed(self, logits: Tensor) -> Tensor:
        """The logits that tokens are drawn from, (n, vocab_size) -> (n, vocab_size)."""
        return self.processors()(None, logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distributions that tokens are drawn from, (n, vocab_size) each; greedy ones are certain of a token."""
        if self.do_sample:
            return self.processed(logits).softmax(-1)
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)

    def draw(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """One token for each row of `logits`, (n, vocab_size) -> (n,)."""
        if not self.do_sample:
            return logits.argmax(-1)
        return draw_tokens(self.probabilities(logits), generator).squeeze(-1)

    def generate_kwargs(self) -> dict[str, Any]:
        """The same mode as keywords of `generate`."""
        settings = asdict(self)
        del settings["coupling"]
        return settings if self.do_sample else {"do_sample": False}


def no_mass() -> ValueError:
    return ValueError(
        "no token can be drawn from probabilities that are NaN, infinite or all 0: look for overflow in the model's "
        "logits (float16 overflows soonest) and for logits processors that rule out every token it knows"
    )


def draw_tokens(probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One token for each row of `probabilities`, (n, vocab_size) -> (n, 1), by inversion of the cumulative sum.

    On a CPU it takes a tenth of the time of `torch.multinomial`, which draws a random number for every word of the
    vocabulary. Double precision keeps the probability of the rarest words right; Apple's MPS has none.

    Raises:
        ValueError: for a row that has no mass, or holds NaN or infinity.
    """
    on_mps = probabilities.device.type == "mps"
    cumulative = probabilities.cumsum(-1, dtype=torch.float if on_mps else torch.double)
    total = cumulative[:, -1:]
    if not ((total > 0) & total.isfinite()).all():
        raise no_mass()
    if on_mps:
        return torch.multinomial(probabilities, 1, generator=generator)
    level = torch.rand(len(probabilities), 1, dtype=torch.double, device=probabilities.device, generator=generator)
    return torch.searchsorted(cumulative, level * total, right=True)


def draw_beside(
    q: Tensor, p: Tensor, target_ids: Tensor, generator: torch.Generator | None = None, coupling: str = "seeded"
) -> Tensor:
    """Tokens of the draft beside those of the target, with the joint law that speculative decoding gives them.

    The draft's token alone has the draft's distribution, and it is accepted exactly if it equals the target's `x`. So
    rounds along an output of the target have the law of real ones.

    - `"seeded"`: the target chose `x` because `E_x / p_x` is the least of exponential races, `T`; that leaves `T`
      exponential, `E_x = p_x T`, and `E_v = p_v T` plus a fresh exponential variable elsewhere, since exponential
      variables have no memory. The draft takes the least `E_v / q_v`.
    - `"rejection"`: where the target's token is `x`, the draft's is `x` too with probability `min(1, q(x) / p(x))`,
      else one of the residual `(q - p)+`: the coupling of speculative sampling (arXiv 2211.17192, appendix A.1), read
      the other way round.

    Args:
        q, p (`torch.FloatTensor` of shape `(n, vocab_size)`): probabilities of draft and target.
        target_ids (`torch.LongTensor` of shape `(n,)`): drawn from `p`. For one that `p` rules out, as happens where a
            response was decoded otherwise, the draft's token is drawn alone.

    Returns:
        `torch.LongTensor` of shape `(n,)`.
    """
    x = target_ids[:, None]
    possible = p.gather(-1, x)
    if coupling == "seeded":
        least = torch.empty_like(possible).exponential_(generator=generator) * (possible > 0)
        sayable = (q > 0).any(0).nonzero().squeeze(-1)  # all others lose their race; greedy or top-k leaves few
        if not len(sayable):
            raise no_mass()
        q, p = q[:, sayable], p[:, sayable]
        rest = torch.empty_like(p).exponential_(generator=generator)
        noise = p * least + torch.where((possible > 0) & (sayable == x), 0, rest)
        return sayable[(q / noise.clamp(min=torch.finfo(noise.dtype).tiny)).argmax(-1)]
    level = torch.rand(x.shape, device=q.device, generator=generator)
    drawn, other = x.clone(), (level * possible >= q.gather(-1, x)).squeeze(-1)
    residual = (q[other] - p[other]).clamp(min=0)
    # Rounding may leave nothing of the residual of distributions that are as good as equal.
    has_residual = (possible[other] > 0) & (residual.sum(-1, keepdim=True) > 0)
    drawn[other] = draw_tokens(torch.where(has_residual, residual, q[other]), generator)
    return drawn.squeeze(-1)
