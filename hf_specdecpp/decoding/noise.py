"""The random numbers that plain sampling would use at each position, drawn ahead and kept until they are passed."""

from __future__ import annotations

import torch
from torch import Tensor


class Noise:
    """The noise of every step of plain `generate(do_sample=True)` of a batch.

    `torch.multinomial(p, 1)`, which plain decoding calls once a step for all rows, is `argmax(p / E)` with one draw
    `E` of exponential variables of the shape of `p`. Whoever takes `argmax(q / E)` with the same `E` draws from `q`
    as plain decoding does from `p` (Gumbel coupling; Daliri, Musco and Suresh, arXiv 2408.07978).

    Args:
        rows (`int`): of the whole batch, whether they go on or not.
    """

    most_kept = 64  # draws; those of positions further ahead are made again from the generator's state

    def __init__(self, rows: int, vocab_size: int, device: torch.device):
        self.shape, self.device = (rows, vocab_size), device
        self.generator = default_generator(device)
        self.first = 0
        self.states = [self.generator.get_state()]  # before the draw of step first, first + 1, ...
        self.drawn: dict[int, Tensor] = {}

    def at(self, step: int) -> Tensor:
        """The noise of a step, (rows, vocab_size)."""
        while step - self.first >= len(self.states) - 1:
            self._draw(len(self.states) - 1 + self.first)
            self.states.append(self.generator.get_state())
        if step not in self.drawn:
            newest = self.generator.get_state()
            self.generator.set_state(self.states[step - self.first])
            self._draw(step)
            self.generator.set_state(newest)
        return self.drawn[step]

    def of(self, rows: list[int], steps: list[int]) -> Tensor:
        """The noise of some rows, each at a step of its own, (n, vocab_size)."""
        if len(rows) == 1 == self.shape[0]:
            return self.at(steps[0])
        return torch.stack([self.at(step)[row] for row, step in zip(rows, steps, strict=True)])

    def forget(self, step: int) -> None:
        """All rows have passed the steps before `step`."""
        for passed in range(self.first, step):
            self.drawn.pop(passed, None)
        self.states, self.first = self.states[step - self.first :], max(step, self.first)

    def leave(self, step: int) -> None:
        """Puts the generator where plain decoding of `step` steps leaves it."""
        if step - self.first >= len(self.states):
            self.at(step - 1)
        self.generator.set_state(self.states[step - self.first])

    def _draw(self, step: int) -> None:
        noise = torch.empty(self.shape, device=self.device).exponential_(generator=self.generator)
        self.drawn[step] = noise
        if len(self.drawn) > self.most_kept:
            del self.drawn[max(other for other in self.drawn if other != step)]


def default_generator(device: torch.device) -> torch.Generator:
    """The one that `torch.manual_seed` seeds and that a draw on `device` takes."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = torch.get_device_module(device)
    return module.default_generators[module.current_device() if device.index is None else device.index]
