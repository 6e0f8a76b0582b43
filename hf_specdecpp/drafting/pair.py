"""A draft beside its target: whether they fit, what the draft's head recommends, and what makes rules and drafters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from weakref import WeakKeyDictionary

import torch
from peft import PeftModel
from torch import nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..acceptance import AcceptanceHeadConfig, AcceptanceHeadLayer, acceptance_layer, model_signature
from ..costs.store import loaded_as, stored_calibration
from ..decoding.checks import is_prompt_tuned
from ..decoding.engine import Engine
from ..decoding.law import Law
from ..decoding.mode import Decoding
from ..decoding.sequences import Sequences
from ..decoding.taps import Taps
from ..stopping import ONE_TEXT, CostAware, Experience, Scope, StoppingConfig, StoppingRule
from .block import BlockDrafter
from .config import SOURCES
from .drafter import Drafter
from .informed.block_config import DFlashConfig
from .informed.config import layers_read
from .judge import CONFIDENCE, ConfidenceJudge, Judge
from .lookup import Lookup, LookupStore
from .mixture import Mixture, Source
from .model import ModelDrafter
from .recycling import Recycling, RecyclingTable

logger = logging.get_logger(__name__)

# What generations showed, by draft, by how target and draft run and by kind, so that none has to begin anew.
_experience: WeakKeyDictionary[PreTrainedModel, dict[tuple[str, ...], Experience]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Pair:
    """A draft that can serve, and the settings that it serves by.

    Attributes:
        draft (`PreTrainedModel`, *optional*): without PEFT's wrapper; without one the text itself is drafted from.
        head (`AcceptanceHeadConfig`, *optional*): of the active head, or `CONFIDENCE`.
        stopping_config (`StoppingConfig`, *optional*): the caller's.
    """

    draft: PreTrainedModel | None
    head: AcceptanceHeadConfig | None
    stopping_config: StoppingConfig | None

    @classmethod
    def of(cls, assistant_model: nn.Module | None, stopping_config: StoppingConfig | None) -> Pair:
        """The pair's half that `generate` is given.

        Raises:
            TypeError: if the draft is no causal language model of transformers.
            ValueError: if the rule asks a head and none is active on the draft, or if the draft is prompt-tuned,
                recurrent or an encoder-decoder model.
        """
        if stopping_config is not None and not isinstance(stopping_config, StoppingConfig):
            raise TypeError(f"stopping_config must be a StoppingConfig, got {type(stopping_config).__name__}")
        if assistant_model is None:
            return cls(None, None, without_draft(stopping_config))
        if is_prompt_tuned(assistant_model):
            raise ValueError(
                "the draft is tuned by virtual tokens (prompt or prefix tuning), which SpecDecPP cannot serve: give "
                "its base model, or a draft with an adapter that changes weights, such as LoRA"
            )
        if isinstance(assistant_model, PeftModel):
            assistant_model = assistant_model.get_base_model()
        if not isinstance(assistant_model, PreTrainedModel):
            raise TypeError(
                f"SpecDecPP drafts with a model that transformers loaded, got {type(assistant_model).__name__}: pass "
                "the draft as assistant_model=draft"
            )
        if assistant_model.config.is_encoder_decoder or assistant_model._is_stateful:
            raise ValueError(
                f"the draft, a {type(assistant_model).__name__}, must be a decoder-only model whose cache can be "
                "rolled back: encoder-decoder and recurrent drafts are not supported"
            )
        return cls(assistant_model, recommending_head(assistant_model, stopping_config), stopping_config)

    def settings(self, generation_config: GenerationConfig) -> StoppingConfig:
        """Of one generation, nothing left out."""
        own = None if self.draft is None else self.draft.generation_config
        return honoured(generation_config, self.stopping_config, own).filled_from(self.head)

    def rules(
        self,
        settings: StoppingConfig,
        length: int,
        rows: int,
        target: PreTrainedModel | None,
        running: str = "eager",
        kind: tuple[str, ...] = (),
    ) -> tuple[list[StoppingRule], Experience | None]:
        """The rules of one generation from prompts of `length` tokens, one for each of its rows or one for all.

        Also what the pair showed, where the rule counts seconds: the caller adds each round to it before the rule's
        `end`. `running` says how both models run, see `Running.name`; generations learn from those of their `kind`,
        for a tree or a sampled token costs what a chain or a greedy one does not.
        """
        experience = self.experience(length, target, running, kind) if settings.needs_seconds else None
        rule = settings.new_rule(experience)
        if rule.shared:
            return [rule] * rows, experience
        return [rule, *(settings.new_rule() for _ in range(rows - 1))], experience

    def experience(
        self, length: int, target: PreTrainedModel | None, running: str, kind: tuple[str, ...]
    ) -> Experience:
        """What earlier generations of a kind showed, see `rules`; before any, what the pair was calibrated to."""
        if target is None:
            return Experience()
        key = (str(torch.get_num_threads()), running, *kind, *running_as(target))
        key += running_as(self.draft) if self.draft else ()
        known = _experience.setdefault(self.draft or target, {})
        if key not in known:
            known[key] = Experience()
            stored = stored_calibration(target, self.draft, running) if self.draft else None
            if stored:
                known[key].costs.begin(stored.at(length))
        return known[key]

    def sources(
        self, rule: StoppingRule, asked: tuple[str, ...] | None, given: dict[str, str] | None = None
    ) -> tuple[str, ...]:
        """What proposes in a generation by `rule`: what was asked for, else all that the rule can weigh.

        Args:
            given (`dict[str, str]`, *optional*): by the keyword of what the caller passed for a source to draw on, the
                source.

        Raises:
            ValueError: for a source that this pair or rule cannot have, or for what was passed and none draws on.
        """
        found = self._sources(rule, asked)
        for keyword, source in (given or {}).items():
            if source not in found:
                raise ValueError(
                    f"{keyword} is for the source {source!r}, and this generation drafts from {', '.join(found)}: "
                    f"leave {keyword} out, or the stopping rule and the sources that exclude it"
                )
        return found

    def _sources(self, rule: StoppingRule, asked: tuple[str, ...] | None) -> tuple[str, ...]:
        weighs = isinstance(getattr(rule, "rule", rule), CostAware)
        if asked is None:
            if self.draft is None:
                return ("lookup", "recycling")
            return SOURCES if weighs else ("model",)
        if ("model" in asked) != (self.draft is not None):
            raise ValueError(
                f"sources={asked!r} and assistant_model contradict each other: 'model' is the assistant_model"
            )
        if asked != ("model",) and self.draft is not None and not weighs:
            raise ValueError(
                f"sources={asked!r}: only the cost-aware rule can choose between a model and the text; leave out the "
                "rule, or the other sources"
            )
        return asked

    def drafter(
        self,
        law: Law,
        sequences: Sequences,
        rule: StoppingRule,
        eos: set[int],
        scope: Scope = ONE_TEXT,
        generation_config: GenerationConfig | None = None,
        taps: Taps | None = None,
        lookup_store: LookupStore | None = None,
        recycling_table: RecyclingTable | None = None,
        engine: Callable[[PreTrainedModel, list[int]], Engine] = Engine,
    ) -> Drafter:
        """What drafts for `rule` from the sources of `scope`, see `ModelDrafter` for `taps` and `engine`.

        Raises:
            ValueError: for a store or a table of another vocabulary than the target's.
        """
        model = self.model_drafter(law, sequences, rule, eos, taps, engine) if "model" in scope.sources else None
        if not scope.is_mixed:
            return model
        sources: list[Source] = []
        if "lookup" in scope.sources:
            length, ngram = generation_config.prompt_lookup_num_tokens, generation_config.max_matching_ngram_size
            asked = {"length": length, "max_ngram": ngram}
            asked = {name: value for name, value in asked.items() if value is not None}
            if lookup_store is not None:
                lookup_store.check(law.vocab_size)
            sources.append(Lookup(sequences, law, branches=min(scope.branches or 2, 2), store=lookup_store, **asked))
        if "recycling" in scope.sources:
            table = RecyclingTable(law.vocab_size) if recycling_table is None else recycling_table
            table.check(law.vocab_size)
            sources.append(Recycling(sequences, table))
        return Mixture(sequences, sources, model)

    def taps(self, target: PreTrainedModel, rows: int) -> Taps | None:
        """For a draft that reads the target's states: where the target leaves them."""
        layers = () if self.draft is None else layers_read(self.draft.config, target.config)
        return Taps(layers, rows) if layers else None

    def model_drafter(
        self,
        law: Law,
        sequences: Sequences,
        rule: StoppingRule,
        eos: set[int],
        taps: Taps | None = None,
        engine: Callable[[PreTrainedModel, list[int]], Engine] = Engine,
    ) -> ModelDrafter:
        """The draft at work for `rule`."""
        judge = None
        if "acceptance" in rule.needs and has_confidence(self.draft):
            judge = ConfidenceJudge()
        elif "acceptance" in rule.needs:
            judge = Judge(acceptance_layer(self.draft), self.head)
            warn_of_other_decoding(Decoding.stored(self.head.decoding), law.decoding)
        limit = max_context(self.draft.config)
        if limit < sequences.max_length:
            logger.warning_once(
                f"the draft reads at most {limit} tokens, and the text may have {sequences.max_length}: beyond the "
                "former the target decodes alone"
            )
        shared = (self.draft, law, sequences, rule.needs, judge, limit, eos, taps)
        return BlockDrafter(*shared) if isinstance(self.draft.config, DFlashConfig) else ModelDrafter(*shared, engine)

    @property
    def block(self) -> int:
        """The most tokens that a pass of the draft drafts."""
        config = self.draft and self.draft.config
        return config.drafted if isinstance(config, DFlashConfig) else 1


