"""Runs transformers' own assisted decoding with a candidate generator of the caller's choice.

The loop is transformers'. It asks `self` for its candidate generator, so it is given a view of the target that answers
with ours: nothing is set on the user's model, and threads do not meet.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteriaList
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.utils import ModelOutput

from ..evidence.statistics import GenerationStatistics, active_statistics
from ..stopping import DraftedToken, Round
from .checks import check_processors, check_target

CandidateGeneratorFactory = Callable[..., CandidateGenerator]


class TargetView:
    """The target, except that it says which candidate generator to use."""

    def __init__(self, target: PreTrainedModel, candidate_generator: CandidateGeneratorFactory, **extra: Any):
        self._target = target
        self._candidate_generator = candidate_generator
        self._extra = extra

    def __getattr__(self, name: str):
        return getattr(self._target, name)

    def __call__(self, *args, **kwargs):
        return self._target(*args, **kwargs)

    def _get_candidate_generator(self, **kwargs) -> CandidateGenerator:
        generator = self._candidate_generator(**accepted_by(self._candidate_generator, kwargs | self._extra))
        return Counted(generator, active_statistics()) if active_statistics() else generator


class Counted(CandidateGenerator):
    """A candidate generator whose rounds are told to statistics."""

    def __init__(self, generator: CandidateGenerator, statistics: Sequence[GenerationStatistics]):
        self._generator, self._statistics = generator, statistics

    def __getattr__(self, name: str):
        return getattr(self._generator, name)

    @property
    def requires_model_outputs(self) -> bool:
        return self._generator.requires_model_outputs

    def get_candidates(self, input_ids: torch.LongTensor, **kwargs) -> tuple[torch.LongTensor, Tensor | None]:
        self._begin, self._length = time.perf_counter(), input_ids.shape[1]
        candidate_ids, candidate_logits = self._generator.get_candidates(input_ids, **kwargs)
        self._drafted_ids = candidate_ids[0, self._length :].tolist()
        self._drafted = time.perf_counter()
        return candidate_ids, candidate_logits

    def update_candidate_strategy(self, input_ids: torch.LongTensor, scores: Tensor, num_matches: int) -> None:
        new_ids = input_ids[0, self._length :].tolist()
        # A rejected token is never its own replacement, so equal tokens are accepted ones.
        pairs = zip(self._drafted_ids, new_ids, strict=False)
        accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        round = Round(
            [DraftedToken(place) for place in range(1, len(self._drafted_ids) + 1)], accepted,
            draft_seconds=self._drafted - self._begin, target_seconds=time.perf_counter() - self._drafted,
            new_tokens=len(new_ids), stop_reason=getattr(self._generator, "stop_reason", None),
        )  # fmt: skip
        for statistics in self._statistics:
            statistics.hear(round)
        self._generator.update_candidate_strategy(input_ids, scores, num_matches)


def accepted_by(factory: CandidateGeneratorFactory, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those of `kwargs` that the signature of `factory` names (all, if it takes any)."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


class ExactStop(StoppingCriteria, BaseStreamer):
    """Stops at the first token at which plain decoding would have stopped.

    The loop appends a whole accepted run and only then asks the stopping criteria, so stop strings, time limits and
    the caller's own criteria can be overrun. This stands between: as streamer it learns how many tokens are new, as
    criterion it asks the real criteria token by token, and hands the real streamer only what stays.
    """

    def __init__(self, criteria: StoppingCriteriaList, streamer: BaseStreamer | None):
        self.criteria = criteria
        self.streamer = streamer
        self.new_tokens = 0
        self.length: int | None = None

    def put(self, value: Tensor) -> None:
        self.new_tokens = value.shape[-1]

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()

    def __call__(self, input_ids: Tensor, scores: tuple | None, **kwargs) -> Tensor:
        total = input_ids.shape[1]
        stop = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        start = total - self.new_tokens
        # transformers 5.17 also asks about candidates, before they are verified: then no token is new.
        for length in range(start + 1, total + 1):
            # Scores, where they are kept, are one per generated token: leave those of later tokens out.
            seen = scores if scores is None or length == total else scores[: length - total]
            stop = self.criteria(input_ids[:, :length], seen, **kwargs)
            if stop.all():
                self.length = length
                break
        if self.new_tokens and self.streamer is not None:
            self.streamer.put(input_ids[:, start : self.length].cpu())
        self.new_tokens = 0
        return stop

    def trim(self, output: Tensor | ModelOutput):
        """`output` without the tokens, and what belongs to them, after the one that stopped the generation."""
        sequences = output if isinstance(output, Tensor) else output.sequences
        if self.length is None or self.length == sequences.shape[1]:
            return output
        extra = sequences.shape[1] - self.length
        for statistics in active_statistics():
            statistics.trim(extra)
        if isinstance(output, Tensor):
            return output[:, : self.length]
        output.sequences = sequences[:, : self.length]
        for name in ("scores", "logits", "attentions", "hidden_states"):
            if output.get(name) is not None:
                output[name] = output[name][:-extra]
        if output.past_key_values is not None:
            output.past_key_values.crop(-extra)
        return output


def assisted_decoding(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor,
    stopping_criteria: StoppingCriteriaList,
    generation_config,
    candidate_generator: CandidateGeneratorFactory,
    assistant_model: PreTrainedModel | None = None,
    streamer: BaseStreamer | None = None,
    stopping_config: Any = None,
    **model_kwargs,
):
    """Generates with `model`, verifying what `candidate_generator` proposes.

    Args:
        model (`PreTrainedModel`): the target.
        input_ids (`torch.LongTensor` of shape `(1, length)`): the prompt.
        candidate_generator: a subclass of `CandidateGenerator` or a function that returns one. It is called with those
            of these keywords that its signature names: `input_ids`, `assistant_model`, `generation_config`,
            `model_kwargs`, `inputs_tensor`, `logits_processor`, `target_config`, `target_model` and, if given,
            `stopping_config`.
        logits_processor, stopping_criteria, generation_config, model_kwargs: prepared by `generate`. A processor must
            be a function of ids and scores: it is called for tokens that are drafted and thrown away.

    Returns:
        What `generate` returns: `torch.LongTensor` of shape `(1, length + generated)` or a `ModelOutput`.

    Raises:
        ValueError: for what assisted decoding cannot do: encoder-decoder, recurrent and prompt-tuned targets, several
            sequences, beams, embeddings for ids, caches that are static or hold tokens, processors that keep state.
    """
    check_target(model, input_ids, generation_config, model_kwargs)
    check_processors(logits_processor)
    if len(input_ids) > 1:
        raise ValueError(
            f"transformers' assisted decoding generates one sequence at a time, got {len(input_ids)} (the batch times "
            "num_return_sequences): call generate for each, or take SpecDecPP without attentions and hidden states"
        )
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError(
            f"past_key_values holds {cache.get_seq_length()} tokens already, which transformers' assisted decoding "
            "would read again: leave it out, or take SpecDecPP without attentions and hidden states"
        )
    extra = {"target_config": model.config, "target_model": model}
    if stopping_config is not None:
        extra["stopping_config"] = stopping_config
    exact_stop = None
    if not all(isinstance(c, (MaxLengthCriteria, EosTokenCriteria)) for c in stopping_criteria):
        exact_stop = ExactStop(stopping_criteria, streamer)
        stopping_criteria, streamer = StoppingCriteriaList([exact_stop]), exact_stop
    output = type(model)._assisted_decoding(
        TargetView(model, candidate_generator, **extra),
        input_ids,
        logits_processor=logits_processor,
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        streamer=streamer,
        inputs_tensor=input_ids,
        assistant_model=assistant_model,
        **model_kwargs,
    )
    return output if exact_stop is None else exact_stop.trim(output)
