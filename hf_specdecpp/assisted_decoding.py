"""Runs transformers' own assisted decoding with a candidate generator of the caller's choice.

The loop is transformers'. It asks `self` for its candidate generator, so it is given a view of the target that answers
with ours: nothing is set on the user's model, and threads do not meet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import LogitsProcessorList, PretrainedConfig, PreTrainedModel, StaticCache, StoppingCriteriaList
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.utils import ModelOutput

from .statistics import active_statistics

CandidateGeneratorFactory = Callable[..., CandidateGenerator]

# Classes of logits processors, and packages of them, that keep state from call to call: SynthID hashes the tokens that
# it saw, unbatched guidance has a cache of its own, the packages follow a grammar by one token a call.
STATEFUL_PROCESSORS = {"SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"}
STATEFUL_PACKAGES = {"outlines", "transformers_cfg", "xgrammar"}


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
        for statistics in active_statistics():
            statistics.watch(generator)
        return generator


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


def check_target(model: PreTrainedModel, input_ids: Tensor, generation_config, model_kwargs: dict) -> None:
    """Raises `ValueError` with the reason if assisted decoding cannot serve this call."""
    name = type(model).__name__
    config: PretrainedConfig = model.config
    if config.is_encoder_decoder:
        raise ValueError(f"the target, a {name}, is an encoder-decoder model: only decoder-only models are supported")
    if model._is_stateful:
        raise ValueError(f"the target, a {name}, keeps a recurrent state that cannot be rolled back")
    if generation_config.num_beams > 1:
        raise ValueError(f"num_beams={generation_config.num_beams}: assisted decoding has one beam, leave it out")
    if input_ids.shape[0] > 1:
        raise ValueError(
            f"assisted decoding generates one sequence at a time, got {input_ids.shape[0]} (the batch times "
            "num_return_sequences): call generate once for each"
        )
    if is_prompt_tuned(getattr(model.prepare_inputs_for_generation, "__self__", None)):
        raise ValueError(
            f"the target, a {name}, is tuned by virtual tokens (prompt or prefix tuning), which assisted decoding "
            "cannot serve: use an adapter that changes weights, such as LoRA, or decode without candidate_generator"
        )
    if model_kwargs.get("inputs_embeds") is not None or input_ids.shape[1] == 0:
        raise ValueError("the prompt came as inputs_embeds, which the draft cannot read: give input_ids alone")
    if not generation_config.use_cache:
        raise ValueError("use_cache=False: assisted decoding rolls the target's cache back, leave use_cache on")
    cache = model_kwargs.get("past_key_values")
    if isinstance(cache, StaticCache):
        raise ValueError(
            "a static cache cannot be rolled back: leave cache_implementation out, or pass a DynamicCache"
        )
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError(
            f"past_key_values holds {cache.get_seq_length()} tokens already, which the loop would read again: "
            "leave it out and give the whole text as input_ids"
        )


def check_processors(processors: LogitsProcessorList) -> None:
    """Raises `ValueError` for a logits processor that is known to keep state, which drafted tokens would disturb."""
    for processor in processors:
        classes = type(processor).__mro__
        packages = {c.__module__.partition(".")[0] for c in classes}
        if STATEFUL_PROCESSORS & {c.__name__ for c in classes} or STATEFUL_PACKAGES & packages:
            raise ValueError(
                f"the logits processor {type(processor).__name__} keeps state from call to call, which drafted tokens "
                "would disturb: leave out what asks for it (watermarking_config, guidance_scale, a grammar) or decode "
                "without candidate_generator"
            )


def is_prompt_tuned(model: Any) -> bool:
    """Whether `model` is a `PeftModel` whose active adapter puts virtual tokens before the text."""
    return isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
