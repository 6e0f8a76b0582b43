"""Proposals of a draft model, chains or trees, judged by an acceptance head where it carries one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from ..acceptance import AcceptanceHeadConfig, AcceptanceHeadLayer, token_features
from ..decoding.engine import Engine
from ..decoding.law import Law
from ..decoding.sequences import Sequences
from ..stopping import DraftedToken, Plan
from .draft import Draft, Node


class Judge:
    """The draft's active acceptance head."""

    def __init__(self, layer: AcceptanceHeadLayer, config: AcceptanceHeadConfig):
        self.layer, self.config = layer, config
        self.is_late = config.reads == "after"

    def __call__(self, states: Tensor, probability: Tensor, entropy: Tensor, position: Tensor) -> Tensor:
        """Probabilities of acceptance, (n, k), of tokens drawn from or read into `states`, (n, hidden_size)."""
        features = token_features(self.config.features, probability, entropy, position)
        states = states[:, None].expand(-1, probability.shape[1], -1)
        return torch.sigmoid(self.layer.acceptance_logits(states, features))


class ModelDrafter:
    """Drafts with a causal language model that speaks the target's vocabulary.

    Each level of a tree costs one pass of the draft over the nodes that the plan expands. A chain expands one node a
    level, so a pass a token, and the tokens are those of the authors' loop.

    Args:
        needs (`frozenset[str]`): fields of `DraftedToken` that the rule reads.
        max_context (`float`): the most tokens that the model can read.
        eos (`set[int]`): tokens behind which nothing is drafted.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        law: Law,
        sequences: Sequences,
        needs: frozenset[str],
        judge: Judge | None,
        max_context: float,
        eos: set[int],
    ):
        self.law, self.sequences, self.judge, self.max_context, self.eos = law, sequences, judge, max_context, eos
        self.needs = needs | (set(judge.config.features) if judge else set())
        self.vocab_size, self.own_vocab_size = law.vocab_size, model.config.get_text_config().vocab_size
        self.engine = Engine(model, list(sequences.padding))

    def draft(self, plans: list[Plan]) -> Draft:
        going = self.sequences.going
        own = [self.max_context - self.sequences.length(row) + self.sequences.padding[row] + 1 for row in going]
        rooms = [min(room, most) for room, most in zip(self.sequences.rooms(), own, strict=True)]
        limits = [room if plan.cap is None else min(plan.cap, room) for plan, room in zip(plans, rooms, strict=True)]
        draft = Draft([[] for _ in plans], ["no_room" if room < 1 else "no_draft" for room in rooms])
        frontier: list[tuple[int, Node | None]] = [(row, None) for row, limit in enumerate(limits) if limit > 0]
        if not frontier:
            return draft
        logits, states = self._catch_up([row for row, _ in frontier])
        while frontier:
            draft.passes += 1
            children = self._children(frontier, logits, states, plans[frontier[0][0]].branches, draft)
            frontier = self._expanded(children, plans, limits, rooms, draft)
            if frontier:
                logits, states = self._read([node for _, node in frontier])
        return self._taken(draft, plans)

    def commit(self, paths: list[list[Node]]) -> None:
        self.engine.keep([[node.read_as for node in path if node.read_as is not None] for path in paths])

    def leave(self, going: list[int]) -> None:
        self.engine.leave(going)

    def _catch_up(self, rows: list[int]) -> tuple[Tensor, Tensor | None]:
        """Reads what the texts have that the draft has not; returns logits and states behind the texts of `rows`."""
        texts = [self.sequences.texts[row] for row in self.sequences.going]
        unread = [text[length:] for text, length in zip(texts, self.engine.lengths, strict=True)]
        longest = max(map(len, unread))
        tokens = torch.tensor([new + new[-1:] * (longest - len(new)) for new in unread])
        even = all(len(new) == longest for new in unread)
        seen = self.engine.read(self._own(tokens), keep=1 if even else longest)
        self.engine.keep([list(range(len(new))) for new in unread])
        if even:
            return self._found(seen.logits[rows, -1], seen.states if seen.states is None else seen.states[rows, -1])
        at = [len(unread[row]) - 1 for row in rows]
        return self._found(seen.logits[rows, at], seen.states if seen.states is None else seen.states[rows, at])

    def _read(self, nodes: list[Node]) -> tuple[Tensor, Tensor | None]:
        """Reads `nodes`, sorted by row; returns logits and states behind each."""
        rows, base = len(self.engine.lengths), self.engine.parents.shape[1]
        of_rows: list[list[Node]] = [[] for _ in range(rows)]
        for node in nodes:
            node.read_as = base + len(of_rows[node.row])
            of_rows[node.row].append(node)
        width = max(map(len, of_rows))
        tokens = torch.tensor([[n.id for n in own] + [0] * (width - len(own)) for own in of_rows])
        parents = [[-1 if n.parent is None else n.parent.read_as for n in own] for own in of_rows]
        chain = width == 1 and all(own in ([], [base - 1]) for own in parents)
        seen = self.engine.read(
            self._own(tokens), None if chain else torch.tensor([own + [-1] * (width - len(own)) for own in parents])
        )
        at = [node.row for node in nodes], [node.read_as - base for node in nodes]
        return self._found(seen.logits[at], seen.states if seen.states is None else seen.states[at])

    def _own(self, tokens: Tensor) -> Tensor:
        """`tokens` as the draft may read them: it may be padded less than the target, which may say a padding token."""
        return tokens.clamp(max=self.own_vocab_size - 1) if self.own_vocab_size < self.vocab_size else tokens

    def _found(self, logits: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return in_vocabulary(logits, self.vocab_size), states

    def _children(
        self, frontier: list[tuple[int, Node | None]], logits: Tensor, states: Tensor | None, branches: int, draft: Draft
    ) -> list[Node]:
        """Draws behind each node of `frontier`; all that the host must know comes to it in one transfer."""
        rows = [self.sequences.going[row] for row, _ in frontier]
        paths = [[] if node is None else node.path for _, node in frontier]
        scores = self.law.processed(logits, rows, lambda: [[node.id for node in path] for path in paths])
        tokens, q = self.law.ranked(scores, rows, [len(path) for path in paths], branches)
        facts: dict[str, Tensor] = {"id": tokens}
        raw = logits.softmax(-1) if self.needs & {"probability", "entropy"} else None
        if "probability" in self.needs:
            p = q if q is not None else raw if scores is logits else scores.softmax(-1)
            facts["probability"] = p.gather(-1, tokens)
        if "entropy" in self.needs:
            facts["entropy"] = torch.special.entr(raw).sum(-1, keepdim=True).expand_as(tokens)
        if self.judge and not self.judge.is_late:
            facts["acceptance"] = self._judged(states, facts, [len(path) + 1 for path in paths])
        elif self.judge and frontier[0][1] is not None:
            own = [node.token for _, node in frontier]
            seen = {
                name: states.new_tensor([[getattr(token, name) or 0.0] for token in own], dtype=torch.float)
                for name in ("probability", "entropy")
            }
            facts["late"] = self._judged(states, seen, [token.position for token in own]).expand_as(tokens)
        values = torch.stack([fact.double() for fact in facts.values()]).tolist()
        found = dict(zip(facts, values, strict=True))
        children = []
        for number, (row, parent) in enumerate(frontier):
            for rank in range(tokens.shape[1]):
                seen = {name: found[name][number][rank] for name in DRAFTED if name in found}
                token = DraftedToken(len(paths[number]) + 1, **seen, rank=rank + 1)
                child = Node(row, parent, token, int(found["id"][number][rank]))
                children.append(child)
                draft.nodes[row].append(child)
                if q is not None and self.law.noise is None:
                    draft.q[id(child)] = q[number]
            if "late" in found:
                parent.token = replace_acceptance(parent.token, found["late"][number][0])
        return children

    def _judged(self, states: Tensor, facts: dict[str, Tensor], positions: list[int]) -> Tensor:
        nothing = states.new_zeros(len(states), 1, dtype=torch.float)
        probability = facts.get("probability", nothing)
        position = torch.tensor(positions, device=states.device)[:, None].expand_as(probability)
        return self.judge(states, probability, facts.get("entropy", nothing.expand_as(probability)), position)

    def _expanded(
        self, children: list[Node], plans: list[Plan], limits: list[int], rooms: list[int], draft: Draft
    ) -> list[tuple[int, Node]]:
        """The children behind which more is drafted; why the others are not is noted."""
        grown = []
        for plan in dict.fromkeys(plans):
            own = [node for node in children if plans[node.row] is plan]
            expanded = plan.expand(own) if own else []
            wanted = {id(node) for node in expanded}
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
        return sorted(grown, key=lambda pair: pair[0])

    def _taken(self, draft: Draft, plans: list[Plan]) -> Draft:
        """`draft` with those of its nodes that the plans find worth verifying."""
        for plan in dict.fromkeys(plans):
            rows = [row for row, other in enumerate(plans) if other is plan]
            if plan.branches > 1 and not draft.q:
                taken = plan.take([draft.nodes[row] for row in rows])
                for row, nodes in zip(rows, taken, strict=True):
                    draft.nodes[row] = nodes
        return draft


DRAFTED = ("probability", "entropy", "acceptance")


def replace_acceptance(token: DraftedToken, acceptance: float) -> DraftedToken:
    return DraftedToken(token.position, token.probability, token.entropy, acceptance, token.rank)


def in_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """The draft's `logits` in the target's vocabulary, (..., own_vocab_size) -> (..., vocab_size) in float32."""
    missing = vocab_size - logits.shape[-1]
    if missing > 0:
        return F.pad(logits.float(), (0, missing), value=torch.finfo(torch.float32).min)
    return logits[..., :vocab_size].float()
