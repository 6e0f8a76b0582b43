"""Draft, verify, commit, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..drafting.draft import Draft
from ..drafting.drafter import Drafter
from ..stopping import ONE_TEXT, Experience, Plan, Round, Scope, StoppingRule
from .ending import Ending
from .engine import Engine, chain
from .law import Law
from .outputs import Outputs
from .sequences import Sequences
from .static import Running
from .verify import verified


@dataclass
class Speculation:
    """One generation.

    Attributes:
        rules (`list[StoppingRule]`): of each row of the batch; rows may share one.
        listeners: called with what happened in each round of each row.
        experience (`Experience`, *optional*): is told each round before the rules are.
        scope (`Scope`): what a round may be, whatever the number of rows that go on.
        running (`Running`): how the models run.
    """

    target: Engine
    drafter: Drafter
    rules: list[StoppingRule]
    law: Law
    sequences: Sequences
    ending: Ending
    outputs: Outputs
    listeners: list[Callable[[Round], None]]
    experience: Experience | None = None
    scope: Scope = ONE_TEXT
    running: Running = field(default_factory=Running)
    draft_is_new: bool = True  # it reads the prompt in its first pass
    is_new: bool = True  # the target does so in its own
    graphs: int = 0  # compiled before this round: one that compiles shows no costs

    @torch.no_grad()
    def run(self, prompt: Tensor) -> None:
        """Texts grow until all have ended.

        Args:
            prompt (`torch.LongTensor` of shape `(rows, n)`): what the target has not read of the texts.
        """
        before = prompt[:, :-1]
        while self.sequences.going:
            begin = time.perf_counter()
            draft = self.drafter.draft(self._plans())
            drafted = time.perf_counter()
            tokens, parents = self._newest_and(draft)
            newest = before.shape[1]
            if newest and parents is not None:
                parents = torch.cat((chain(0, newest, len(parents)), newest + parents), dim=-1)
            logits = self.target.read(
                torch.cat((before.to(tokens.device), tokens), dim=-1), parents, keep=1 + draft.most
            ).logits
            self._advance(draft, tokens, logits, begin, drafted, newest)
            before, self.is_new = before[: len(self.sequences.going), :0], False
        self.ending.trim()
        self.law.leave()

    def _plans(self) -> list[Plan]:
        """Of each row that goes on; rows that share a rule share its plan. Beside the prompt they plan chains."""
        rules = [self.rules[row] for row in self.sequences.going]
        if self.is_new and self.running.width is not None:  # the prompt's pass is as wide as plain decoding's
            return [Plan(cap=0)] * len(rules)
        scope = replace(self.scope, unread=self.drafter.unread)
        if self.is_new:
            scope = replace(scope, branches=1)
        plans = {rule: rule.plan(replace(scope, rows=rules.count(rule))) for rule in dict.fromkeys(rules)}
        return [plans[rule] for rule in rules]

    def _newest_and(self, draft: Draft) -> tuple[Tensor, Tensor | None]:
        """What the target reads: the newest token of each text, the draft behind it, and parents if it branches."""
        newest = self.sequences.newest()
        if not draft.most:
            return newest, None
        tokens = torch.cat((newest.to(draft.ids().device), draft.ids()), dim=-1)
        if draft.is_chain:
            return tokens, None
        padded = [own + [-1] * (draft.most - len(own)) for own in draft.parents]
        return tokens, torch.tensor([[-1, *(parent + 1 for parent in own)] for own in padded])

    def _advance(self, draft: Draft, read: Tensor, logits: Tensor, begin: float, drafted: float, newest: int) -> None:
        """From what the target says to longer texts: verify, append until the end, keep, tell, leave.

        Args:
            read (`torch.LongTensor` of shape `(rows, n)`): the newest token of each text and the draft.
            logits (`torch.Tensor` of shape `(rows, n, vocab_size)`): what the target says behind each.
            begin (`float`), drafted (`float`): when drafting began and ended.
            newest (`int`): the number of the text's last token among those that the target just read.
        """
        logits = logits.to(self.sequences.device, torch.float32)
        paths, tokens, scores = verified(draft, logits, self.law)
        counts = []
        for number, row in enumerate(self.sequences.going):
            self.outputs.add(row, [0, *(node + 1 for node in paths[number])], scores[number], logits[number])
            counts.append(self.ending.append(row, tokens[number], self.outputs.scores(row)))
            self.outputs.cut(row, self.sequences.generated(row))
        paths = [path[:count] for path, count in zip(paths, counts, strict=True)]
        # A text's last token is not read: it is the target's own, or the accepted one that ended the text.
        kept = [path[: count - 1] for path, count in zip(paths, counts, strict=True)]
        self.target.keep([[*range(newest + 1), *(newest + 1 + node for node in path)] for path in kept])
        self.drafter.commit([[draft.nodes[i][node] for node in path] for i, path in enumerate(kept)], read, logits)
        self._tell(draft, paths, counts, drafted - begin, time.perf_counter() - drafted)
        going = [i for i, row in enumerate(self.sequences.going) if not self.ending.is_done(row)]
        if going and len(going) < len(counts):
            self.target.leave(going)
            self.drafter.leave(going)
        self.sequences.going = [self.sequences.going[i] for i in going]
        if going:
            self.law.passed()

    def _tell(
        self, draft: Draft, paths: list[list[int]], counts: list[int], draft_seconds: float, target_seconds: float
    ) -> None:
        """Gives the record of the round to the rule and to whoever listens; the first row's holds the time of all."""
        is_first = draft.passes > 0 and self.draft_is_new
        is_timed, self.graphs = self.running.graphs == self.graphs, self.running.graphs
        for number, row in enumerate(self.sequences.going):
            reason, first = draft.stop_reasons[number], number == 0 and is_timed
            round = Round(
                [node.token for node in draft.nodes[number]], len(paths[number]),
                censored=reason in ("end_of_sequence", "max_length"),
                draft_seconds=draft_seconds if first else None, target_seconds=target_seconds if first else None,
                parents=None if draft.is_chain else draft.parents[number], path=paths[number],
                new_tokens=counts[number], rows=len(counts), passes=draft.passes, width=1 + draft.most,
                reads_prompt=is_first or self.is_new, stop_reason=reason,
            )  # fmt: skip
            if self.experience is not None:
                self.experience.hear(round)
            if reason != "no_room":
                self.rules[row].end(round)
            for listener in self.listeners:
                listener(round)
        self.draft_is_new = self.draft_is_new and not draft.passes
