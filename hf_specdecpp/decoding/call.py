"""From a call of `generate` to a generation of our own loop, and back to what `generate` returns."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Cache,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from ..drafting.config import DraftingConfig
from ..drafting.lookup import LookupStore
from ..drafting.pair import Pair, check_pair, decoding_of
from ..drafting.recycling import RecyclingTable
from ..evidence.statistics import active_statistics
from ..stopping import Scope, StoppingConfig
from .checks import check_processors, check_target
from .ending import Ending
from .engine import Engine, can_take_masks
from .law import Law
from .loop import Speculation
from .outputs import Outputs
from .sequences import Sequences
from .static import running_of

# What our loop passes on to the target, or makes itself; anything else needs transformers' own loop.
KNOWN = {
    "attention_mask", "inputs_embeds", "logits_processor", "logits_to_keep", "past_key_values", "position_ids",
    "stopping_criteria", "use_cache",
}  # fmt: skip


def decode(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    assistant_model: nn.Module | None = None,
    stopping_config: StoppingConfig | None = None,
    drafting_config: DraftingConfig | None = None,
    lookup_store: LookupStore | None = None,
    recycling_table: RecyclingTable | None = None,
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Generates with `model`, drafting with `assistant_model`.

    Args:
        model (`PreTrainedModel`): the target.
        input_ids (`torch.LongTensor` of shape `(rows, length)`): prompts, padded on the left.
        logits_processor, stopping_criteria, generation_config, model_kwargs: prepared by `generate`. A processor must
            be a function of ids and scores: it is called for tokens that are drafted and thrown away.
        assistant_model, stopping_config, drafting_config: see `Pair`, `StoppingConfig`, `DraftingConfig`.
        lookup_store (`LookupStore`, *optional*), recycling_table (`RecyclingTable`, *optional*): what lookups and
            recycling draw on besides this generation, and what this generation is then added to.

    Returns:
        What `generate` returns.

    Raises:
        TypeError, ValueError: for what speculative decoding cannot do.
    """
    if generation_config.cache_implementation == "static":  # `generate` made one, which cannot be rolled back
        model_kwargs = {name: value for name, value in model_kwargs.items() if name != "past_key_values"}
    check_target(model, input_ids, generation_config, model_kwargs)
    check_processors(logits_processor)
    drafting = drafting_config or DraftingConfig()
    pair = Pair.of(assistant_model, stopping_config)
    vocab_size = check_pair(pair.head, pair.draft.config if pair.draft else model.config, model.config)
    texts = Texts(input_ids, generation_config, model_kwargs)

    running = running_of(
        model, pair.draft, generation_config, 1 + drafting.most_nodes if drafting.reproducible else None
    )
    most = running.most and running.most - 1
    sequences = Sequences(input_ids.to(model.device), texts.padding, generation_config.max_length, most)
    law = Law(logits_processor, decoding_of(generation_config, drafting.coupling), sequences, vocab_size)
    ending = Ending(stopping_criteria, streamer, sequences)
    rules, experience = pair.rules(
        pair.settings(generation_config),
        input_ids.shape[1],
        len(input_ids),
        model,
        running.name,
        (f"sampling {law.do_sample}", str(drafting)),
    )
    can_branch = can_take_masks(model) and (pair.draft is None or can_take_masks(pair.draft))
    if len(input_ids) > 1 and not can_branch:
        raise ValueError(
            f"{type(model).__name__} or its draft cannot read rows of different lengths with "
            f"{model.config._attn_implementation!r} attention: load both with attn_implementation='sdpa', or generate "
            "for one prompt at a time"
        )
    given = {}
    for keyword, value, kind, source in (
        ("lookup_store", lookup_store, LookupStore, "lookup"),
        ("recycling_table", recycling_table, RecyclingTable, "recycling"),
    ):
        if value is not None:
            if not isinstance(value, kind):
                raise TypeError(f"{keyword} must be a {kind.__name__}, got {type(value).__name__}")
            given[keyword] = source
    sources = pair.sources(rules[0], drafting.sources, given)
    branches = drafting.branches if can_branch and running.width is None else 1
    scope = Scope(1, branches, min(drafting.most_nodes, most or math.inf), sources, block=pair.block)
    taps = pair.taps(model, len(input_ids)) if "model" in sources else None
    drafter = pair.drafter(
        law,
        sequences,
        rules[0],
        ending.eos,
        scope,
        generation_config,
        taps,
        lookup_store,
        recycling_table,
        running.draft,
    )
    outputs = Outputs(len(input_ids), generation_config)
    target = running.target(model, texts.padding_of_cache, taps)
    listeners = [statistics.hear for statistics in active_statistics()]
    with running.ready(model, pair.draft):
        unread = texts.read_first(target, sequences.room, generation_config.prefill_chunk_size)
        Speculation(
            target, drafter, rules, law, sequences, ending, outputs, listeners, experience, scope, running
        ).run(unread)
    if lookup_store is not None:
        for text, padding in zip(sequences.texts, sequences.padding, strict=True):
            lookup_store.add(text[padding:])
    if streamer is not None:
        streamer.end()
    if texts.cache is not None:
        target.give_back(texts.cache)
    pad = generation_config._pad_token_tensor
    found = sequences.output(0 if pad is None else int(pad)).to(input_ids.device)
    if not generation_config.return_dict_in_generate:
        return found
    kept = outputs.tuples(found.shape[1] - input_ids.shape[1])
    return GenerateDecoderOnlyOutput(sequences=found, past_key_values=texts.cache, **kept)


