"""Runs methods in turn, A B C A B C, on every prompt; a row says what a generation took."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from ..evidence.files import Lines
from ..evidence.statistics import GenerationStatistics, collect_stats
from .methods import Method, draft_settings

COUNTED = 0  # the repeat that warms up and counts; its seconds are used only where there is no other


@dataclass(frozen=True)
class Row:
    """One generation.

    Attributes:
        set (`str`), prompt (`int`), repeat (`int`), method (`str`): which one.
        seconds (`float`), new_tokens (`int`): of the whole call of `generate`.
        ids (`list[int]`, *optional*): the new tokens; of the counted repeat only, as are the following.
        statistics (`GenerationStatistics`, *optional*): its rounds.
        peak_bytes (`int`, *optional*): most memory held, of the GPU, else of the process; on Linux only.
        first_difference (`int`, *optional*): the first new token that differs from plain decoding's.
        logit_gap (`float`, *optional*): by how much the target's logit of plain's token exceeds that of the other
            there, in a pass over plain's tokens before it. Next to nothing is a tie that rounding decided.
    """

    set: str
    prompt: int
    repeat: int
    method: str
    seconds: float
    new_tokens: int
    ids: list[int] | None = None
    statistics: GenerationStatistics | None = None
    peak_bytes: int | None = None
    first_difference: int | None = None
    logit_gap: float | None = None

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.set, self.prompt, self.repeat, self.method

    def to_json(self) -> str:
        """One line, without what is not known."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        if self.statistics:
            counts = self.statistics
            known["statistics"] = {field.name: getattr(counts, field.name) for field in fields(counts)}
        return json.dumps(known)

    @classmethod
    def from_json(cls, line: str) -> Row:
        fields = json.loads(line)
        if "statistics" in fields:
            counts = fields["statistics"]
            for name in ("drafted_at", "accepted_at"):
                counts[name] = {int(position): n for position, n in counts[name].items()}
            counts = {name: Counter(value) if isinstance(value, dict) else value for name, value in counts.items()}
            fields["statistics"] = GenerationStatistics(**counts)
        return cls(**fields)


class Bench:
    """Generates with one target, draft and way of decoding.

    Args:
        settings (`dict`): keywords of `generate` that all methods share.
    """

    def __init__(self, target: PreTrainedModel, draft: PreTrainedModel, settings: dict[str, Any]):
        self.target, self.draft, self.settings = target, draft, settings

    def run(self, method: Method, prompt: Tensor, seed: int = 0, **more: Any) -> tuple[list[int], float]:
        """The new tokens of one generation, and its seconds."""
        set_seed(seed)
        keywords = self.settings | method.keywords | more
        with draft_settings(self.draft, method.drafting):
            start = time.perf_counter()
            output = self.target.generate(prompt, attention_mask=torch.ones_like(prompt), **keywords)
            new_tokens = output[0, prompt.shape[1] :].tolist()
            return new_tokens, time.perf_counter() - start

    def count(self, method: Method, prompt: Tensor, seed: int = 0) -> dict[str, Any]:
        """The same generation with its rounds counted: fields of a `Row`."""
        known = reset_peak(self.target.device)
        with collect_stats() as statistics:
            ids, seconds = self.run(method, prompt, seed, **(method.counted or {}))
        if method.counted is None:
            statistics = GenerationStatistics(rounds=len(ids), tokens=len(ids), target_seconds=seconds)
        return {
            "seconds": seconds, "new_tokens": len(ids), "ids": ids, "statistics": statistics,
            "peak_bytes": peak(self.target.device) if known else None,
        }  # fmt: skip

    @torch.no_grad()
    def difference(self, prompt: Tensor, plain: list[int], ids: list[int]) -> dict[str, Any]:
        """Where `ids` leave plain decoding, and how close the target's choice was there: fields of a `Row`."""
        if ids == plain:
            return {}
        shorter = min(len(ids), len(plain))
        first = next((i for i in range(shorter) if ids[i] != plain[i]), shorter)
        if first == shorter:
            return {"first_difference": first}
        sequence = torch.cat((prompt, prompt.new_tensor([plain[:first]])), dim=-1)
        logits = self.target(sequence).logits[0, -1].float()
        return {"first_difference": first, "logit_gap": (logits[plain[first]] - logits[ids[first]]).item()}


