"""EAGLE-3 (arXiv 2503.01840): a layer that reads the next token and hidden states of the target, or its own.

Entry i is the token x_i beside the target's states of x_{i-1} (the taps), fused to one of the draft's width; behind it
the draft says x_{i+1}. Behind tokens that it drafted itself it reads its own last state in place of the target's. The
first token of a text has no entry.

Knows nothing of loops, files and acceptance heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
)
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from ...decoding.masks import windows
from ...decoding.packing import packs, product
from .borrowed import Borrowed, target_embedding
from .config import Eagle3Config, read_config
from .published import PublishedDraft


@dataclass
class StepModelOutput(BaseModelOutputWithPast):
    """`states` (`torch.Tensor` of shape `(batch, length, hidden_size)`): to be fed back behind the next token."""

    states: Tensor | None = None


@dataclass
class StepOutput(CausalLMOutputWithPast):
    """`states` (`torch.Tensor` of shape `(batch, length, hidden_size)`): to be fed back behind the next token."""

    states: Tensor | None = None


def decoder_layer(config: Eagle3Config, number: int) -> LlamaDecoderLayer:
    layer = LlamaDecoderLayer(config, number)
    if config.qk_norm:
        layer.self_attn = Qwen3Attention(config, number)
    return layer


class Eagle3FirstLayer(nn.Module):
    """A decoder layer whose attention reads an embedding and a state side by side."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        layer = decoder_layer(config, 0)
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)

    def forward(self, embeddings: Tensor, states: Tensor, **kwargs) -> Tensor:
        normed = self.hidden_norm(states)
        residual = normed if self.norm_before_residual else states
        both = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        residual = residual + self.self_attn(hidden_states=both, **kwargs)[0]
        return residual + self.mlp(self.post_attention_layernorm(residual))