def without_draft(stopping_config: StoppingConfig | None) -> StoppingConfig:
    """The settings of a generation without a draft.

    Raises:
        ValueError: for a rule that asks what only a draft knows.
    """
    if stopping_config is None or stopping_config.rule is None:
        bounds = stopping_config or StoppingConfig()
        if bounds.threshold is not None:
            raise ValueError(
                f"threshold={bounds.threshold} is for the head of a draft: pass it as assistant_model=draft, or leave "
                "the threshold out"
            )
        return replace(bounds, rule="cost-aware", settings={"uses_head": False})
    asked = stopping_config.filled_from(None).needs & {"acceptance", "entropy"}
    if asked:
        raise ValueError(
            f"the rule {stopping_config.rule!r} asks for {', '.join(sorted(asked))}, which only drafts know: pass "
            "one as assistant_model=draft, or leave the rule out"
        )
    return stopping_config


def recommending_head(draft: PreTrainedModel, stopping_config: StoppingConfig | None) -> AcceptanceHeadConfig | None:
    """The head that is active on `draft`; `None` if there is none and the rule of `stopping_config` needs none.

    Raises:
        ValueError: if a head is needed and none is active.
    """
    try:
        return active_head_config(draft)
    except ValueError:
        if stopping_config is None or stopping_config.rule is None or stopping_config.filled_from(None).needs_head:
            raise
        return None


