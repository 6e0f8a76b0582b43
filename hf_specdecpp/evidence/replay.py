"""Runs stopping rules over recorded traces, with the costs of any machine: exact counts, no models, no noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..drafting.draft import Node
from ..stopping import ONE_TEXT, CostProfile, Plan, Round, Scope, StoppingRule
from .trace import Draft, Trace


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

    def add(self, begin: int, drafted: int, accepted: int, new_tokens: int, seconds: float, plain: float) -> None:
        """Counts a round.

        Args:
            begin (`int`): tokens generated before it.
            seconds (`float`), plain (`float`): of the round, and of a step of plain decoding. Both read the prompt,
                from which their first token comes: of that round what is beyond a step counts.
        """
        self.rounds += 1
        self.tokens += new_tokens
        self.drafted += drafted
        self.accepted += accepted
        self.seconds += seconds - (0.0 if begin else plain)
        self.plain_seconds += (new_tokens - (not begin)) * plain
        self.lengths.append(drafted)

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
        """Tokens a second relative to plain decoding; 1 where all came of the prompt's pass."""
        return self.plain_seconds / self.seconds if self.seconds else 1.0


def replay(
    traces: Iterable[Trace], new_rule: Callable[[], StoppingRule], costs: CostProfile, scope: Scope = ONE_TEXT
) -> Replay:
    """The rounds that a rule would have had, a new rule for each trace.

    Args:
        new_rule: makes the rule of one generation, for example `config.new_rule` of filled settings.
        scope (`Scope`): what a round may be; trees need traces of trees.
    """
    total = Replay()
    for trace in traces:
        rule, begin, own = new_rule(), 0, replace(scope, block=trace.block)
        while begin < len(trace.target_ids):
            room = trace.max_new_tokens - begin - 1
            plan = rule.plan(own if begin else replace(own, branches=1))  # as the loop does beside the prompt
            round = drafted_round(trace, trace.drafts[begin], plan, room)
            if trace.block > 1:
                round = replace(round, passes=min(round.passes, 1))
            new_tokens = min(round.accepted + 1, len(trace.target_ids) - begin)
            seconds = round.passes * costs.draft_seconds, costs.verification(round.width)
            if room > 0:
                rule.end(replace(round, draft_seconds=seconds[0], target_seconds=seconds[1], reads_prompt=not begin))
            total.add(begin, len(round.drafted), round.accepted, new_tokens, sum(seconds), costs.verification(1))
            begin += new_tokens
    return total


def drafted_round(trace: Trace, draft: Draft, plan: Plan, room: int) -> Round:
    """What a plan makes of the longest draft at a position, without its times.

    Raises:
        ValueError: if it may draft more than the trace holds.
    """
    longest = max((token.position for token in draft.tokens), default=0)
    is_short = plan.cap is not None and 0 < longest < plan.cap  # none at all: the draft had nothing to read yet
    is_short = is_short and (trace.block == 1 or longest < trace.block)  # a block is all that there can be
    if room > 0 and is_short and not draft.ended and draft.parents is None:
        raise ValueError(
            f"the rule may draft {plan.cap} tokens, but the traces hold drafts of {longest}: record longer ones, or "
            "bound the rule"
        )
    limit = min(longest if plan.cap is None else plan.cap, room)
    if draft.parents is not None:
        return tree_round(draft, plan, limit)
    drafted = []
    for token in draft.tokens[:limit]:
        drafted.append(token)
        if not plan.goes_on(trace.seen(drafted)):
            break
    ended = draft.ended and len(drafted) == len(draft.tokens)
    accepted = min(draft.accepted, len(drafted))
    return Round(trace.seen(drafted), accepted, ended or 0 < len(drafted) == room)


def tree_round(draft: Draft, plan: Plan, limit: int) -> Round:
    """What a plan makes of the tree at a position; a chain follows the first choices."""
    nodes: list[Node] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        nodes.append(Node(0, None if parent < 0 else nodes[parent], token))
    children: dict[int | None, list[Node]] = {}
    for node in nodes:
        if node.token.rank <= plan.branches:
            children.setdefault(None if node.parent is None else id(node.parent), []).append(node)
    level, grown, passes = children.get(None, []) if limit > 0 else [], [], 0
    while level:
        passes += 1
        grown += level
        wanted = plan.expand(level)  # at the limit too: it gives nodes their survival
        if level[0].token.position >= limit:
            break
        level = [child for node in wanted for child in children.get(id(node), ())]
    [taken] = plan.take([grown]) if plan.chooses else [grown]
    number = {id(node): i for i, node in enumerate(taken)}
    parents = [-1 if node.parent is None else number[id(node.parent)] for node in taken]
    on_path = {id(nodes[i]) for i in draft.path}
    path = [i for i, node in enumerate(taken) if id(node) in on_path]
    tokens = [node.token for node in taken]
    return Round(tokens, len(path), parents=parents, path=path, passes=passes)


def oracle(traces: Iterable[Trace], costs: CostProfile) -> Replay:
    """Hindsight: chains of the tokens that will be accepted, where that pays (Lemma 2.1 of arXiv 2405.19715)."""
    total, plain = Replay(), costs.verification(1)
    for trace in traces:
        begin = 0
        while begin < len(trace.target_ids):
            most = min(trace.drafts[begin].accepted_first, len(trace.target_ids) - begin - 1)
            rounds = [costs.round(math.ceil(k / trace.block), k + 1) for k in range(most + 1)]
            length = max(range(most + 1), key=lambda k: (k + 1) - rounds[k] / plain)
            total.add(begin, length, length, length + 1, rounds[length], plain)
            begin += length + 1
    return total
