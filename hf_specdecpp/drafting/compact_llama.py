"""A Llama whose vocabulary is stored and computed for the frequent tokens only: a cheap draft for a big vocabulary.

On a CPU half of a two-layer draft's step is the multiplication with the output embedding. `CompactLlamaForCausalLM`
keeps one tied embedding of `compact_vocab_size` rows. Outside it speaks the full vocabulary, so it is an ordinary
`assistant_model`: an input token without a row of its own borrows the row of a kept token, and the logits are
scattered to full size, where a token without a row has the lowest finite logit (probability 0, safe for entropies).

Knows nothing of acceptance heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ..decoding.packing import packs, product


class CompactLlamaConfig(LlamaConfig):
    """A `LlamaConfig` with the number of tokens that have a row in the embedding.

    `vocab_size` stays the tokenizer's, so that the draft and its target are seen to share one vocabulary.
    """

    model_type = "compact_llama"
    compact_vocab_size: int = 12288


class CompactEmbedding(nn.Module):
    """Looks tokens of the full vocabulary up in an embedding of the kept ones.

    `compact_ids` (`torch.LongTensor` of shape `(vocab_size,)`) is the row that each token uses.
    """

    def __init__(self, vocab_size: int, compact_vocab_size: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(compact_vocab_size, hidden_size))
        self.register_buffer("compact_ids", torch.zeros(vocab_size, dtype=torch.long))

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(self.compact_ids[input_ids], self.weight)


class CompactOutput(nn.Module):
    """Scatters the logits of the kept tokens to the full vocabulary.

    `token_ids` (`torch.LongTensor` of shape `(compact_vocab_size,)`) is the token that each row stands for.
    """

    def __init__(self, vocab_size: int, compact_vocab_size: int, hidden_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.weight = nn.Parameter(torch.empty(compact_vocab_size, hidden_size))
        self.register_buffer("token_ids", torch.zeros(compact_vocab_size, dtype=torch.long))

    def compact_logits(self, hidden_states: Tensor) -> Tensor:
        """(..., hidden_size) -> (..., compact_vocab_size), for training, where the scatter would only cost memory."""
        return F.linear(hidden_states, self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        compact = self.compact_logits(hidden_states)
        logits = compact.new_full((*compact.shape[:-1], self.vocab_size), torch.finfo(compact.dtype).min)
        logits[..., self.token_ids] = compact
        return logits


@packs(CompactOutput)
class PackedCompactOutput(CompactOutput):
    def compact_logits(self, hidden_states: Tensor) -> Tensor:
        return product(self, hidden_states)


class CompactLlamaForCausalLM(LlamaForCausalLM):
    """A causal Llama over a compact vocabulary; loads and saves like any other model once hf_specdecpp is imported."""

    config_class = CompactLlamaConfig

    def __init__(self, config: CompactLlamaConfig):
        super().__init__(config)
        sizes = (config.vocab_size, config.compact_vocab_size, config.hidden_size)
        self.model.embed_tokens = CompactEmbedding(*sizes)
        self.lm_head = CompactOutput(*sizes)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (CompactEmbedding, CompactOutput)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        else:
            super()._init_weights(module)

    @torch.no_grad()
    def set_vocabulary(self, token_ids: Tensor, embedding: Tensor) -> None:
        """Keep `token_ids` and fill their rows from the target's `embedding`.

        A token that is not kept borrows the row of the kept token whose embedding has the nearest direction.

        Args:
            token_ids (`torch.LongTensor` of shape `(compact_vocab_size,)`): the kept tokens.
            embedding (`torch.Tensor` of shape `(vocab_size, hidden_size)`): the target's input embedding.
        """
        kept = embedding[token_ids]
        directions = F.normalize(embedding.float(), dim=-1)
        nearest = [(chunk @ directions[token_ids].T).argmax(-1) for chunk in directions.split(4096)]
        compact_ids = torch.cat(nearest)
        compact_ids[token_ids] = torch.arange(len(token_ids))
        self.model.embed_tokens.compact_ids.copy_(compact_ids)
        self.lm_head.token_ids.copy_(token_ids)
        self.model.embed_tokens.weight.copy_(kept)


AutoConfig.register("compact_llama", CompactLlamaConfig)
AutoModelForCausalLM.register(CompactLlamaConfig, CompactLlamaForCausalLM)
