"""What the next token is, given logits: the logits processors, and the draw."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from .mode import Decoding
from .noise import Noise
from .sequences import Sequences

# Processors that look at scores alone: one call serves every position.
BLIND = (
    EpsilonLogitsWarper, EtaLogitsWarper, InfNanRemoveLogitsProcessor, LogitNormalization, MinPLogitsWarper,
    SuppressTokensLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper,
)  # fmt: skip


class Law:
    """How a generation decodes; draft and target both choose by it.

    Args:
        processors (`LogitsProcessorList`): functions of ids and scores.
        decoding (`Decoding`): sample or not, and by which coupling; what its warpers do is among the processors.
        vocab_size (`int`): of the target.
    """

    def __init__(self, processors: LogitsProcessorList, decoding: Decoding, sequences: Sequences, vocab_size: int):
        self.processors, self.decoding, self.do_sample = processors, decoding, decoding.do_sample
        self.sequences, self.vocab_size = sequences, vocab_size
        self.is_blind = all(type(processor) in BLIND for processor in processors)
        self.noise = None
        if decoding.has_noise:
            self.noise = Noise(len(sequences.texts), vocab_size, sequences.device)

    def processed(self, logits: Tensor, rows: list[int], paths: Callable[[], list[list[int]]]) -> Tensor:
        """The logits that tokens are chosen by.

        Args:
            logits (`torch.FloatTensor` of shape `(n, vocab_size)`).
            rows (`list[int]`): the row of the batch that each is of.
            paths: returns the tokens between each row's text and the position.
        """
        if not self.processors:
            return logits
        if self.is_blind:
            return self.processors(None, logits)
        # As plain decoding calls them: with as many rows as the batch has, the row in its place.
        count = len(self.sequences.texts)
        found = []
        for scores, row, path in zip(logits, rows, paths(), strict=True):
            ids = self.sequences.ids(row)
            ids = torch.cat((ids, ids.new_tensor(path))).to(logits.device)
            found.append(self.processors(ids.repeat(count, 1), scores.repeat(count, 1))[row])
        return torch.stack(found)

    def ranked(
        self, scores: Tensor, rows: list[int], ahead: list[int], count: int = 1
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens that come first, best first, and, when sampling, what they are drawn from.

        Args:
            scores (`torch.FloatTensor` of shape `(n, vocab_size)`): processed; their softmax serves greedy decoding.
            rows (`list[int]`), ahead (`list[int]`): the row of each, and how many tokens lie between its text and the
                position.
            count (`int`): how many; when sampling, they are drawn without replacement.

        Returns:
            `torch.LongTensor` of shape `(n, count)`, and probabilities, `(n, vocab_size)`.
        """
        if not self.do_sample:
            return best(scores, count)[1], None
        p = scores.softmax(-1)
        if self.noise is None:
            return best(p / torch.empty_like(p).exponential_(), count)[1], p
        steps = [self.sequences.generated(row) + more for row, more in zip(rows, ahead, strict=True)]
        return best(p / self.noise.of(rows, steps).to(p.device), count)[1], p

    def favoured(self, row: int, tokens: list[int], weights: list[int], ahead: int = 0) -> list[int]:
        """`tokens` that may come next in a row, the likeliest first; when sampling, as the noise favours them.

        Args:
            weights: how often each was seen, what a greedy order does not need: `tokens` come in it.
            ahead (`int`): how many tokens lie between the row's text and the position.
        """
        if self.noise is None or len(tokens) < 2:
            return tokens
        noise = self.noise.of([row], [self.sequences.generated(row) + ahead])[0, tokens].tolist()
        order = sorted(range(len(tokens)), key=lambda i: noise[i] / weights[i])
        return [tokens[i] for i in order]

    def passed(self) -> None:
        """All rows that go on have come further."""
        if self.noise is not None:
            self.noise.forget(min(self.sequences.generated(row) for row in self.sequences.going))

    def leave(self) -> None:
        """Leaves the generator where plain decoding leaves it, if the coupling is seeded."""
        if self.noise is not None:
            self.noise.leave(max(map(self.sequences.generated, range(len(self.sequences.texts)))))


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `values` of each row and where they are, (n, vocab_size) -> (n, count) each."""
    return values.max(-1, keepdim=True) if count == 1 else values.topk(count)