def has_confidence(draft: PreTrainedModel) -> bool:
    """Whether a draft judges its tokens by a confidence head of its own, as DSpark's do, with none of ours mounted."""
    mounted = any(isinstance(module, AcceptanceHeadLayer) for module in draft.modules())
    return not mounted and getattr(draft, "confidence_head", None) is not None


def active_head_config(draft: PreTrainedModel) -> AcceptanceHeadConfig:
    """The configuration of the head that is active on `draft`.

    Raises:
        ValueError: if the draft has no head, or none is active.
    """
    if has_confidence(draft):
        return CONFIDENCE
    layer = acceptance_layer(draft)
    if layer.active_head_name is None:
        raise ValueError(
            f"none of the draft's acceptance heads {sorted(layer.head_configs)} is active: choose one with set_adapter"
        )
    return layer.head_configs[layer.active_head_name]


def check_pair(head: AcceptanceHeadConfig | None, draft: PretrainedConfig, target: PretrainedConfig | None) -> int:
    """The size of the vocabulary that candidates speak, the target's.

    Raises:
        ValueError: if the head was trained for another target, if draft and target use different tokenizers, or if the
            draft reads states of another target.
    """
    own = draft.get_text_config().vocab_size
    if target is None:
        return own
    if size(draft) > size(target):
        logger.warning_once("the draft is larger than the target: are they swapped?")
    signature = model_signature(target)
    if head is not None and head.target_signature is not None and head.target_signature != signature:
        swapped = (signature, model_signature(draft)) == (head.draft_signature, head.target_signature)
        raise ValueError(
            f"this head predicts the verdicts of {head.target_name_or_path!r} ({head.target_signature}), but the "
            f"target is a {signature}: {'swap target and draft' if swapped else 'use a head trained for this pair'}"
        )
    if layers_read(draft, target):  # it has the target's vocabulary, and says nothing of special tokens
        return own
    theirs = target.get_text_config().vocab_size
    # Models of one family pad one tokenizer's vocabulary to different multiples (Qwen2.5: 151936 and 152064).
    if abs(own - theirs) > 512 or (own != theirs and min(own, theirs) < 4096):
        raise ValueError(
            f"the draft has a vocabulary of {own} tokens and the target one of {theirs}: SpecDecPP needs a draft with "
            "the target's tokenizer"
        )
    ids, target_ids = special_ids(draft), special_ids(target)
    if ids and target_ids and not ids & target_ids:
        # No error: models of one tokenizer may differ in them (SmolLM2: the base says 0, Instruct 1 and 2).
        logger.warning_once(
            f"the draft's special tokens (ids {sorted(ids)}) and the target's ({sorted(target_ids)}) have none in "
            "common: if their tokenizers differ, whatever is drafted will be rejected; give generate tokenizer= and "
            "assistant_tokenizer= to have them compared"
        )
    return theirs


