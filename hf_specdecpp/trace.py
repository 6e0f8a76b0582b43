"""Records, at every position of the target's own output, what a long draft would have been. `replay` reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, set_seed

from .candidate_generator import SpecDecPP
from .decoding import Decoding
from .stopping import DraftedToken, StoppingConfig, StoppingRule


@dataclass(frozen=True)
class Draft:
    """The longest draft at one position: its tokens as a rule sees them, and how many of them the target accepts.

    `ended` says that the last one ends the sequence.
    """

    tokens: list[DraftedToken]
    accepted: int
    ended: bool = False


@dataclass(frozen=True)
class Trace:
    """One generation of the target.

    Attributes:
        target_ids (`list[int]`): the generated tokens.
        max_new_tokens (`int`): the bound that the generation had.
        drafts (`list[Draft]`): the draft that begins after `i` generated tokens, for every `i`.
        judged_late (`bool`): the head judged each token in the pass that drew the next.
    """

    target_ids: list[int]
    max_new_tokens: int
    drafts: list[Draft]
    judged_late: bool = False

    def seen(self, drafted: list[DraftedToken]) -> list[DraftedToken]:
        """What a rule sees of `drafted` when the last of them is the newest."""
        return [*drafted[:-1], replace(drafted[-1], acceptance=None)] if self.judged_late and drafted else drafted

    def to_json(self) -> str:
        """One line; floats survive exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Trace:
        fields = json.loads(line)
        drafts = [
            Draft([DraftedToken(**token) for token in d["tokens"]], d["accepted"], d["ended"])
            for d in fields.pop("drafts")
        ]
        return cls(**fields, drafts=drafts)


def read_traces(path: Path) -> list[Trace]:
    """The traces of a JSONL file."""
    return [Trace.from_json(line) for line in path.read_text().splitlines()]


class _Everything(StoppingRule):
    """Looks at all that a rule may look at, and stops at `length` tokens only."""

    def __init__(self, length: int, with_head: bool):
        self.length = length
        self.needs = frozenset({"probability", "entropy"} | ({"acceptance"} if with_head else set()))

    def begin(self) -> int:
        return self.length


class _Recorder(SpecDecPP):
    """Drafts along the target's output; when sampling, beside its tokens (`Decoding.draw_beside`).

    Beyond the first rejection tokens are drawn from the draft alone.
    """

    decoding: Decoding
    target_ids: Tensor  # (n,)
    target_logits: Tensor | None  # (n, vocab_size), when sampling

    def _draw(self, sequence: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        at = sequence.shape[1] - self.prompt_length
        begin = at - len(self.drafted)
        followed = torch.equal(sequence[0, self.prompt_length + begin :], self.target_ids[begin:at])
        if not self.do_sample or not followed or at >= len(self.target_ids):
            return super()._draw(sequence, logits)
        here = slice(at, at + 1)
        drawn = self.decoding.draw_beside(logits, self.target_logits[here].to(logits), self.target_ids[here])
        return drawn[:, None], self.processors(sequence, logits)


@torch.no_grad()
def record_trace(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    input_ids: Tensor,
    decoding: Decoding,
    max_new_tokens: int,
    max_draft_length: int = 20,
) -> Trace:
    """Generates with the target, then drafts at every position.

    Args:
        draft (`PreTrainedModel`): with or without an acceptance head; without one, the traces serve rules that need
            none.
        input_ids (`torch.LongTensor` of shape `(1, length)`): the prompt.
        max_draft_length (`int`): longest draft recorded; rules with a larger bound cannot be replayed.
    """
    output = target.generate(
        input_ids, attention_mask=torch.ones_like(input_ids), max_new_tokens=max_new_tokens,
        return_dict_in_generate=True, output_logits=decoding.do_sample, **decoding.generate_kwargs(),
    )  # fmt: skip
    length = input_ids.shape[1]
    target_ids = output.sequences[0, length:]
    config = GenerationConfig(**decoding.generate_kwargs())
    config.update(**target.generation_config.to_diff_dict(), defaults_only=True)
    config.update(**config._get_default_generation_params(), defaults_only=True)
    config.max_length = length + len(target_ids) + max_draft_length + 1
    settings = StoppingConfig(rule="fixed", settings={"length": max_draft_length}, max_draft_length=max_draft_length)
    recorder = _Recorder(
        input_ids, draft, config, {}, logits_processor=decoding.processors(), stopping_config=settings,
        target_config=target.config,
    )  # fmt: skip
    recorder.follow(_Everything(max_draft_length, with_head=recorder.head_config is not None))
    recorder.decoding, recorder.prompt_length = decoding, length
    recorder.target_ids = target_ids.to(draft.device)
    recorder.target_logits = torch.cat(output.logits) if decoding.do_sample else None
    drafts = []
    for begin in range(len(target_ids)):
        candidate_ids, _ = recorder.get_candidates(output.sequences[:, : length + begin])
        drafted, left = candidate_ids[0, length + begin :], target_ids[begin:]
        most = min(len(drafted), len(left))
        accepted = int((drafted[:most] == left[:most]).cumprod(0).sum())
        drafts.append(Draft(recorder.drafted, accepted, recorder.stop_reason == "end_of_sequence"))
    late = recorder.head_config is not None and recorder.head_config.reads == "after"
    return Trace(target_ids.tolist(), max_new_tokens, drafts, late)


def record_traces(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: list[list[int]],
    path: Path,
    decoding: Decoding,
    max_new_tokens: int,
    max_draft_length: int = 20,
    on_prompt: Callable[[], None] = lambda: None,
) -> None:
    """Appends a trace for each prompt to the JSONL file `path`; those that it holds already are not made again.

    Args:
        prompts: token ids. The n-th is generated with the seed n, so a killed run goes on to the same file.
        on_prompt: called after each prompt.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    path.write_text("".join(whole))  # a killed run's half line goes
    for number, prompt in enumerate(prompts):
        if number >= len(whole):
            set_seed(number)
            ids = torch.tensor([prompt], device=target.device)
            trace = record_trace(target, draft, ids, decoding, max_new_tokens, max_draft_length)
            with path.open("a") as file:
                file.write(trace.to_json() + "\n")
        on_prompt()