class StepModel(nn.Module):
    """A draft without its vocabulary, which reads a token beside a state, and says the next state.

    Attributes:
        config (`PreTrainedConfig`): of its layers, which are all of one type.
        embed_tokens (`torch.nn.Module`, *optional*): left out, it is the target's.
        fc (`torch.nn.Linear`): what it fuses by.
        layers (`torch.nn.ModuleList`): the first takes embeddings and states.
        norm (`torch.nn.Module`): behind the layers.
        norm_output (`bool`): what is fed back has passed it.
        rotary_emb (`torch.nn.Module`), rope (`dict`): what says positions, and its keywords.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.config, self.norm_output = config, False
        self.borrowed: Borrowed | None = None
        self.embed_tokens: nn.Embedding | None = None
        self.rope: dict[str, Any] = {}
        [kind] = windows(config)
        self.causal_mask = LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING[kind]

    def embedded(self, input_ids: Tensor) -> Tensor:
        own = self.embed_tokens
        weight = target_embedding(self.borrowed).weight if own is None else own.weight
        return F.embedding(input_ids, weight).to(self.fc.weight)

    def fused(self, taps: Tensor) -> Tensor:
        """What the first layer reads of the target, (..., taps * target_hidden_size) -> (..., hidden_size)."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: torch.LongTensor,
        taps: Tensor | None = None,
        states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> StepModelOutput:
        """See `Eagle3ForCausalLM.forward`."""
        if (taps is None) == (states is None):
            raise ValueError(
                "the draft reads hidden states of its target, which it is given in generate with "
                "candidate_generator=SpecDecPP alone"
            )
        hidden = self.fused(taps) if states is None else states.to(self.fc.weight)
        embeddings = self.embedded(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            begin = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(begin, begin + input_ids.shape[1], device=hidden.device)[None]
        mask = self.causal_mask(
            config=self.config, inputs_embeds=embeddings, attention_mask=attention_mask,
            past_key_values=past_key_values, position_ids=position_ids,
        )  # fmt: skip
        shared = {
            "attention_mask": mask, "position_ids": position_ids, "past_key_values": past_key_values,
            "position_embeddings": self.rotary_emb(hidden, position_ids, **self.rope),
        }  # fmt: skip
        hidden = self.layers[0](embeddings, hidden, **shared)
        for layer in self.layers[1:]:
            hidden = layer(hidden, **shared)
        normed = self.norm(hidden)
        return StepModelOutput(
            last_hidden_state=normed,
            past_key_values=past_key_values,
            states=normed if self.norm_output else hidden,
        )


class Eagle3Model(StepModel):
    """An EAGLE-3 draft without its vocabulary."""

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        self.norm_output = config.norm_output
        width, taps, eps = config.hidden_size, config.num_taps, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if config.own_embedding else None
        self.input_norm = LlamaRMSNorm(taps * config.target_hidden_size, eps=eps) if config.norm_before_fc else None
        norms = (LlamaRMSNorm(config.target_hidden_size, eps=eps) for _ in range(taps))
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.fc = nn.Linear(taps * config.target_hidden_size, width, bias=False)
        rest = (decoder_layer(config, number) for number in range(1, config.num_hidden_layers))
        self.layers = nn.ModuleList([Eagle3FirstLayer(config), *rest])
        self.norm = LlamaRMSNorm(width, eps=eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def fused(self, taps: Tensor) -> Tensor:
        taps = taps.to(self.fc.weight)
        if self.input_norm is not None:
            taps = self.input_norm(taps)
        if self.fc_norm is not None:
            parts = taps.chunk(len(self.fc_norm), dim=-1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(taps)


class DraftVocabulary(nn.Module):
    """An output embedding of some tokens, whose logits are scattered to the target's vocabulary.

    A token without a row has the lowest finite logit: probability 0, safe for entropies. `d2t` (`torch.LongTensor` of
    shape `(draft_vocab_size,)`) is what must be added to a row's number to have its token.
    """

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.vocab_size = config.vocab_size
        self.weight = nn.Parameter(torch.empty(config.draft_vocab_size, config.hidden_size))
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    @property
    def token_ids(self) -> Tensor:
        """The token of each row, (draft_vocab_size,)."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def compact_logits(self, hidden_states: Tensor) -> Tensor:
        """(..., hidden_size) -> (..., draft_vocab_size), for training, where the scatter would only cost memory."""
        return F.linear(hidden_states, self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        compact = self.compact_logits(hidden_states)
        if len(self.weight) == self.vocab_size:  # a permutation has no use: rows are in the order of tokens
            return compact
        logits = compact.new_full((*compact.shape[:-1], self.vocab_size), torch.finfo(compact.dtype).min)
        return logits.index_copy_(-1, self.token_ids, compact)


@packs(DraftVocabulary)
class PackedDraftVocabulary(DraftVocabulary):
    def compact_logits(self, hidden_states: Tensor) -> Tensor:
        return product(self, hidden_states)


class Eagle3ForCausalLM(PublishedDraft, LlamaPreTrainedModel, GenerationMixin):
    """An EAGLE-3 draft; `load_draft` reads published ones and gives them to their target."""

    config_class = Eagle3Config
    config: Eagle3Config
    read_published = staticmethod(read_config)
    _no_split_modules = ("Eagle3FirstLayer", "LlamaDecoderLayer")
    _tied_weights_keys = None
    _keys_to_ignore_on_load_missing = (r"d2t",)
    _keys_to_ignore_on_load_unexpected = (r"t2d", r"verifier_")

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        self.model = Eagle3Model(config)
        self.lm_head = DraftVocabulary(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, DraftVocabulary):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            nn.init.zeros_(module.d2t)
        else:
            super()._init_weights(module)

    def forward(
        self,
        input_ids: torch.LongTensor,
        taps: Tensor | None = None,
        states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs,
    ) -> StepOutput:
        """What follows each token.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, length)`).
            taps (`torch.Tensor` of shape `(batch, length, taps * target_hidden_size)`, *optional*): the target's
                states of the token before each, those of `config.target_layers` side by side.
            states (`torch.Tensor` of shape `(batch, length, hidden_size)`, *optional*): in place of `taps`, the
                draft's own `states` of the token before each.
            logits_to_keep (`int` or `torch.LongTensor`): return the last so many logits, or those at these places; all
                if 0.

        Raises:
            ValueError: if not one of `taps` and `states` is given, or there is no embedding.
        """
        outputs = self.model(
            input_ids=input_ids, taps=taps, states=states, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        return StepOutput(logits=logits, past_key_values=outputs.past_key_values, states=outputs.states)


AutoConfig.register("eagle3", Eagle3Config)
AutoModelForCausalLM.register(Eagle3Config, Eagle3ForCausalLM)
