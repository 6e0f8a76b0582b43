"""What a stopping rule is: it decides whether to draw another token, and can never take one back. Knows no models.

A rule sees plain numbers, so that the same object decides in `generate` and in a replay of recorded traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .costs import CostProfile, RunningCosts


@dataclass(frozen=True)
class DraftedToken:
    """What a rule may see once a token was drawn. What the rule does not name in `needs` is not computed.

    Attributes:
        position (`int`): its place in the round, from 1.
        probability (`float`, *optional*): the draft's, in the distribution that it was drawn from.
        entropy (`float`, *optional*): of the draft's distribution at temperature 1, before any logits processor, nats.
        acceptance (`float`, *optional*): the head's calibrated probability that the target accepts it, given that all
            earlier ones are accepted. `None` until the head knows: one that reads the state after the token judges it
            in the pass that draws the next.
    """

    position: int
    probability: float | None = None
    entropy: float | None = None
    acceptance: float | None = None
    rank: int = 1


@dataclass(frozen=True)
class Round:
    """What happened in a round.

    Attributes:
        drafted (`list[DraftedToken]`): the tokens, as the rule saw them.
        accepted (`int`): how many of them the target accepted.
        censored (`bool`): the round was cut by the end of the sequence or its length, so its length says nothing.
        draft_seconds (`float`, *optional*), target_seconds (`float`, *optional*): time in drafting all, and in the
            target's pass with its bookkeeping.
    """

    drafted: list[DraftedToken]
    accepted: int
    censored: bool = False
    draft_seconds: float | None = None
    target_seconds: float | None = None
    parents: list[int] | None = None
    path: list[int] | None = None
    new_tokens: int | None = None
    rows: int = 1
    passes: int = 0
    width: int = 1
    reads_prompt: bool = False
    stop_reason: str | None = None


class StoppingRule:
    """Serves one generation. Subclasses override what they use.

    Attributes:
        needs (`frozenset[str]`): fields of `DraftedToken`, and `"seconds"` of `Round`, that the rule reads.
        reason (`str`): why the rule ended a round, for `collect_stats`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    reason: ClassVar[str] = "rule"

    def begin(self) -> int | None:
        """The most tokens that this round may draft; 0 is plain decoding, `None` no bound of the rule's own."""
        return None

    def goes_on(self, drafted: Sequence[DraftedToken]) -> bool:
        """Whether to draw another token after those `drafted` in this round, which are submitted either way."""
        return True

    def end(self, round: Round) -> None:
        """Learns from a finished round."""


class TimedRule(StoppingRule):
    """A rule that counts seconds: it takes the costs that it is given, or learns them from its own rounds.

    Args:
        costs (`CostProfile`, *optional*): what a round costs; nothing is learned then.
        running (`RunningCosts`, *optional*): what the pair cost so far. Rules may share it, so whoever gives it adds
            the rounds.
    """

    needs = frozenset({"seconds"})

    def __init__(self, costs: CostProfile | None = None, running: RunningCosts | None = None):
        self.costs = costs
        self.learns = costs is None and running is None
        self.running = RunningCosts() if running is None else running

    def current_costs(self) -> CostProfile | None:
        """What a round costs as far as is known; `None` while too little was measured."""
        return self.costs or self.running.profile()

    def end(self, round: Round) -> None:
        if self.learns and round.target_seconds is not None:
            self.running.add(len(round.drafted), round.draft_seconds or 0.0, round.target_seconds)
