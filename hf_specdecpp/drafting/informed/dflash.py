"""DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147): one pass says a block of tokens.

The layers read the newest token of the text and masks behind it, each of which sees all of the block. What they see
of the text are the target's states of its tokens (the taps), fused to one of the draft's width, of which every layer
makes keys and values. So only keys and values of the text are kept, and those of a block are forgotten with it.

DSpark adds a bias to the logits of a place, which depends on the token before it, drawn or given.

Knows nothing of loops, files and acceptance heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3MLP,
    Qwen3PreTrainedModel,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    eager_attention_forward,
    rotate_half,
)

from ...decoding.masks import additive
from .block_config import DFlashConfig, DSparkConfig, read_block_config
from .borrowed import Borrowed, target_embedding
from .eagle3 import DraftVocabulary
from .published import PublishedDraft


@dataclass
class BlockOutput(CausalLMOutputWithPast):
    """`states` (`torch.Tensor` of shape `(batch, block, hidden_size)`): of which the logits are made."""

    states: Tensor | None = None


class BlockAttention(Qwen3Attention):
    """Queries of a block, keys and values of the text's states and of the block."""

    def __init__(self, config: DFlashConfig, number: int):
        super().__init__(config, number)
        self.is_causal = False

    def forward(
        self,
        block: Tensor,
        context: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        mask: Tensor | None,
        past_key_values: Cache | None,
    ) -> Tensor:
        both = torch.cat((context, block), dim=1)
        queries = self.q_norm(self._heads(self.q_proj(block)))
        keys, values = self.k_norm(self._heads(self.k_proj(both))), self._heads(self.v_proj(both))
        cos, sin = (part[:, None] for part in position_embeddings)
        keys = keys * cos + rotate_half(keys) * sin
        cos, sin = cos[..., -block.shape[1] :, :], sin[..., -block.shape[1] :, :]
        queries = queries * cos + rotate_half(queries) * sin
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.attention_dropout if self.training else 0.0
        found, _ = attention(self, queries, keys, values, mask, dropout=dropout, scaling=self.scaling)
        return self.o_proj(found.flatten(2))

    def _heads(self, projected: Tensor) -> Tensor:
        """(batch, length, heads * head_dim) -> (batch, heads, length, head_dim)."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class BlockLayer(nn.Module):
    """A decoder layer of a block."""

    def __init__(self, config: DFlashConfig, number: int):
        super().__init__()
        self.self_attn, self.mlp = BlockAttention(config, number), Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, block: Tensor, **kwargs) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), **kwargs)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashModel(nn.Module):
    """The draft without its vocabulary."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, config.rms_norm_eps
        self.borrowed: Borrowed | None = None
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if config.own_embedding else None
        self.fc = nn.Linear(config.num_taps * config.target_hidden_size, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(BlockLayer(config, number) for number in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, eps=eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)

    def embedded(self, input_ids: Tensor) -> Tensor:
        own = self.embed_tokens
        weight = target_embedding(self.borrowed).weight if own is None else own.weight
        return F.embedding(input_ids, weight).to(self.fc.weight)

    def forward(
        self,
        input_ids: torch.LongTensor,
        taps: Tensor,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """See `DFlashForCausalLM.forward`; returns the states of the block."""
        length, read = input_ids.shape[1], taps.shape[1]
        context = self.hidden_norm(self.fc(taps.to(self.fc.weight)))
        block = self.embedded(input_ids[:, read:])
        before = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(before, before + length, device=block.device)[None]
        positions = self.rotary_emb(block, position_ids)
        masks = self._masks(seen_by_last(attention_mask, before + length, block), length - read, block.dtype)
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            block = layer(
                block, context=context, position_embeddings=positions, mask=masks[kind],
                past_key_values=past_key_values,
            )  # fmt: skip
        return self.norm(block)

    def _masks(self, seen: Tensor, length: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
        """For each type of layer what its attention adds to the scores of a block of `length` tokens.

        Args:
            seen (`torch.BoolTensor` of shape `(batch, keys)`): the text and the block, each in its order.
        """
        kinds = set(self.config.layer_types)
        places = seen.cumsum(-1)
        anchor = places[:, -1:] - length + 1
        text, block = seen & (places < anchor), seen & (places >= anchor)
        whole = None if seen.all() else additive(seen[:, None].expand(-1, length, -1), dtype)
        masks = {"full_attention": whole}
        if "sliding_attention" in kinds:
            text &= places >= anchor - self.config.sliding_window
            ends = anchor + torch.arange(length, device=seen.device)
            if self.config.sliding_window_non_causal:
                ends = ends[:, -1:].expand(-1, length)
            near = text[:, None] | (block[:, None] & (places[:, None] <= ends[..., None]))
            masks["sliding_attention"] = additive(near, dtype)
        return masks


def seen_by_last(attention_mask: Tensor | dict[str, Tensor] | None, keys: int, block: Tensor) -> Tensor:
    """The keys that the last token of a pass sees by a causal mask of any form, (batch, keys)."""
    if attention_mask is None:
        return torch.ones(len(block), keys, dtype=torch.bool, device=block.device)
    if isinstance(attention_mask, dict):
        attention_mask = attention_mask["full_attention"]
    if attention_mask.ndim == 2:
        return attention_mask.bool()
    last = attention_mask[:, 0, -1]
    return last if last.dtype == torch.bool else last == 0


class MarkovHead(nn.Module):
    """A bias of the logits of a place, by the token before it.

    `"vanilla"`: a product of two matrices of low rank. `"gated"`: the state of the place chooses from the token's row.
    `"rnn"`: a recurrent memory over the block besides.
    """

    def __init__(self, config: DFlashConfig):
        super().__init__()
        rank, width = config.markov_rank, config.hidden_size
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def forward(self, previous: Tensor, states: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The bias, (n, draft_vocab_size), and the memory for the next place.

        Args:
            previous (`torch.LongTensor` of shape `(n,)`): the token before each place.
            states (`torch.Tensor` of shape `(n, hidden_size)`): of the places.
            memory (`torch.Tensor` of shape `(n, markov_rank)`, *optional*): of the place before; none at the first.
        """
        row = self.markov_w1(previous)
        if self.kind == "vanilla":
            return self.markov_w2(row), None
        if self.kind == "gated":
            return self.markov_w2(self.gate_proj(torch.cat((states, row), dim=-1)).sigmoid() * row), None
        memory = torch.zeros_like(row) if memory is None else memory
        gate, candidate, said = self.joint_proj(torch.cat((memory, row, states), dim=-1)).chunk(3, dim=-1)
        gate = gate.sigmoid()
        return self.markov_w2(said.tanh()), gate * memory + (1 - gate) * candidate.tanh()


class ConfidenceHead(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)


class TargetVocabulary(nn.Module):
    """The target's output layer, which is neither saved nor moved nor copied with the draft."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.shape = config.vocab_size, config.hidden_size
        self.borrowed: Borrowed | None = None

    @property
    def weight(self) -> Tensor:
        """Without a target its shape alone, for which an acceptance head can be trained on states that are stored."""
        return torch.empty(self.shape, device="meta") if self.borrowed is None else self.borrowed.module.weight

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, target_embedding(self.borrowed).weight.to(hidden_states))


class DFlashForCausalLM(PublishedDraft, Qwen3PreTrainedModel, GenerationMixin):
    """A DFlash draft; `load_draft` reads published ones and gives them to their target."""

    config_class = DFlashConfig
    config: DFlashConfig
    read_published = staticmethod(read_block_config)
    _no_split_modules = ("BlockLayer",)
    _tied_weights_keys = None
    _keys_to_ignore_on_load_missing = (r"d2t",)
    _keys_to_ignore_on_load_unexpected = (r"t2d", r"d2t", r"verifier_")

    def __init__(self, config: DFlashConfig):
        super().__init__(config)
        self.model = DFlashModel(config)
        self.lm_head = DraftVocabulary(config) if config.own_head else TargetVocabulary(config)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        width = config.hidden_size + (config.markov_rank if config.confidence_head_with_markov else 0)
        self.confidence_head = ConfidenceHead(width) if config.enable_confidence_head else None
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, DraftVocabulary):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            nn.init.zeros_(module.d2t)
        elif not isinstance(module, TargetVocabulary):
            super()._init_weights(module)

    def borrow(self, target: PreTrainedModel) -> None:
        super().borrow(target)
        if not self.config.own_head:
            self.lm_head.borrowed = Borrowed(target.get_output_embeddings())

    def biased(
        self, logits: Tensor, previous: Tensor, states: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The logits of places once the tokens before them are known, and the memory for the next places.

        Args:
            logits (`torch.Tensor` of shape `(n, vocab_size)`), states (`torch.Tensor` of shape `(n, hidden_size)`):
                of the places.
            previous (`torch.LongTensor` of shape `(n,)`): the tokens before them.
            memory (`torch.Tensor` of shape `(n, markov_rank)`, *optional*): see `MarkovHead`.
        """
        if self.markov_head is None:
            return logits, None
        bias, memory = self.markov_head(previous, states, memory)
        if bias.shape[-1] == logits.shape[-1]:
            return logits + bias, memory
        return logits.index_add(-1, self.lm_head.token_ids, bias.to(logits)), memory

    def confidence(self, previous: Tensor, states: Tensor) -> Tensor:
        """How likely the target is to accept what is drawn in places, raw logits, (n,); see `biased`."""
        if self.config.confidence_head_with_markov:
            states = torch.cat((states, self.markov_head.markov_w1(previous)), dim=-1)
        return self.confidence_head.proj(states).squeeze(-1)

    def forward(
        self,
        input_ids: torch.LongTensor,
        taps: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs,
    ) -> BlockOutput:
        """What stands in the places of a block, without the bias of what is drawn in the block, see `biased`.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, read + block)`): tokens that are read by their states
                alone, and a block, the newest token of the text and masks.
            taps (`torch.Tensor` of shape `(batch, read, taps * target_hidden_size)`): the target's states of the
                former, those of `config.target_layers` side by side.
            attention_mask: as of a causal model, in any form; of tokens in order the last of the block sees the whole
                text and the block, and what it sees they all do.
            logits_to_keep (`int` or `torch.LongTensor`): return the last so many logits and states, or those at these
                places of the block; all if 0.

        Raises:
            ValueError: if `taps` are not given, or there is no embedding.
        """
        if taps is None:
            raise ValueError(
                "a draft of blocks reads hidden states of its target: give taps; generate with "
                "candidate_generator=SpecDecPP, which does"
            )
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        states = self.model(input_ids, taps, attention_mask, position_ids, past_key_values)
        states = states[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]
        return BlockOutput(logits=self.lm_head(states), past_key_values=past_key_values, states=states)


class DSparkForCausalLM(DFlashForCausalLM):
    """A DSpark draft; `load_draft` reads published ones and gives them to their target."""

    config_class = DSparkConfig
    config: DSparkConfig


BLOCK_DRAFTS = {"dflash": DFlashForCausalLM, "dspark": DSparkForCausalLM}
for config_class, draft_class in ((DFlashConfig, DFlashForCausalLM), (DSparkConfig, DSparkForCausalLM)):
    AutoConfig.register(config_class.model_type, config_class)
    AutoModelForCausalLM.register(config_class, draft_class)
