"""What a generation did: rounds, drafted and accepted tokens, and where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ..stopping import Round

_active: ContextVar[tuple[GenerationStatistics, ...]] = ContextVar("generation_statistics", default=())


@dataclass
class GenerationStatistics:
    """Counts over all rounds of assisted decoding inside one `collect_stats` block.

    A round is one forward pass of the target. The names and rates are those of the paper (section 2): `N` tokens come
    from `N_target` rounds, and `N_discarded` drafted tokens are thrown away, the rejected one included.

    Attributes:
        rounds (`int`): target passes.
        tokens (`int`): tokens generated, those that no draft proposed included.
        drafted (`int`), accepted (`int`): drafted tokens, and those of them in the output.
        drafted_at (`Counter`), accepted_at (`Counter`): the same by position in the draft, from 1.
        stop_reasons (`Counter`): why rounds of drafting ended, where the candidate generator says: what the rule
            looked at, `max_draft_length`, `end_of_sequence` of a drafted token, `max_length` or `no_room` of the
            text or of what the draft can read, the source (`lookup`, `recycling`) that proposed without the model,
            `no_draft` for plain decoding.
        draft_seconds (`float`), target_seconds (`float`): time in drafting, and in verification with its bookkeeping.
        drafted_by (`Counter`), accepted_by (`Counter`): drafted tokens, and those of them in the output, by source:
            `"model"`, `"lookup"` or `"recycling"`.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: Counter = field(default_factory=Counter)
    accepted_at: Counter = field(default_factory=Counter)
    stop_reasons: Counter = field(default_factory=Counter)
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    drafted_by: Counter = field(default_factory=Counter)
    accepted_by: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:  # attributes that are no fields, since they count nothing
        self.on_round: Callable[[Round], None] | None = None
        self._newest: tuple[int, list[str]] = 0, []  # tokens of the newest round, sources of the accepted ones

    @property
    def discarded(self) -> int:
        """Drafted tokens that are not in the output."""
        return self.drafted - self.accepted

    @property
    def verification_rate(self) -> float:
        """Target passes per generated token, in (0, 1]; lower is better (the paper's N_target / N)."""
        return self.rounds / max(self.tokens, 1)

    @property
    def discard_rate(self) -> float:
        """Discarded tokens per generated token; lower is better, and it can exceed 1 (the paper's N_discarded / N)."""
        return self.discarded / max(self.tokens, 1)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens per drafted token, in [0, 1]."""
        return self.accepted / max(self.drafted, 1)

    @property
    def tokens_per_target_pass(self) -> float:
        """Generated tokens per target pass, 1 for plain decoding."""
        return self.tokens / max(self.rounds, 1)

    @property
    def acceptance_by_position(self) -> dict[int, float]:
        """For each position in the draft, the share of drafted tokens that were accepted."""
        return {k: self.accepted_at[k] / n for k, n in sorted(self.drafted_at.items())}

    def hear(self, round: Round) -> None:
        """Counts a round. In a tree a level counts as drafted once, however many tokens it has."""
        self.rounds += 1
        self.tokens += round.new_tokens
        self.drafted += len(round.drafted)
        self.accepted += round.accepted
        self.drafted_at.update({token.position for token in round.drafted})
        self.accepted_at.update(range(1, round.accepted + 1))
        accepted = range(round.accepted) if round.path is None else round.path
        sources = [round.drafted[number].source for number in accepted]
        self.drafted_by.update(token.source for token in round.drafted)
        self.accepted_by.update(sources)
        self._newest = round.new_tokens, sources
        self.stop_reasons[round.stop_reason or "not said"] += 1
        self.draft_seconds += round.draft_seconds or 0.0
        self.target_seconds += round.target_seconds or 0.0
        if self.on_round is not None:
            self.on_round(round)

    def trim(self, count: int) -> None:
        """Takes the last `count` tokens of the newest round out again: a stop string ended the output before them."""
        tokens, sources = self._newest
        accepted, kept = len(sources), min(len(sources), tokens - count)
        self._newest = tokens - count, sources[:kept]
        self.tokens -= count
        self.accepted -= accepted - kept
        self.accepted_at -= Counter(range(kept + 1, accepted + 1))
        self.accepted_by -= Counter(sources[kept:])

    def __str__(self) -> str:
        if not self.rounds:
            return "no assisted decoding was counted: give generate candidate_generator=SpecDecPP"
        by_position = list(self.acceptance_by_position.items())
        shown = ", ".join(f"{k}: {rate:.2f}" for k, rate in by_position[:8]) + (", ..." if by_position[8:] else "")
        sources = ", ".join(
            f"{name} {n} ({self.accepted_by[name]} accepted)" for name, n in self.drafted_by.most_common()
        )
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.stop_reasons.most_common())
        rows = [
            ("tokens generated", f"{self.tokens}"),
            ("target passes (rounds)", f"{self.rounds}"),
            ("tokens per target pass", f"{self.tokens_per_target_pass:.2f}"),
            ("drafted", f"{self.drafted}"),
            ("drafted by", sources or "nothing drafted"),
            ("accepted", f"{self.accepted} ({self.acceptance_rate:.0%} of drafted)"),
            ("discarded", f"{self.discarded}"),
            ("verification rate", f"{self.verification_rate:.3f} target passes per token"),
            ("discard rate", f"{self.discard_rate:.3f} discarded per token"),
            ("acceptance by position", shown or "nothing drafted"),
            ("drafting stopped by", reasons or "nothing drafted"),
            ("time in draft", f"{self.draft_seconds:.2f} s"),
            ("time in target", f"{self.target_seconds:.2f} s"),
        ]
        return "\n".join(f"{name:<24}{value}" for name, value in rows)


@contextmanager
def collect_stats(on_round: Callable[[Round], None] | None = None) -> Iterator[GenerationStatistics]:
    """Counts what assisted decoding does inside the block, in this thread; outside such a block nothing is counted.

    It covers generations with `candidate_generator=` or `custom_generate=SpecDecPP(...)`. Blocks nest: each counts all
    that happens inside it.

    Args:
        on_round: called with each `Round` when it is over, after a streamer got its tokens.
    """
    statistics = GenerationStatistics()
    statistics.on_round = on_round
    token = _active.set((*_active.get(), statistics))
    try:
        yield statistics
    finally:
        _active.reset(token)


def active_statistics() -> tuple[GenerationStatistics, ...]:
    """The statistics of all `collect_stats` blocks around this point in this thread, the outermost first."""
    return _active.get()
