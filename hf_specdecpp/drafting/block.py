"""Proposals of a draft that says a block of tokens in one pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..stopping import Plan
from .draft import Draft, Node
from .judge import ConfidenceJudge
from .model import Behind, ModelDrafter


class BlockDrafter(ModelDrafter):
    """Drafts with a DFlash or DSpark draft.

    One pass says what may stand in all places of a block; what is drawn in one only shifts the next by DSpark's bias.
    Places are drawn from and judged in their order, as a model's tokens are, so no token decides whether it is itself
    verified. The pass reads the text by the target's states of it, and what it knows of a block is forgotten each
    round.

    Args:
        model (`PreTrainedModel`): a `DFlashForCausalLM`.
        args: of `ModelDrafter`, but for the engine: one pass reads texts and blocks, which have no few widths.
    """

    def __init__(self, model: PreTrainedModel, *args):
        super().__init__(model, *args)
        self.model, self.reach = model, model.config.drafted
        self.engine.windows = {"full_attention": None}  # windows of a block begin at its first token, which it knows

    def grow(self, plans: list[Plan]) -> Draft:
        draft = super().grow(plans)
        draft.passes = min(draft.passes, 1)
        return draft

    def _catch_up(self, rows: list[int]) -> Behind:
        """Reads what the texts have that the draft has not, and the block."""
        config, going = self.model.config, self.sequences.going
        texts, taps = [self.sequences.texts[row] for row in going], self.taps.take()
        counts = [len(own) for own in taps]
        longest, masks = max(counts), [config.mask_token_id] * (config.block_size - 1)
        if not any(self.engine.lengths):
            first = len(texts[0]) - 1 - counts[0]  # token that there are states of
            self.engine.padding = [max(self.sequences.padding[row] - first, 0) for row in going]
        # What is read by its states alone needs no name.
        tokens = torch.tensor([[0] * longest + [text[-1], *masks] for text in texts])
        parents = None
        if any(count < longest for count in counts):
            parents = torch.arange(-1, tokens.shape[1] - 1).repeat(len(texts), 1)
            parents[:, longest] = torch.tensor(counts) - 1
        self.said = self.engine.read(tokens, parents, taps=pad_sequence(taps, batch_first=True))
        self.engine.keep([list(range(count)) for count in counts])
        newest = torch.tensor([texts[row][-1] for row in rows])
        memory = None
        if not config.sample_from_anchor:  # the memory begins at the first place all the same
            memory = self._in_place(0, newest, rows, None).own
        return self._in_place(self._place(0), newest, rows, memory)

    def _read(self, nodes: list[Node], drawn: Tensor | None) -> Behind:
        tokens = torch.tensor([node.id for node in nodes])
        memory = None if nodes[0].fed is None else torch.stack([node.fed for node in nodes])
        return self._in_place(self._place(nodes[0].token.position), tokens, [node.row for node in nodes], memory)

    def _behind_all(self, tokens: Tensor, own: Tensor | None, depth: int) -> Behind:
        return self._in_place(self._place(depth), tokens[:, 0], list(range(len(tokens))), own)

    def _place(self, depth: int) -> int:
        """Of what stands behind `depth` drafted tokens."""
        return depth + (not self.model.config.sample_from_anchor)

    def _in_place(self, place: int, previous: Tensor, rows: list[int], memory: Tensor | None) -> Behind:
        """What stands in a place of the block of each of `rows`, behind the tokens `previous`, (n,)."""
        logits, states = self.said.logits[rows, place], self.said.own[rows, place]
        logits, memory = self.model.biased(logits, previous.to(states.device), states, memory)
        heard = None if self.said.states is None or self.judge is None else self.said.states[rows, place]
        if isinstance(self.judge, ConfidenceJudge):
            heard = self.model.confidence(previous.to(states.device), states)[:, None]
        return Behind(logits.to(self.sequences.device).float(), heard, memory)
