"""What a head reads to learn: rows of labels as batches. The draft reads nothing that it would not read when drafting.

`"before"` a token the draft has read the accepted prefix, so one pass over the response yields the states of all its
positions. `"after"` it, the token itself ends that prefix: each drawn token becomes a branch of its own, which sees
the prompt, the response before it, and itself, in one pass with a mask of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..acceptance import states_at, token_features
from .labels import Rows

UNLABELLED = -1.0  # in `acceptance`, at padding and where the input is not the draft's own token


@dataclass(frozen=True)
class HeadInputs:
    """Collates rows of labels.

    Args:
        mode (`str`): the decoding mode whose tokens are judged.
        rows (`Rows`): the procedure that the rows were made by.
        reads (`str`), features (`Sequence[str]`): of the head, see `AcceptanceHeadConfig`.
        label (`str`): `"acceptance"` of the drawn token, or `"overlap"`, its expectation over the draw.
        stored (`bool`): take the hidden states that the rows hold, instead of what the draft must read for them.
    """

    mode: str
    rows: Rows
    reads: str = "after"
    features: Sequence[str] = ()
    label: str = "acceptance"
    stored: bool = False

    @property
    def columns(self) -> list[str]:
        """Those of the rows that are read."""
        kinds = ["drawn", "probability", self.label] + ["mixed"] * (self.rows.procedure == "specdec++")
        states = [self.reads] if self.stored else []
        return ["prompt_ids", "response_ids", "entropy", *(f"{self.mode}_{kind}" for kind in kinds + states)]

    def __call__(self, rows: Sequence[dict]) -> dict[str, Tensor]:
        """A batch for `AcceptanceHeadModel.forward(acceptance_only=True)`, and `acceptance`, (batch, tokens)."""
        batch = {
            "acceptance": padded([self.labels(row) for row in rows], UNLABELLED),
            "features": padded([self.row_features(row) for row in rows], 0.0),
        }
        if self.stored:
            return batch | {"hidden_states": padded([self.row_states(row) for row in rows], 0.0)}
        return batch | self.passes(rows)

    def drawn(self, row: dict, kind: str = "drawn") -> Tensor:
        return torch.tensor(row[f"{self.mode}_{kind}"])

    def labels(self, row: dict) -> Tensor:
        labels = self.drawn(row, self.label)
        if self.rows.procedure == "on-policy":
            return labels
        own = ~self.drawn(row, "mixed") | (self.drawn(row) == ids(row, "response_ids"))
        return torch.where(own, labels, UNLABELLED)

    def row_features(self, row: dict) -> Tensor:
        entropy = torch.tensor(row["entropy"])
        position = places_in_rounds(self.drawn(row) == ids(row, "response_ids"))
        return token_features(self.features, self.drawn(row, "probability"), entropy, position)

    def row_states(self, row: dict) -> Tensor:
        flat = self.drawn(row, self.reads)
        return flat.view(len(row["response_ids"]), -1)

    def passes(self, rows: Sequence[dict]) -> dict[str, Tensor]:
        """What the decoder reads, and where in it the states of the tokens are."""
        branches = self.rows.procedure == "on-policy" and self.reads == "after"
        sequences, positions, places, branch_of = [], [], [], []
        for row in rows:
            prompt, response, drawn = ids(row, "prompt_ids"), ids(row, "response_ids"), self.drawn(row).long()
            first, read = len(prompt), response
            if self.rows.procedure == "specdec++":
                read = torch.where(self.drawn(row, "mixed"), response, drawn)
            tokens = torch.arange(len(response)) + first
            sequences.append(torch.cat((prompt, read, drawn)) if branches else torch.cat((prompt, read)))
            own = torch.arange(first + len(response))
            positions.append(torch.cat((own, tokens)) if branches else own)
            places.append(tokens + (len(response) if branches else -1 if self.reads == "before" else 0))
            branch_of.append(torch.cat((torch.full_like(own, -1), tokens)))
        input_ids, position_ids = padded(sequences, 0), padded(positions, 0)
        mask = torch.arange(input_ids.shape[1]) < torch.tensor([[len(s)] for s in sequences])
        batch = {"input_ids": input_ids, "position_ids": position_ids, "places": padded(places, 0)}
        if not branches:
            return batch | {"attention_mask": mask.long()}
        # A token sees what stands before it in the response's own line, and itself.
        trunk = padded(branch_of, 0) == -1
        before = position_ids[:, None, :] < position_ids[:, :, None]
        seen = (trunk & mask)[:, None, :] & before | torch.eye(input_ids.shape[1], dtype=torch.bool)
        return batch | {"attention_mask": seen}


def add_states(draft: PreTrainedModel, rows: list[dict], inputs: HeadInputs) -> None:
    """Stores in each of `rows` the draft's hidden states of its tokens, flat, in float16.

    Raises:
        ValueError: if float16 cannot hold them.
    """
    passes = {name: tensor.to(draft.device) for name, tensor in inputs.passes(rows).items()}
    states = states_at(draft, **passes).half().cpu()
    if not states.isfinite().all():
        raise ValueError(
            "the draft's hidden states are too large for float16: label without states, training then runs the draft"
        )
    for row, own in zip(rows, states, strict=True):
        row[f"{inputs.mode}_{inputs.reads}"] = own[: len(row["response_ids"])].flatten().numpy()


def places_in_rounds(accepted: Tensor) -> Tensor:
    """Each token's place in its round, from 1, where rounds draft until a rejection, (n,) bool -> (n,)."""
    index = torch.arange(len(accepted))
    rejections = torch.where(accepted, -1, index)
    last = torch.cat((torch.tensor([-1]), rejections[:-1])).cummax(0).values
    return index - last


def ids(row: dict, name: str) -> Tensor:
    return torch.tensor(row[name]).long()


def padded(tensors: list[Tensor], value: float) -> Tensor:
    """(batch, longest, ...), padded on the right."""
    return pad_sequence(tensors, batch_first=True, padding_value=value)
