"""Records, at every position of the target's own output, what a long draft would have been. `replay` reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, set_seed

from .acceptance import AcceptanceHead, AcceptanceHeadConfig, token_features
from .acceptance.layer import Listener
from .candidate_generator import SpecDecPP
from .decoding import Decoding, draw_beside
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


def states_path(path: Path, number: int) -> Path:
    return path.with_suffix(".states") / f"{number:05}.safetensors"


def read_states(path: Path) -> list[Tensor]:
    """The hidden states that belong to the traces in `path`, for `judged`."""
    return [load_file(states_path(path, n))["states"] for n in range(len(path.read_text().splitlines()))]


class _Everything(StoppingRule):
    """Looks at all that a rule may look at, and stops at `length` tokens only."""

    def __init__(self, length: int, with_head: bool):
        self.length = length
        self.needs = frozenset({"probability", "entropy"} | ({"acceptance"} if with_head else set()))

    def begin(self) -> int:
        return self.length


class _Recorder(SpecDecPP):
    """Drafts along the target's output; when sampling, beside its tokens (`draw_beside`).

    Beyond the first rejection tokens are drawn from the draft alone.
    """

    decoding: Decoding
    target_ids: Tensor  # (n,)
    target_logits: Tensor | None  # (n, vocab_size), when sampling
    states: list[Tensor]  # of the draft before each drafted token, (hidden_size,)

    def _see(self, newest: Tensor, logits: Tensor, processed: Tensor, listener: Listener | None) -> bool:
        if listener is not None:
            self.states.append(listener.hidden_states[0, -1].half().cpu())
        return super()._see(newest, logits, processed, listener)

    def _draw(self, sequence: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        at = sequence.shape[1] - self.prompt_length
        begin = at - len(self.drafted)
        followed = torch.equal(sequence[0, self.prompt_length + begin :], self.target_ids[begin:at])
        if not self.do_sample or not followed or at >= len(self.target_ids):
            return super()._draw(sequence, logits)
        here = slice(at, at + 1)
        q, p = (self.decoding.probabilities(each) for each in (logits, self.target_logits[here].to(logits)))
        return draw_beside(q, p, self.target_ids[here])[:, None], self.processors(sequence, logits)


@torch.no_grad()
def record_trace(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    input_ids: Tensor,
    decoding: Decoding,
    max_new_tokens: int,
    max_draft_length: int = 20,
) -> tuple[Trace, Tensor | None]:
    """Generates with the target, then drafts at every position.

    Args:
        draft (`PreTrainedModel`): with or without an acceptance head; without one, the traces serve rules that need
            none.
        input_ids (`torch.LongTensor` of shape `(1, length)`): the prompt.
        max_draft_length (`int`): longest draft recorded; rules with a larger bound cannot be replayed.

    Returns:
        The trace, and with a head, for `judged`, the hidden state of the draft before each drafted token
        (`torch.HalfTensor` of shape `(drafted tokens, hidden_size)`).
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
    recorder.decoding, recorder.prompt_length, recorder.states = decoding, length, []
    recorder.target_ids = target_ids.to(draft.device)
    recorder.target_logits = torch.cat(output.logits) if decoding.do_sample else None
    drafts = []
    for begin in range(len(target_ids)):
        candidate_ids, _ = recorder.get_candidates(output.sequences[:, : length + begin])
        drafted, left = candidate_ids[0, length + begin :], target_ids[begin:]
        most = min(len(drafted), len(left))
        accepted = int((drafted[:most] == left[:most]).cumprod(0).sum())
        drafts.append(Draft(recorder.drafted, accepted, recorder.stop_reason == "end_of_sequence"))
    trace = Trace(target_ids.tolist(), max_new_tokens, drafts)
    if recorder.head_config is None:
        return trace, None
    return replace(trace, judged_late=recorder.head_config.reads == "after"), torch.stack(recorder.states)


@torch.no_grad()
def judged(trace: Trace, states: Tensor, head: AcceptanceHead, config: AcceptanceHeadConfig) -> Trace:
    """`trace` as it would be with another head on the draft, whose tokens do not depend on it.

    Args:
        states: see `record_trace`.
    """
    tokens = [token for draft in trace.drafts for token in draft.tokens]
    facts = ([getattr(token, name) for token in tokens] for name in ("probability", "entropy", "position"))
    features = token_features(config.features, *(torch.tensor(values) for values in facts))
    late = config.reads == "after"
    if late:  # the state after a token is the one before the next
        states = torch.cat((states[1:], states[-1:]))
    probabilities = torch.sigmoid(config.acceptance_logits(head(states[None], features[None])))[0].tolist()
    drafts, first = [], 0
    for draft in trace.drafts:
        own = probabilities[first : first + len(draft.tokens)]
        first += len(draft.tokens)
        pairs = zip(draft.tokens, [*own[:-1], None] if late else own, strict=True)
        new = [replace(token, acceptance=p if p is None else round(p, 5)) for token, p in pairs]
        drafts.append(replace(draft, tokens=new))
    return replace(trace, drafts=drafts, judged_late=late)


def record_traces(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: list[list[int]],
    path: Path,
    decoding: Decoding,
    max_new_tokens: int,
    max_draft_length: int = 20,
    on_prompt: Callable[[], None] = lambda: None,
    keep_states: bool = False,
) -> None:
    """Appends a trace for each prompt to the JSONL file `path`; those that it holds already are not made again.

    Args:
        prompts: token ids. The n-th is generated with the seed n, so a killed run goes on to the same file.
        on_prompt: called after each prompt.
        keep_states (`bool`): keep the draft's hidden states beside it, see `read_states`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    path.write_text("".join(whole))  # a killed run's half line goes
    for number, prompt in enumerate(prompts):
        if number >= len(whole):
            set_seed(number)
            ids = torch.tensor([prompt], device=target.device)
            trace, states = record_trace(target, draft, ids, decoding, max_new_tokens, max_draft_length)
            if keep_states:
                states_path(path, number).parent.mkdir(exist_ok=True)
                save_file({"states": states}, states_path(path, number))
            with path.open("a") as file:
                file.write(trace.to_json() + "\n")
        on_prompt()
