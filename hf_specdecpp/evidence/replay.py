"""Runs stopping rules over recorded traces, with the costs of any machine: exact counts, no models, no noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..stopping import CostProfile, Round, StoppingRule
from .trace import Trace


@dataclass
class Replay:
    """What a rule did over traces; the rates are those of `GenerationStatistics`.

    `seconds` and `plain_seconds` are those of the cost profile, the prompt left out.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)

    @property
    def verification_rate(self) -> float:
        """Target passes per generated token."""
        return self.rounds / self.tokens

    @property
    def discard_rate(self) -> float:
        """Discarded tokens per generated token."""
        return (self.drafted - self.accepted) / self.tokens

    @property
    def speedup(self) -> float:
        """Tokens a second relative to plain decoding."""
        return self.plain_seconds / self.seconds


def replay(traces: Iterable[Trace], new_rule: Callable[[], StoppingRule], costs: CostProfile) -> Replay:
    """The rounds that a rule would have had, a new rule for each trace.

    Args:
        new_rule: makes the rule of one generation, for example `config.new_rule` of filled settings.
    """
    total = Replay()
    for trace in traces:
        rule, begin = new_rule(), 0
        while begin < len(trace.target_ids):
            draft = trace.drafts[begin]
            room = trace.max_new_tokens - begin - 1
            plan = rule.plan()
            cap = plan.cap
            if room > 0 and cap is not None and cap > len(draft.tokens) and not draft.ended:
                raise ValueError(
                    f"the rule may draft {cap} tokens, but the traces hold drafts of {len(draft.tokens)}: record "
                    "longer ones, or bound the rule"
                )
            cap = len(draft.tokens) if cap is None else cap
            drafted = []
            for token in draft.tokens[: min(cap, room)]:
                drafted.append(token)
                if not plan.goes_on(trace.seen(drafted)):
                    break
            ended = draft.ended and len(drafted) == len(draft.tokens)
            accepted = min(draft.accepted, len(drafted))
            new_tokens = min(accepted + 1, len(trace.target_ids) - begin)
            seconds = len(drafted) * costs.draft_seconds, costs.verification(len(drafted) + 1)
            if room > 0:
                rule.end(Round(trace.seen(drafted), accepted, ended or 0 < len(drafted) == room, *seconds))
            total.rounds += 1
            total.tokens += new_tokens
            total.drafted += len(drafted)
            total.accepted += accepted
            total.seconds += sum(seconds)
            total.plain_seconds += new_tokens * costs.verification(1)
            total.lengths.append(len(drafted))
            begin += new_tokens
    return total


def oracle(traces: Iterable[Trace], costs: CostProfile) -> Replay:
    """Hindsight: drafts exactly the tokens that will be accepted (Lemma 2.1 of arXiv 2405.19715), where that pays."""
    total = Replay()
    for trace in traces:
        begin = 0
        while begin < len(trace.target_ids):
            left = len(trace.target_ids) - begin
            most = min(trace.drafts[begin].accepted, left - 1)
            plain = costs.verification(1)
            length = max(range(most + 1), key=lambda k: (k + 1) - costs.round(k) / plain)
            total.rounds += 1
            total.tokens += length + 1
            total.drafted += length
            total.accepted += length
            total.seconds += costs.round(length)
            total.plain_seconds += (length + 1) * plain
            total.lengths.append(length)
            begin += length + 1
    return total