def needs_transformers_loop(generation_config: GenerationConfig, **prepared: Any) -> bool:
    """Whether a call asks for what our loop does not know: attentions, hidden states, inputs besides text.

    Args:
        prepared: what else `generate` hands its decoding methods.
    """
    asked = generation_config.output_attentions or generation_config.output_hidden_states
    given = {name for name, value in prepared.items() if value is not None}
    positions = prepared.get("position_ids")
    return bool(asked) or not given <= KNOWN or (positions is not None and positions.ndim != 2)


class Texts:
    """The prompts of a call: what of them is padding, and what a cache of the caller's holds already.

    Raises:
        ValueError: for a mask with holes, or a cache that cannot be gone on from.
    """

    def __init__(self, input_ids: Tensor, generation_config: GenerationConfig, model_kwargs: dict[str, Any]):
        mask, length = model_kwargs.get("attention_mask"), input_ids.shape[1]
        self.cache: Cache | None = model_kwargs.get("past_key_values")
        whole = getattr(generation_config, "_mask_length", length) if mask is None else mask.shape[1]
        self.padding_of_cache = [0] * len(input_ids)
        if mask is not None:
            self.padding_of_cache = (mask == 0).sum(-1).tolist()
            if not torch.equal(mask.bool(), torch.arange(whole, device=mask.device) >= (mask == 0).sum(-1)[:, None]):
                raise ValueError(
                    "the attention_mask has zeros behind the first token of a row: pad prompts on the left "
                    "(tokenizer.padding_side = 'left')"
                )
        before = whole - length  # tokens that the cache holds and input_ids lack
        self.padding = [max(count - before, 0) for count in self.padding_of_cache]
        self.cached = 0 if self.cache is None else self.cache.get_seq_length()
        if self.cache is not None and type(self.cache) is not DynamicCache:
            raise ValueError(
                f"past_key_values is a {type(self.cache).__name__}, which cannot be rolled back: give a DynamicCache, "
                "or leave it out"
            )
        if self.cached and (before not in (0, self.cached) or (not before and self.cached >= length)):
            raise ValueError(
                f"past_key_values holds {self.cached} tokens and input_ids have {length}: give the whole text as "
                "input_ids, the cached part included, and at least one token more"
            )
        self.first_unread = 0 if before else self.cached

    def read_first(self, target: Engine, ids: Tensor, chunk: int | None) -> Tensor:
        """Gives `target` the cache and, chunk by chunk, all but the last part of the prompts; returns that part."""
        if self.cached:
            target.adopt(self.cache)
        parts = ids[:, self.first_unread :].split(chunk or ids.shape[1], dim=-1)
        for part in parts[:-1]:
            target.read(part, keep=1)
            target.keep([list(range(part.shape[1]))] * len(part))
        return parts[-1]
