"""Proposals of a draft model, chains or trees, judged by an acceptance head where it carries one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..decoding.engine import Engine, Pass
from ..decoding.law import Law, best
from ..decoding.sequences import Sequences
from ..decoding.taps import Taps
from ..stopping import DraftedToken, Plan
from .draft import Draft, Node
from .judge import Judge


@dataclass
class Behind:
    """What the draft has behind `n` places.

    Attributes:
        logits (`torch.FloatTensor` of shape `(n, vocab_size)`): in the target's vocabulary.
        states (`torch.Tensor` of shape `(n, hidden_size)`, *optional*): what its acceptance head reads.
        own (`torch.Tensor` of shape `(n, hidden_size)`, *optional*): what it reads beside the next token.
    """

    logits: Tensor
    states: Tensor | None
    own: Tensor | None


Place = tuple[int, Node | None]  # a row of those that go on, and what is drafted behind: its text, or a drafted token


class ModelDrafter:
    """Drafts with a causal language model that speaks the target's vocabulary.

    Each level of a tree costs one pass of the draft over the nodes that the plan expands. A chain expands one node a
    level, so a pass a token, and the tokens are those of the authors' loop.

    Args:
        needs (`frozenset[str]`): fields of `DraftedToken` that the rule reads.
        max_context (`float`): the most tokens that the model can read.
        eos (`set[int]`): tokens behind which nothing is drafted.
        taps (`Taps`, *optional*): the target's states, for a draft that reads them. It then reads every token of a
            text beside those of the token before, from the second that there are states of, and what it drafts beside
            its own, which is forgotten each round.
        engine: what makes the engine that the model runs in.
    """

    reach: ClassVar[float] = math.inf  # the longest path that it can draft

    def __init__(
        self,
        model: PreTrainedModel,
        law: Law,
        sequences: Sequences,
        needs: frozenset[str],
        judge: Judge | None,
        max_context: float,
        eos: set[int],
        taps: Taps | None = None,
        engine: Callable[[PreTrainedModel, list[int]], Engine] = Engine,
    ):
        self.law, self.sequences, self.judge, self.max_context, self.eos = law, sequences, judge, max_context, eos
        self.taps = taps
        self.needs = needs | (set(judge.config.features) if judge else set())
        self.own_vocab_size = model.config.get_text_config().vocab_size
        self.engine = engine(model, list(sequences.padding))

    @property
    def unread(self) -> int:
        rows = zip(self.sequences.going, self.engine.lengths, strict=True)
        return max(self.sequences.length(row) - read - 1 for row, read in rows)

    def draft(self, plans: list[Plan]) -> Draft:
        draft = self.grow(plans)
        taken(draft, plans)
        return draft

    def grow(self, plans: list[Plan]) -> Draft:
        """`draft` before the plans choose what is verified."""
        going = self.sequences.going
        own = [self.max_context - self.sequences.length(row) + self.sequences.padding[row] + 1 for row in going]
        rooms = [min(room, most) for room, most in zip(self.sequences.rooms(), own, strict=True)]
        caps = [self.reach if plan.cap is None else min(plan.cap, self.reach) for plan in plans]
        limits = [min(cap, room) for cap, room in zip(caps, rooms, strict=True)]
        draft = Draft([[] for _ in plans], ["no_room" if room < 1 else "no_draft" for room in rooms])
        frontier: list[Place] = [(row, None) for row, limit in enumerate(limits) if limit > 0]
        # Beside the prompt, in the first round, the target has read nothing yet that a draft could read.
        if not frontier or (self.taps is not None and not self.sequences.generated(going[0])):
            return draft
        behind = self._catch_up([row for row, _ in frontier])
        if all(plan.is_blind for plan in plans) and self.law.is_blind and not self.needs:
            return self._blind_chain(frontier, behind, limits, rooms, plans, draft)
        while frontier:
            draft.passes += 1
            children, tokens = self._children(frontier, behind, plans[frontier[0][0]].branches, draft)
            frontier = self._expanded(children, plans, limits, rooms, draft)
            if frontier:
                drawn = tokens if tokens.shape == (len(frontier), 1) == (len(plans), 1) else None
                behind = self._read([node for _, node in frontier], drawn)
        return draft

    def commit(self, paths: list[list[Node]], tokens: Tensor, logits: Tensor) -> None:
        if self.taps is not None:
            paths = [[]] * len(paths)
        self.engine.keep([[node.read_as for node in path if node.read_as is not None] for path in paths])

    def leave(self, going: list[int]) -> None:
        self.engine.leave(going)

    def _catch_up(self, rows: list[int]) -> Behind:
        """Reads what the texts have that the draft has not; returns what is behind the texts of `rows`."""
        texts = [self.sequences.texts[row] for row in self.sequences.going]
        inputs = {}
        if self.taps is None:
            unread = [text[length:] for text, length in zip(texts, self.engine.lengths, strict=True)]
        else:
            taps = self.taps.take()
            unread = [text[-len(own) :] for text, own in zip(texts, taps, strict=True)]
            inputs["taps"] = pad_sequence(taps, batch_first=True)
            if not any(self.engine.lengths):
                first = len(texts[0]) - len(unread[0]) - 1  # token that there are states of
                self.engine.padding = [max(self.sequences.padding[row] - first, 0) for row in self.sequences.going]
        longest = max(map(len, unread))
        even = all(len(new) == longest for new in unread)
        tokens = torch.tensor([new + new[-1:] * (longest - len(new)) for new in unread])
        last = sorted({len(new) - 1 for new in unread})
        seen = self.engine.read(self._own(tokens), keep=1 if even else last, **inputs)
        self.engine.keep([list(range(len(new))) for new in unread])
        if even and len(rows) == len(texts):
            return self._behind(seen)
        return self._behind(seen, rows, [last.index(len(unread[row]) - 1) for row in rows])

    def _read(self, nodes: list[Node], drawn: Tensor | None) -> Behind:
        """Reads `nodes`, sorted by row; returns what is behind each.

        Args:
            drawn (`torch.LongTensor` of shape `(rows, 1)`, *optional*): them, where each row has one.
        """
        rows, base = len(self.engine.lengths), self.engine.fresh
        of_rows: list[list[Node]] = [[] for _ in range(rows)]
        for node in nodes:
            node.read_as = base + len(of_rows[node.row])
            of_rows[node.row].append(node)
        width = max(map(len, of_rows))
        inputs = {}
        if self.taps is not None:
            fed = torch.stack([node.fed for node in nodes])
            places = [node.row * width + node.read_as - base for node in nodes]
            inputs["states"] = spread(fed, places, rows * width).view(rows, width, -1)
        parents = [[-1 if n.parent is None else n.parent.read_as for n in own] for own in of_rows]
        is_chain = width == 1 and all(own in ([], [base - 1]) for own in parents)
        padded = None if is_chain else torch.tensor([own + [-1] * (width - len(own)) for own in parents])
        if drawn is not None:
            return self._behind(self.engine.read(self._own(drawn), padded, **inputs))
        tokens = torch.tensor([[n.id for n in own] + [0] * (width - len(own)) for own in of_rows])
        seen = self.engine.read(self._own(tokens), padded, **inputs)
        return self._behind(seen, [node.row for node in nodes], [node.read_as - base - width for node in nodes])

    def _behind_all(self, tokens: Tensor, own: Tensor | None, depth: int) -> Behind:
        """Reads in every row the token that was drafted behind `depth - 1` others, (rows, 1), beside `own`."""
        inputs = {} if own is None else {"states": own[:, None]}
        return self._behind(self.engine.read(self._own(tokens), **inputs))

    def _own(self, tokens: Tensor) -> Tensor:
        """`tokens` as the draft may read them: if it is padded less, the target may say a token that it lacks."""
        small = self.own_vocab_size < self.law.vocab_size
        return tokens.clamp(max=self.own_vocab_size - 1) if small else tokens

    def _behind(self, seen: Pass, rows: list[int] | None = None, places: list[int] | None = None) -> Behind:
        """What is behind some tokens of a pass, behind each row's last if none are named. Places count among those of
        which the pass kept logits."""
        at = (slice(None), -1) if rows is None else (rows, places)
        states = None if seen.states is None or self.judge is None else seen.states[at]
        logits = in_vocabulary(seen.logits[at].to(self.sequences.device), self.law.vocab_size)
        return Behind(logits, states, None if seen.own is None else seen.own[at])

    def _blind_chain(
        self,
        frontier: list[Place],
        behind: Behind,
        limits: list[int],
        rooms: list[int],
        plans: list[Plan],
        draft: Draft,
    ) -> Draft:
        """Chains up to their limits, all on the device: nobody looks at their tokens before the target does."""
        rows = [self.sequences.going[row] for row in range(len(plans))]
        found = []
        for depth in range(1, max(limits) + 1):
            draft.passes += 1
            if len(behind.logits) < len(plans):  # rows without room draft along, for nobody
                places = [row for row, _ in frontier]
                own = None if behind.own is None else spread(behind.own, places, len(plans))
                behind = Behind(spread(behind.logits, places, len(plans)), None, own)
            scores = self.law.processed(behind.logits, rows, lambda: [])
            tokens, q = self.law.ranked(scores, rows, [depth - 1] * len(rows))
            found.append(tokens)
            for row, limit in enumerate(limits):
                if depth <= limit:
                    parent = draft.nodes[row][-1] if draft.nodes[row] else None
                    node = Node(row, parent, DraftedToken(depth))
                    draft.nodes[row].append(node)
                    node.read_as = depth - 1 if depth < max(limits) else None
                    if q is not None and self.law.noise is None:
                        draft.q[id(node)] = q[row]
            if depth < max(limits):
                behind = self._behind_all(tokens, behind.own, depth)
        for row, limit in enumerate(limits):
            if limit > 0:
                draft.stop_reasons[row] = "max_length" if limit == rooms[row] else plans[row].cap_reason
        draft.tokens = torch.cat(found, dim=-1)
        return draft

    def _children(
        self, frontier: list[Place], behind: Behind, branches: int, draft: Draft
    ) -> tuple[list[Node], Tensor]:
        """Draws behind each place of `frontier`; all that the host must know comes to it in one transfer."""
        logits, states = behind.logits, behind.states
        rows = [self.sequences.going[row] for row, _ in frontier]
        paths = [[] if node is None else node.path for _, node in frontier]
        scores = self.law.processed(logits, rows, lambda: [[node.id for node in path] for path in paths])
        raw = logits.softmax(-1) if self.needs & {"probability", "entropy"} else None
        facts: dict[str, Tensor] = {}
        if self.law.do_sample:
            tokens, q = self.law.ranked(scores, rows, [len(path) for path in paths], branches)
            if "probability" in self.needs:
                facts["probability"] = q.gather(-1, tokens)
        elif "probability" in self.needs:
            q, (facts["probability"], tokens) = None, best(raw if scores is logits else scores.softmax(-1), branches)
        else:
            q, tokens = None, best(scores, branches)[1]
        facts["id"] = tokens  # beside others it becomes a float32, which is exact up to 16 million
        entropy = torch.special.entr(raw).sum(-1, keepdim=True) if "entropy" in self.needs else None
        if entropy is not None:
            facts["entropy"] = entropy if branches == 1 else entropy.expand_as(tokens)
        if self.judge and not self.judge.is_late:
            nothing = facts["id"]
            raw_logits = self.judge(
                states, facts.get("probability", nothing), nothing if entropy is None else entropy,
                [len(path) + 1 for path in paths],
            )  # fmt: skip
            facts["acceptance"] = raw_logits.to(tokens.device)
        elif self.judge and frontier[0][1] is not None:
            facts["late"] = self._judged_late(states, [node.token for _, node in frontier]).expand_as(facts["id"])
        values = dict(zip(facts, torch.stack(list(facts.values())).tolist(), strict=True))
        children = []
        for number, (row, parent) in enumerate(frontier):
            if "late" in values:
                acceptance = self.judge.calibrated(values["late"][number][0])
                parent.token = replace(parent.token, acceptance=acceptance)
            for rank in range(branches):
                seen = {name: values[name][number][rank] for name in ("probability", "entropy") if name in values}
                if "acceptance" in values:
                    seen["acceptance"] = self.judge.calibrated(values["acceptance"][number][rank])
                token = DraftedToken(len(paths[number]) + 1, **seen, rank=rank + 1)
                child = Node(row, parent, token, int(values["id"][number][rank]))
                if behind.own is not None:
                    child.fed = behind.own[number]
                children.append(child)
                draft.nodes[row].append(child)
                if q is not None and self.law.noise is None:
                    draft.q[id(child)] = q[number]
        return children, tokens

    def _judged_late(self, states: Tensor, tokens: list[DraftedToken]) -> Tensor:
        """Raw logits of acceptance of tokens that were read, (n, 1)."""
        facts = ([[getattr(token, name) or 0.0] for token in tokens] for name in ("probability", "entropy"))
        probability, entropy = (torch.tensor(values, device=states.device) for values in facts)
        judged = self.judge(states, probability, entropy, [token.position for token in tokens])
        return judged.to(self.sequences.device)

    def _expanded(
        self, children: list[Node], plans: list[Plan], limits: list[int], rooms: list[int], draft: Draft
    ) -> list[Place]:
        """The children behind which more is drafted; why nothing is behind the others is noted."""
        grown = []
        for plan in dict.fromkeys(plans):
            own = [node for node in children if plans[node.row] is plan]
            wanted = {id(node) for node in plan.expand(own)} if own else set()
            for node in own:
                row, depth = node.row, node.token.position
                if node.id in self.eos:
                    draft.stop_reasons[row] = "end_of_sequence"
                elif depth >= limits[row]:
                    draft.stop_reasons[row] = "max_length" if depth >= rooms[row] else plan.cap_reason
                elif id(node) in wanted:
                    grown.append((row, node))
                else:
                    draft.stop_reasons[row] = plan.reason
        return sorted(grown, key=lambda place: place[0])


def taken(draft: Draft, plans: list[Plan]) -> None:
    """Leaves in `draft` those of its nodes that the plans find worth verifying.

    Under rejection sampling all are verified: leaving one out for what it is would bias the output.
    """
    for plan in dict.fromkeys(plans):
        if plan.chooses and not draft.q:
            rows = [row for row, other in enumerate(plans) if other is plan]
            for row, nodes in zip(rows, plan.take([draft.nodes[row] for row in rows]), strict=True):
                draft.nodes[row] = list(nodes)


def spread(found: Tensor, rows: list[int], count: int) -> Tensor:
    """`found`, (n, ...), as `rows` of `count`; zeros elsewhere."""
    if rows == list(range(count)):
        return found
    return found.new_zeros(count, *found.shape[1:]).index_copy(0, torch.tensor(rows, device=found.device), found)


def in_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """The draft's `logits` in the target's vocabulary, (..., own_vocab_size) -> (..., vocab_size) in float32."""
    missing = vocab_size - logits.shape[-1]
    if missing > 0:
        return F.pad(logits.float(), (0, missing), value=torch.finfo(torch.float32).min)
    return (logits[..., :vocab_size] if missing else logits).float()
