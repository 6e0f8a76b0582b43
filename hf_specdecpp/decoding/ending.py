"""Where a text ends: token by token, as plain decoding finds it, though tokens come in runs."""

from __future__ import annotations

from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from .sequences import Sequences


class Ending:
    """Asks the stopping criteria after every token, one row at a time, and hands the streamer what stays.

    Args:
        criteria (`StoppingCriteriaList`): as `generate` prepared them.
    """

    def __init__(self, criteria: StoppingCriteriaList, streamer: BaseStreamer | None, sequences: Sequences):
        self.sequences, self.streamer = sequences, streamer
        self.others = StoppingCriteriaList(
            [c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))]
        )
        eos = [c.eos_token_id for c in criteria if isinstance(c, EosTokenCriteria)]
        self.eos = {token for ids in eos for token in ids.tolist()}
        # Plain decoding pads rows that have ended only if an end-of-sequence token can end them.
        self.rows_leave = any(hasattr(c, "eos_token_id") for c in criteria)
        self.ended: dict[int, int] = {}  # the length at which each row ended

    def append(self, row: int, tokens: list[int], scores: tuple | None = None) -> int:
        """Appends to the text of a row those of `tokens` that come before its end; returns how many.

        Args:
            scores: of all generated tokens and of `tokens`, where they are kept.
        """
        if not self.others and self.streamer is None:
            return self._append_run(row, tokens)
        for count, token in enumerate(tokens, start=1):
            self._append_run(row, [token])
            if self.streamer is not None:
                self.streamer.put(self.sequences.ids(row)[-1:].cpu())
            if self.others and row not in self.ended:
                seen = scores if scores is None else scores[: self.sequences.generated(row)]
                if self.others(self.sequences.ids(row)[None], seen).all():
                    self.ended[row] = self.sequences.length(row)
            if self.is_done(row):
                return count
        return len(tokens)

    def _append_run(self, row: int, tokens: list[int]) -> int:
        """`append` where end-of-sequence tokens and the length alone end a text."""
        before = self.sequences.length(row)
        count = min(len(tokens), self.sequences.max_length - before)
        if row not in self.ended:
            end = next((i for i, token in enumerate(tokens[:count], start=1) if token in self.eos), None)
            if end is not None or before + count == self.sequences.max_length:
                count = end or count
                self.ended[row] = before + count
        self.sequences.append(row, tokens[:count])
        return count

    def is_done(self, row: int) -> bool:
        """Whether plain decoding would say no more in a row. Without an end-of-sequence token rows end together."""
        if self.rows_leave or self.sequences.length(row) == self.sequences.max_length:
            return row in self.ended
        all_ended = len(self.ended) == len(self.sequences.texts)
        return all_ended and self.sequences.length(row) >= max(self.ended.values())

    def trim(self) -> None:
        """Cuts what rows that had to go on say beyond the end of the last."""
        if not self.rows_leave:
            for text in self.sequences.texts:
                del text[max(self.ended.values()) :]
