"""`SpecDecPP`: drafts in its own loop and asks the head after every token; decides nothing itself."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, PretrainedConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from .acceptance import (
    AcceptanceHeadConfig,
    acceptance_layer,
    execution_device,
    listening,
    model_signature,
    token_features,
)
from .acceptance.layer import Listener
from .assisted_decoding import assisted_decoding, is_prompt_tuned
from .calibration import stored_calibration
from .decoding import Decoding, draw_tokens
from .stopping import DraftedToken, Round, RunningCosts, StoppingConfig, StoppingRule

logger = logging.get_logger(__name__)

# What rounds cost, by draft and by how target and draft run, so that a rule which measures need not begin anew in
# every generation.
_running_costs: WeakKeyDictionary[PreTrainedModel, dict[tuple[str, ...], RunningCosts]] = WeakKeyDictionary()


class SpecDecPP(AssistedCandidateGenerator):
    """Drafts candidates until its stopping rule has enough, that of SpecDec++ (arXiv 2405.19715) or another.

    Two ways to use it, with equal output:

    - `model.generate(..., assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=StoppingConfig())`;
    - `model.generate(..., custom_generate=SpecDecPP(assistant_model=draft))`, transformers' own hook. The hook keeps
      `streamer` and `tokenizer` to itself, so give the streamer here as well, and stop strings as a
      `StopStringCriteria` in `stopping_criteria`.

    Each round follows the order of the authors' code: a forward pass over the newest token yields the distribution of
    the next one, which is drawn; the head judges it, or, if it reads the state after a token, the one before; then the
    rule decides whether another follows. A drawn token is always submitted, which is what keeps sampling exact.

    Logits processors must be functions of ids and scores: they are called for drafted tokens, and again where the
    target verifies them. One that counts its calls, say, changes the output; those known to keep state are refused.

    Args:
        assistant_model (`PreTrainedModel` or `PeftModel`): the draft, with an active acceptance head if the rule asks
            one.
        stopping_config (`StoppingConfig`, *optional*): left out, the head's recommended settings serve.
        streamer (`BaseStreamer`, *optional*): only for `custom_generate`.
        target_config (`PretrainedConfig`, *optional*): the target's configuration, against which the pair is checked.
        target_model (`PreTrainedModel`, *optional*): the target. Without it a rule that measures costs begins anew.
        input_ids, generation_config, model_kwargs, inputs_tensor, logits_processor: what `generate` passes to a
            candidate generator.

    Raises:
        TypeError: if the draft is missing or no causal language model of transformers.
        ValueError: if the rule asks a head and none is active on the draft, if the head is for another pair, if the
            vocabularies differ, if the draft is prompt-tuned, if the batch has more than one row, or for a setting
            that SpecDec++ cannot honour.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor | None = None,
        assistant_model: PreTrainedModel | PeftModel | None = None,
        generation_config: GenerationConfig | None = None,
        model_kwargs: dict | None = None,
        inputs_tensor: Tensor | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_config: StoppingConfig | None = None,
        streamer: BaseStreamer | None = None,
        target_config: PretrainedConfig | None = None,
        target_model: PreTrainedModel | None = None,
    ):
        if is_prompt_tuned(assistant_model):
            raise ValueError(
                "the draft is tuned by virtual tokens (prompt or prefix tuning), which SpecDecPP cannot serve: give "
                "its base model, or a draft with an adapter that changes weights, such as LoRA"
            )
        if isinstance(assistant_model, PeftModel):
            assistant_model = assistant_model.get_base_model()
        if not isinstance(assistant_model, PreTrainedModel):
            given = type(input_ids if isinstance(input_ids, torch.nn.Module) else assistant_model).__name__
            raise TypeError(
                f"SpecDecPP drafts with a model that transformers loaded, got {given}: pass the draft as "
                "assistant_model=draft"
            )
        if stopping_config is not None and not isinstance(stopping_config, StoppingConfig):
            raise TypeError(f"stopping_config must be a StoppingConfig, got {type(stopping_config).__name__}")
        if assistant_model.config.is_encoder_decoder or assistant_model._is_stateful:
            raise ValueError(
                f"the draft, a {type(assistant_model).__name__}, must be a decoder-only model whose cache can be "
                "rolled back: encoder-decoder and recurrent drafts are not supported"
            )
        self.assistant_model = assistant_model
        self.streamer = streamer
        self.stopping_config = stopping_config
        self.head_config = recommending_head(assistant_model, stopping_config)
        self.stop_reason: str | None = None
        if input_ids is not None:
            self._begin(
                input_ids, generation_config, model_kwargs or {}, inputs_tensor, logits_processor, target_config,
                target_model,
            )  # fmt: skip

    def __call__(self, model: PreTrainedModel, input_ids: torch.LongTensor, **kwargs):
        """Generates with `model`; the signature that `generate(custom_generate=...)` expects."""
        return assisted_decoding(
            model,
            input_ids,
            candidate_generator=partial(type(self), stopping_config=self.stopping_config),
            assistant_model=self.assistant_model,
            streamer=self.streamer,
            **kwargs,
        )

    def _begin(
        self, input_ids, generation_config, model_kwargs, inputs_tensor, logits_processor, target_config, target_model
    ) -> None:
        """Prepares one generation."""
        draft = self.assistant_model
        if input_ids.shape[0] > 1:
            raise ValueError(
                f"SpecDecPP generates one sequence at a time, got a batch of {input_ids.shape[0]}: call generate for "
                "each prompt, with num_return_sequences=1"
            )
        super().__init__(input_ids, draft, generation_config, model_kwargs, inputs_tensor, logits_processor)
        # The loop writes num_assistant_tokens back to the draft when its schedule is "heuristic": leave it as it was.
        self.num_assistant_tokens = draft.generation_config.num_assistant_tokens
        settings = honoured(generation_config, self.stopping_config, draft.generation_config)
        self.settings = settings.filled_from(self.head_config)
        self.follow(self._new_rule(input_ids.shape[1], target_config, target_model))
        self.drafted: list[DraftedToken] = []
        self.draft_seconds = self.drafted_until = 0.0
        self.is_first_round = True  # it reads the prompt, so its times are not those of a round
        self.processors = LogitsProcessorList() if logits_processor is None else logits_processor
        self.do_sample = generation_config.do_sample
        if self.judge:
            warn_of_other_decoding(Decoding(**self.head_config.decoding), decoding_of(generation_config))
        self.max_context = max_context(draft.config)
        if self.max_context < self.main_model_max_length:
            logger.warning_once(
                f"the draft reads at most {self.max_context} tokens, and the text may have "
                f"{self.main_model_max_length}: beyond the former the target decodes alone"
            )
        self.own_vocab_size = draft.config.get_text_config().vocab_size
        self.vocab_size = check_pair(self.head_config, draft.config, target_config)
        eos_token_id = generation_config.eos_token_id
        eos = [] if eos_token_id is None else torch.as_tensor(eos_token_id).flatten().tolist()
        # Only the draft's passes run on its device: all else on that of the ids, where the processors' tensors are.
        self.draft_device = execution_device(draft.get_input_embeddings())
        self.eos_token_ids = torch.tensor(eos, dtype=torch.long, device=input_ids.device)
        # Without a config no layer slides: a round makes several passes before it is rolled back, which the sliding
        # layers of transformers 5.17 cannot; the mask confines attention to the window all the same.
        self.cache = DynamicCache()
        mask = model_kwargs.get("attention_mask")
        self.prompt_mask = None if mask is None or bool(mask.all()) else mask.to(self.draft_device)
        self.forward_kwargs = {"logits_to_keep": 1} if draft._supports_logits_to_keep() else {}

    def _new_rule(
        self, length: int, target_config: PretrainedConfig | None, target_model: PreTrainedModel | None
    ) -> StoppingRule:
        """The rule of this generation, from a prompt of `length` tokens; one that counts seconds is told the costs."""
        self.running = None
        if not self.settings.needs_seconds:
            return self.settings.new_rule()
        self.running = RunningCosts()
        if target_model is not None:
            key = (str(torch.get_num_threads()), *running_as(target_model), *running_as(self.assistant_model))
            self.running = _running_costs.setdefault(self.assistant_model, {}).setdefault(key, self.running)
        stored = stored_calibration(target_config, self.assistant_model)
        return self.settings.new_rule(self.running, stored and stored.at(length))

    def follow(self, rule: StoppingRule) -> None:
        """Drafts by `rule` from now on."""
        self.rule, self.needs, self.judge, self.newest_features = rule, rule.needs, None, None
        if "acceptance" in rule.needs:
            self.judge = acceptance_layer(self.assistant_model)
            self.needs |= set(self.head_config.features)

    def get_candidates(self, input_ids: torch.LongTensor, **kwargs) -> tuple[torch.LongTensor, Tensor | None]:
        """Drafts one round.

        Args:
            input_ids (`torch.LongTensor` of shape `(1, length)`): the tokens generated so far, on the device of the
                logits processors, which may be another than the draft's.

        Returns:
            `torch.LongTensor` of shape `(1, length + drafted)`, and when sampling the processed logits
            (`torch.FloatTensor` of shape `(1, drafted, vocab_size)`) that the drafted tokens were drawn from.
        """
        start = time.perf_counter()
        sequence, length = input_ids, input_ids.shape[1]
        room = min(self.main_model_max_length - length - 1, self.max_context - length + 1)
        cap, self.drafted, scores = min(self.rule.begin(), room), [], []
        self.stop_reason = "no_room" if room < 1 else "no_draft"
        with listening() if self.judge else nullcontext() as listener:
            newest = self._roll_back(sequence)  # also without a draft: later it could not tell what was rejected
            while len(self.drafted) < cap:
                logits = self._draft_logits(newest, sequence)
                newest, processed = self._draw(sequence, logits)
                scores.append(processed)
                sequence = torch.cat((sequence, newest), dim=-1)
                ended = self._see(newest, logits, processed, listener)
                self.stop_reason = self.rule.reason
                if ended:
                    self.stop_reason = "end_of_sequence"
                    break
                if not self.rule.goes_on(self.drafted):
                    break
            else:
                if self.drafted:
                    own = self.rule.reason if cap < self.settings.max_draft_length else "max_draft_length"
                    self.stop_reason = "max_length" if cap == room else own
        self.drafted_until = time.perf_counter()
        self.draft_seconds = self.drafted_until - start
        if not self.drafted:
            return input_ids, None
        return sequence, torch.stack(scores, dim=1) if self.do_sample else None

    def _see(self, newest: Tensor, logits: Tensor, processed: Tensor, listener: Listener | None) -> bool:
        """Adds to `drafted` what the rule may see of the newest token; returns whether it ends the sequence.

        All of it comes to the host in one transfer; when sampling, the check of what is drawn from is another.
        """
        facts = {"ended": torch.isin(newest[0, 0], self.eos_token_ids).float()}
        raw = logits.softmax(-1) if self.needs & {"probability", "entropy"} else None
        if "probability" in self.needs:
            facts["probability"] = (raw if processed is logits else processed.softmax(-1))[0, newest[0, 0]]
        if "entropy" in self.needs:
            facts["entropy"] = torch.special.entr(raw[0]).sum()
        late = self.judge is not None and self.head_config.reads == "after"
        if self.judge:
            features = self._features(facts)
            judged, self.newest_features = (self.newest_features, features) if late else (features, None)
            if self.drafted or not late:
                acceptance_logits = self.judge.acceptance_logits(listener.hidden_states[:, -1:], judged)
                facts["acceptance"] = torch.sigmoid(acceptance_logits[0, 0]).to(newest.device)
        values = dict(zip(facts, torch.stack(list(facts.values())).tolist(), strict=True))
        ended = bool(values.pop("ended"))
        if late and self.drafted:
            self.drafted[-1] = replace(self.drafted[-1], acceptance=values.pop("acceptance"))
        self.drafted.append(DraftedToken(len(self.drafted) + 1, **values))
        return ended

    def _features(self, facts: dict[str, Tensor]) -> Tensor:
        """What the head sees of the newest token besides a hidden state, (1, 1, features)."""
        position = facts["ended"].new_tensor(len(self.drafted) + 1)
        seen = (facts.get(name, position) for name in ("probability", "entropy"))
        return token_features(self.head_config.features, *seen, position)[None, None]

    def update_candidate_strategy(self, input_ids: torch.LongTensor, scores: Tensor, num_matches: int) -> None:
        """Tells the rule what became of the round; transformers' own heuristic and ROC curve stay out of it."""
        if self.stop_reason == "no_room":
            return
        seconds = {}
        if not self.is_first_round:
            seconds = {
                "draft_seconds": self.draft_seconds, "target_seconds": time.perf_counter() - self.drafted_until,
            }  # fmt: skip
            if self.running is not None:
                self.running.add(len(self.drafted), *seconds.values())
        self.is_first_round = False
        cut = self.stop_reason in ("end_of_sequence", "max_length")
        self.rule.end(Round(self.drafted, min(int(num_matches), len(self.drafted)), censored=cut, **seconds))

    def _roll_back(self, sequence: Tensor) -> Tensor:
        """Drops the rejected tokens from the draft's cache; returns the tokens that it has not seen, (1, n >= 1)."""
        roll_back(self.cache, sequence.shape[1] - 1)
        return sequence[:, self.cache.get_seq_length() :]

    def _draft_logits(self, newest: Tensor, sequence: Tensor) -> Tensor:
        """The draft's logits after `sequence`, whose last tokens are `newest`, (1, vocab_size) in float32."""
        masked = {}
        if self.prompt_mask is not None:
            grown = self.prompt_mask.new_ones(1, sequence.shape[1] - self.prompt_mask.shape[1])
            mask = torch.cat((self.prompt_mask, grown), dim=-1)
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -newest.shape[1] :]
            masked = {"attention_mask": mask, "position_ids": positions}
        if self.own_vocab_size < self.vocab_size:  # padded less than the target's, which may say a padding token
            newest = newest.clamp(max=self.own_vocab_size - 1)
        outputs = self.assistant_model(
            input_ids=newest.to(self.draft_device), past_key_values=self.cache, use_cache=True, **masked,
            **self.forward_kwargs,
        )  # fmt: skip
        return in_vocabulary(outputs.logits[:, -1].to(sequence.device), self.vocab_size)

    def _draw(self, sequence: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The next token, (1, 1), and the processed logits that it was drawn from, (1, vocab_size)."""
        processed = self.processors(sequence, logits) if self.processors else logits
        if self.do_sample:
            return draw_tokens(processed.softmax(-1)), processed
        return processed.argmax(-1, keepdim=True), processed


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


def active_head_config(draft: PreTrainedModel) -> AcceptanceHeadConfig:
    """The configuration of the head that is active on `draft`.

    Raises:
        ValueError: if the draft has no head, or none is active.
    """
    layer = acceptance_layer(draft)
    if layer.active_head_name is None:
        raise ValueError(
            f"none of the draft's acceptance heads {sorted(layer.head_configs)} is active: choose one with set_adapter"
        )
    return layer.head_configs[layer.active_head_name]


def check_pair(head: AcceptanceHeadConfig | None, draft: PretrainedConfig, target: PretrainedConfig | None) -> int:
    """The size of the vocabulary that candidates speak, the target's.

    Raises:
        ValueError: if the head was trained for another target, or draft and target use different tokenizers.
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
    return (
        model_signature(model.config),
        f"{model.device} {getattr(model, 'hf_device_map', None)}",
        str(model.dtype),
        str(getattr(model.config, "quantization_config", None)),
        str(model.config._attn_implementation),
    )


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


def roll_back(cache: DynamicCache, length: int) -> None:
    """Keeps the first `length` tokens at most."""
    excess = cache.get_seq_length() - length
    if excess > 0:
        cache.crop(-excess)


def in_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """The draft's `logits` in the target's vocabulary, (..., own_vocab_size) -> (..., vocab_size) in float32."""
    missing = vocab_size - logits.shape[-1]
    if missing > 0:
        return F.pad(logits.float(), (0, missing), value=torch.finfo(torch.float32).min)
    return logits[..., :vocab_size].float()


def decoding_of(generation_config: GenerationConfig) -> Decoding:
    """The part of a generation's settings that heads are trained for."""
    if not generation_config.do_sample:
        return Decoding()
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    given = {name: getattr(generation_config, name) for name in neutral}
    return Decoding(True, **{name: neutral[name] if value is None else value for name, value in given.items()})


def warn_of_other_decoding(trained: Decoding, used: Decoding) -> None:
    """Warns if a head that was trained for one way of decoding serves another."""
    trained_for, serves = (
        ", ".join(f"{name}={value}" for name, value in mode.generate_kwargs().items()) for mode in (trained, used)
    )
    if trained_for != serves:
        logger.warning_once(
            f"the active acceptance head was trained for {trained_for} and now serves {serves}: the output is exact "
            "all the same, but the head's probabilities are not calibrated for it"
        )


def honoured(
    generation_config: GenerationConfig, stopping_config: StoppingConfig | None, own: GenerationConfig
) -> StoppingConfig:
    """`stopping_config` with what the caller asked of assisted generation through `generate`'s own settings.

    Args:
        own: the draft's, whose `num_assistant_tokens` bounds a draft unless the caller says otherwise.

    Raises:
        ValueError: for a setting that contradicts `stopping_config` or that SpecDec++ cannot honour.
    """
    settings = stopping_config or StoppingConfig()
    if generation_config.prompt_lookup_num_tokens is not None:
        raise ValueError("prompt_lookup_num_tokens drafts from the prompt, SpecDecPP with a model: give one of them")
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
        if unbounded and own.num_assistant_tokens not in (None, default):
            return replace(settings, max_draft_length=own.num_assistant_tokens)
        return settings
    if settings.max_draft_length not in (None, asked):
        raise ValueError(
            f"num_assistant_tokens={asked} and max_draft_length={settings.max_draft_length} contradict each other: "
            "give one of them"
        )
    return replace(settings, max_draft_length=asked)