def measure(
    bench: Bench,
    methods: list[Method],
    prompts: dict[str, list[Tensor]],
    repeats: int,
    done: Iterable[Row] = (),
    deadline: float | None = None,
    first_repeat: int = COUNTED,
) -> Iterator[Row]:
    """Generates what is not `done`, and says what it took, row by row.

    A prompt goes through all repeats before the next one's turn, and the sets take turns, so that a run cut short has
    seen whole prompts of every set. Each prompt begins with another method, so that none always follows the same one.
    Every repeat has the same seed, so that the counted repeat counts what is timed.

    Args:
        prompts: of each set, token ids `(1, length)`.
        deadline (`float`, *optional*): no prompt is begun that would not be finished by then, of `time.monotonic()`;
            two are in any case.
        first_repeat (`int`): `COUNTED`, or 1 to time only.
    """
    known = {row.key: row for row in done}
    turns = [
        (number, name)
        for number in range(max(map(len, prompts.values())))
        for name, ids in prompts.items()
        if number < len(ids)
    ]
    longest = 0.0
    for number, name in turns:
        begun = time.monotonic()
        if deadline is not None and number >= 2 and begun + longest > deadline:
            return
        prompt = prompts[name][number]
        for repeat in range(first_repeat, repeats + 1):
            waiting: list[Row] = []  # until it is known what plain decoding says
            for method in (*methods[number % len(methods) :], *methods[: number % len(methods)]):
                row = Row(name, number, repeat, method.name, 0.0, 0)
                if row.key in known:
                    continue
                if repeat == COUNTED:
                    row = replace(row, **bench.count(method, prompt, number))
                else:
                    ids, seconds = bench.run(method, prompt, number)
                    row = replace(row, seconds=seconds, new_tokens=len(ids))
                known[row.key] = row
                waiting.append(row)
                plain = known.get((name, number, COUNTED, "plain"))
                if repeat == COUNTED and plain is None and any(method.name == "plain" for method in methods):
                    continue
                for row in waiting:
                    if repeat == COUNTED and plain is not None and not bench.settings.get("do_sample"):
                        row = replace(row, **bench.difference(prompt, plain.ids, row.ids))
                    yield row
                waiting = []
        longest = max(longest, time.monotonic() - begun)


def obstacle(bench: Bench, method: Method, prompt: Tensor) -> str | None:
    """Warms `method` up by one generation; why it does not run on this machine, if it does not.

    Args:
        prompt: the longest of the run, so that what is compiled for its length serves all.
    """
    try:
        bench.run(method, prompt)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        sentences, *_ = str(error).strip().split("\n\n")  # what follows is torch's advice on debugging itself
        return f"{type(error).__name__}: {' '.join(sentences.split())[:300]}"


def resume(path: Path, header: dict[str, Any]) -> tuple[list[Row], Callable[[Row], None]]:
    """The rows that a killed run left in the JSONL file `path`, and a function that appends another.

    Raises:
        ValueError: if they are of a run with other settings than `header` says.
    """
    lines = Lines(path, header, f"{str(path)!r} holds a run")
    try:
        rows = [Row.from_json(line) for line in lines.found]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{str(path)!r} holds a line that is no row of this version: give another --output"
        ) from error
    return rows, lambda row: lines.append(row.to_json())


def reset_peak(device: torch.device) -> bool:
    """Begins a new measurement of the most memory held; returns whether this machine lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")  # of Linux only, and some containers refuse it
    except OSError:
        return False
    return True


def peak(device: torch.device) -> int:
    """The most memory held since `reset_peak`, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
