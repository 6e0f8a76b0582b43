"""The texts of a generation: token ids on the device for who reads tensors, and on the host for who reads lists."""

from __future__ import annotations

import torch
from torch import Tensor


class Sequences:
    """The texts of all rows of a batch, prompts included; finished rows leave.

    Args:
        input_ids (`torch.LongTensor` of shape `(rows, length)`): the prompts, padded on the left.
        padding (`list[int]`): for each row, how many of its first tokens are padding.
        max_length (`int`): the most tokens that a text may have.
        most (`int`, *optional*): tokens that may be drafted in a round.
    """

    def __init__(self, input_ids: Tensor, padding: list[int], max_length: int, most: int | None = None):
        self.device, self.prompt_length, self.max_length = input_ids.device, input_ids.shape[1], max_length
        self.texts: list[list[int]] = input_ids.tolist()
        self.padding, self.most = padding, most
        self.going = list(range(len(padding)))  # of the rows of the batch, those that go on
        self.room = input_ids

    def length(self, row: int) -> int:
        """Of a row of the batch, padding included."""
        return len(self.texts[row])

    def generated(self, row: int) -> int:
        return len(self.texts[row]) - self.prompt_length

    def rooms(self) -> list[int]:
        """How many tokens may still be drafted in each row that goes on: one place is the target's own."""
        rooms = [self.max_length - self.length(row) - 1 for row in self.going]
        return rooms if self.most is None else [min(room, self.most) for room in rooms]

    def ids(self, row: int) -> Tensor:
        """A row's text, (length,)."""
        return self.room[row, : self.length(row)]

    def newest(self) -> Tensor:
        """The last token of each row that goes on, (rows, 1), on the host."""
        return torch.tensor([[self.texts[row][-1]] for row in self.going])

    def append(self, row: int, tokens: list[int]) -> None:
        begin = self.length(row)
        self.texts[row] += tokens
        end = begin + len(tokens)
        if end > self.room.shape[1]:
            longer = self.room.new_zeros(len(self.room), end + max(end // 2, 64))
            longer[:, : self.room.shape[1]] = self.room
            self.room = longer
        self.room[row, begin:end] = torch.tensor(tokens, device=self.device)

    def output(self, pad_token_id: int) -> Tensor:
        """What `generate` returns, (rows, longest)."""
        longest = max(map(len, self.texts))
        return torch.tensor([text + [pad_token_id] * (longest - len(text)) for text in self.texts], device=self.device)