def special_ids(config: PretrainedConfig) -> set[int]:
    """The tokens that begin, end and pad a text, as far as a model's configuration says."""
    text = config.get_text_config()
    given = [getattr(text, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")]
    return {i for ids in given if ids is not None for i in (ids if isinstance(ids, list) else [ids]) if i >= 0}


def running_as(model: PreTrainedModel) -> tuple[str, ...]:
    """What the cost of a model's passes depends on: what it is, where it lies, its precision and its attention."""
    return f"{model.device} {getattr(model, 'hf_device_map', None)}", loaded_as(model.config, model.dtype)


def max_context(config: PretrainedConfig) -> float:
    """How many tokens a draft can read; infinite for rotary positions, which beyond training are only worse."""
    text = config.get_text_config()
    if getattr(text, "rope_parameters", None) is not None:
        return math.inf
    return getattr(text, "max_position_embeddings", None) or math.inf


def size(config: PretrainedConfig) -> int:
    """What the weights of a model's layers grow with."""
    text = config.get_text_config()
    return getattr(text, "num_hidden_layers", 0) * getattr(text, "hidden_size", 0) ** 2


def decoding_of(generation_config: GenerationConfig, coupling: str) -> Decoding:
    """The part of a generation's settings that heads are trained for."""
    if not generation_config.do_sample:
        return Decoding()
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    given = {name: getattr(generation_config, name) for name in neutral}
    chosen = {name: neutral[name] if value is None else value for name, value in given.items()}
    return Decoding(True, **chosen, coupling=coupling)


def warn_of_other_decoding(trained: Decoding, used: Decoding) -> None:
    """Warns if a head that was trained for one way of decoding serves another."""
    if trained.same_law(used):
        return
    trained_for, serves = (
        ", ".join(f"{name}={value}" for name, value in asdict(mode).items()) if mode.do_sample else "do_sample=False"
        for mode in (trained, used)
    )
    logger.warning_once(
        f"the active acceptance head was trained for {trained_for} and now serves {serves}: the output is exact all "
        "the same, but the head's probabilities are not calibrated for it"
    )


def honoured(
    generation_config: GenerationConfig, stopping_config: StoppingConfig | None, own: GenerationConfig | None
) -> StoppingConfig:
    """`stopping_config` with what the caller asked of assisted generation through `generate`'s own settings.

    Args:
        own: the draft's, if there is one, whose `num_assistant_tokens` bounds a draft unless the caller does.

    Raises:
        ValueError: for a setting that contradicts `stopping_config` or that SpecDec++ cannot honour.
    """
    settings = stopping_config or StoppingConfig()
    defaults = GenerationConfig._get_default_generation_params()
    if generation_config.assistant_ensemble_weight is not None:
        raise ValueError("assistant_ensemble_weight changes the target's distribution, and SpecDecPP never does")
    for name in ("assistant_confidence_threshold", "num_assistant_tokens_schedule"):
        value = getattr(generation_config, name)
        if value not in (None, defaults[name]):
            raise ValueError(
                f"{name}={value!r} belongs to transformers' own rule: with SpecDecPP, set the threshold and the "
                "bounds in stopping_config"
            )
    default = defaults["num_assistant_tokens"]
    asked = generation_config.num_assistant_tokens
    if asked in (None, default):
        unbounded = settings.min_draft_length is None and settings.max_draft_length is None
        if own is not None and unbounded and own.num_assistant_tokens not in (None, default):
            return replace(settings, max_draft_length=own.num_assistant_tokens)
        return settings
    if settings.max_draft_length not in (None, asked):
        raise ValueError(
            f"num_assistant_tokens={asked} and max_draft_length={settings.max_draft_length} contradict each other: "
            "give one of them"
        )
    return replace(settings, max_draft_length=asked)
