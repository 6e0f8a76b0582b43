"""What a call of `generate` may ask of speculative decoding; the rest is refused in a sentence."""

from __future__ import annotations

from peft import PeftModel
from torch import Tensor, nn
from transformers import LogitsProcessorList, PreTrainedModel, StaticCache

# Classes of logits processors, and packages of them, that keep state from call to call: SynthID hashes the tokens that
# it saw, unbatched guidance has a cache of its own, the packages follow a grammar by one token a call.
STATEFUL_PROCESSORS = {"SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"}
STATEFUL_PACKAGES = {"outlines", "transformers_cfg", "xgrammar"}


def check_target(model: PreTrainedModel, input_ids: Tensor, generation_config, model_kwargs: dict) -> None:
    """Raises `ValueError` with the reason if assisted decoding cannot serve this call."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"the target, a {name}, is an encoder-decoder model: only decoder-only models are supported")
    if model._is_stateful:
        raise ValueError(f"the target, a {name}, keeps a recurrent state that cannot be rolled back")
    if generation_config.num_beams > 1:
        raise ValueError(f"num_beams={generation_config.num_beams}: assisted decoding has one beam, leave it out")
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
            "a static cache cannot be rolled back: ask for one of ours with cache_implementation='static', or pass a "
            "DynamicCache"
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


def is_prompt_tuned(model: nn.Module | None) -> bool:
    """Whether `model` is a `PeftModel` whose active adapter puts virtual tokens before the text."""
    return isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
