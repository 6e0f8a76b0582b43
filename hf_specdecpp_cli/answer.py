"""An answer in the terminal, as it grows: what was drafted and accepted in colour, and then what it came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from hf_specdecpp.stopping import CostProfile, Round

ACCEPTED = "green"
LEGEND = f"[{ACCEPTED}]In colour[/{ACCEPTED}]: tokens that were drafted and accepted; the others are the target's own."


class Answer:
    """A streamer of `generate` for one text, which hears the rounds as well: `collect_stats(on_round=answer.hear)`."""

    def __init__(self, console: Console, tokenizer: PreTrainedTokenizerBase):
        self.console, self.tokenizer = console, tokenizer
        self.ids: list[int] | None = None  # None until the prompt came
        self.shown = ""
        self.waiting: list[int] = []
        self.rounds: list[Round] = []

    def put(self, value: Tensor) -> None:
        if self.ids is None:
            self.ids = []
        else:
            self.waiting += value.flatten().tolist()

    def hear(self, round: Round) -> None:
        """The round that the tokens of the last calls of `put` came from."""
        self.rounds.append(round)
        self._print(self.waiting[: round.accepted], ACCEPTED)
        self._print(self.waiting[round.accepted :], "")
        self.waiting = []

    def end(self) -> None:
        self.console.print()

    def _print(self, ids: list[int], style: str) -> None:
        self.ids += ids
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # else a character goes on in the next token
            self.console.print(Text(text[len(self.shown) :], style), end="", soft_wrap=True)
            self.shown = text

    def summary(self, seconds: float, costs: CostProfile) -> str:
        """What the answer came to.

        Args:
            seconds (`float`): of the whole generation.
            costs (`CostProfile`): says what the same rounds and plain decoding take, the prompt aside. They are not
                compared with the clock, which measured another moment of a busy machine.
        """
        tokens, drafted = sum(r.new_tokens for r in self.rounds), sum(len(r.drafted) for r in self.rounds)
        accepted = sum(r.accepted for r in self.rounds)
        words = [
            f"{tokens / seconds:.1f} tokens/s",
            f"{accepted} of {tokens} tokens drafted (of {drafted} that were tried)",
            f"{tokens / len(self.rounds):.2f} tokens a target pass",
        ]
        steps = [r for r in self.rounds if not r.reads_prompt]
        if steps:
            plain = costs.verification(1) * sum(r.new_tokens for r in steps)
            gain = plain / sum(costs.round(r.passes, r.width) for r in steps)
            words.append(f"about {gain:.2f}x plain decoding, by its measured costs")
        return ", ".join(words)
