"""What rules are told: drafted tokens, and what became of a round. Knows no models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


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
        rank (`int`): its place among the tokens drafted behind the same one, from 1; always 1 in a chain.
        source (`str`): who proposed it: `"model"`, `"lookup"` or `"recycling"`.
        evidence (`int`): what the source knows of it: the tokens before it that agree, or its rank in a table. Of a
            token of the model it says that a lookup proposes the same.
    """

    position: int
    probability: float | None = None
    entropy: float | None = None
    acceptance: float | None = None
    rank: int = 1
    source: str = "model"
    evidence: int = 0


@dataclass(frozen=True)
class Round:
    """What happened to one text in a round: the only record there is, for rules, statistics and whoever listens.

    Attributes:
        drafted (`list[DraftedToken]`): the verified tokens, as the rule saw them; in a tree parents before children.
        accepted (`int`): how many of them the target accepted.
        censored (`bool`): the round was cut by the end of the sequence or its length, so its length says nothing.
        draft_seconds (`float`, *optional*), target_seconds (`float`, *optional*): time in drafting all, and in the
            target's pass with its bookkeeping. Of a batch the first text has the time of all.
        parents (`list[int]`, *optional*): in a tree, the number of each token's parent, -1 for none.
        path (`list[int]`, *optional*): in a tree, the numbers of the accepted tokens.
        new_tokens (`int`): tokens that the text grew by.
        rows (`int`): texts in the batch that went on.
        passes (`int`, *optional*): of the draft; left out, one for each token.
        width (`int`, *optional*): tokens of each text that the target read; left out, one more than were drafted.
        reads_prompt (`bool`): the times include reading the prompt, which is no step of decoding.
        stop_reason (`str`, *optional*): why drafting ended.
    """

    drafted: list[DraftedToken]
    accepted: int
    censored: bool = False
    draft_seconds: float | None = None
    target_seconds: float | None = None
    parents: list[int] | None = None
    path: list[int] | None = None
    new_tokens: int = 0
    rows: int = 1
    passes: int | None = None
    width: int | None = None
    reads_prompt: bool = False
    stop_reason: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "passes", len(self.drafted) if self.passes is None else self.passes)
        object.__setattr__(self, "width", len(self.drafted) + 1 if self.width is None else self.width)

    def verified(self) -> Iterator[tuple[DraftedToken, bool]]:
        """The tokens behind accepted ones, each with whether it was accepted itself."""
        if self.parents is None:
            yield from ((token, i < self.accepted) for i, token in enumerate(self.drafted[: self.accepted + 1]))
            return
        on_path = {-1, *self.path}
        for number, (token, parent) in enumerate(zip(self.drafted, self.parents, strict=True)):
            if parent in on_path:
                yield token, number in on_path

    def verdicts(self) -> Iterator[tuple[DraftedToken, bool]]:
        """`verified` less the token that the end of the text, not the target, may have cut off."""
        return ((token, accepted) for token, accepted in self.verified() if accepted or not self.censored)


@dataclass(frozen=True)
class Scope:
    """What a round may be.

    Attributes:
        rows (`int`): texts of the batch that go on and share the rule.
        branches (`int`, *optional*): the most tokens drafted behind one; 1 makes chains, `None` is the rule's to say.
        max_nodes (`int`): the most drafted tokens that the target verifies of each text.
        sources (`tuple[str, ...]`): what may propose, of which only the model takes time.
        unread (`int`): tokens of a text that the model must read before it drafts, besides the newest.
        block (`int`): the most tokens on a path that one pass of the model drafts; if it is not 1, no other follows.
    """

    rows: int = 1
    branches: int | None = None
    max_nodes: int = 32
    sources: tuple[str, ...] = ("model",)
    unread: int = field(default=0, compare=False)
    block: int = 1

    @property
    def is_mixed(self) -> bool:
        return self.sources != ("model",)
