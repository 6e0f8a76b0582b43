"""Tiny random models of every architecture, drafts that often agree with them, a byte-level tokenizer, and labels."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from datasets import Dataset
from peft import get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from hf_specdecpp import AcceptanceHeadConfig, collect_stats
from hf_specdecpp.acceptance import acceptance_layer
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.drafting.informed.config import Eagle3Config
from hf_specdecpp.drafting.informed.dflash import DFlashForCausalLM, DSparkForCausalLM
from hf_specdecpp.drafting.informed.eagle3 import Eagle3ForCausalLM
from hf_specdecpp.hub.data import fingerprint, tokenized_prompts
from hf_specdecpp.stopping import Round
from hf_specdecpp.training.label_folder import LabelsCard
from hf_specdecpp.training.labels import Rows

VOCAB, HIDDEN = 264, 32
SHARED = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA_LIKE = SHARED | {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
CONFIGS = {
    "llama": LlamaConfig(**LLAMA_LIKE),
    "qwen2": Qwen2Config(**LLAMA_LIKE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**LLAMA_LIKE, head_dim=8),
    "mistral": MistralConfig(**LLAMA_LIKE, sliding_window=12),
    "gemma": GemmaConfig(**LLAMA_LIKE, head_dim=8, tie_word_embeddings=False),
    # Every other layer slides, over fewer tokens than most texts of the tests have.
    "gemma2": Gemma2Config(
        **LLAMA_LIKE, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma3": Gemma3TextConfig(
        **LLAMA_LIKE, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen2_mixed": Qwen2Config(
        **LLAMA_LIKE, use_sliding_window=True, sliding_window=9, layer_types=["full_attention", "sliding_attention"]
    ),
    "gpt2": GPT2Config(**SHARED, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=512),
    "gpt_neox": GPTNeoXConfig(
        **SHARED, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512,
    ),
    "opt": OPTConfig(
        **SHARED, hidden_size=HIDDEN, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, word_embed_proj_dim=HIDDEN,
    ),
}  # fmt: skip


def slow(*values):
    """A case of `pytest.mark.parametrize` that CI runs, and the quick suite leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def tiny_model(architecture: str = "llama", seed: int = 0, **changes):
    """A random model in float32 whose logits are spread enough to have opinions."""
    torch.manual_seed(seed)
    config = copy.deepcopy(CONFIGS[architecture])
    for name, value in changes.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(12 if "embed" in name or "wte" in name else 6)
    return model


def similar_draft(target, noise: float = 0.15, seed: int = 1):
    """The target with noisy weights: it agrees with the target on about half of the tokens."""
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise * parameter.std())
    return draft


def informed_draft(target, texts: list[torch.Tensor], steps: int = 30, **config) -> Eagle3ForCausalLM:
    """An EAGLE-3 draft that has learned some of what `target` says in `texts`, two tokens ahead."""
    torch.manual_seed(0)
    width = target.config.hidden_size
    settings = {
        "hidden_size": width, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "vocab_size": VOCAB, "draft_vocab_size": VOCAB - 20,
        "target_layers": list(range(target.config.num_hidden_layers + 1)),
    }  # fmt: skip
    draft = Eagle3ForCausalLM(Eagle3Config(**settings | config))
    draft.borrow(target)
    draft.lm_head.d2t.fill_(10)
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    rows = torch.where(torch.isin(ids, draft.lm_head.token_ids) & (ids > 0), ids - 10, -100)
    with torch.no_grad():
        states = target(ids, output_hidden_states=True).hidden_states
    taps = torch.cat([states[layer] for layer in draft.config.target_layers], dim=-1)[:, :-2]
    optimizer = torch.optim.Adam(draft.parameters(), 5e-3)
    for _ in range(steps):
        first = draft.model(ids[:, 1:-1], taps=taps)
        second = draft.model(ids[:, 2:-1], states=first.states[:, :-1])
        loss = sum(
            torch.nn.functional.cross_entropy(draft.lm_head.compact_logits(o.last_hidden_state).mT, rows[:, begin:])
            for o, begin in ((first, 2), (second, 3))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return draft.eval()


def block_draft(target, texts: list[torch.Tensor], kind=DFlashForCausalLM, steps: int = 40, **config):
    """A DFlash or DSpark draft that has learned some of what `target` says in `texts`."""
    torch.manual_seed(0)
    settings = {
        "hidden_size": target.config.hidden_size, "intermediate_size": 40, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": VOCAB, "block_size": 5, "mask_token_id": 3,
        "target_layers": list(range(target.config.num_hidden_layers + 1)),
    }  # fmt: skip
    rank = {"markov_rank": 8} if kind is DSparkForCausalLM else {}
    draft = kind(kind.config_class(**settings | rank | config))
    draft.borrow(target)
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with torch.no_grad():
        states = target(ids, output_hidden_states=True).hidden_states
    taps = torch.cat([states[layer] for layer in draft.config.target_layers], dim=-1)
    masks = torch.full((len(ids), draft.config.block_size - 1), draft.config.mask_token_id)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([p for p in draft.parameters() if p.requires_grad], 5e-3)
    skipped = int(not draft.config.sample_from_anchor)
    for _ in range(steps):
        loss = 0
        for anchor in torch.randint(3, ids.shape[1] - draft.config.drafted, (4,), generator=generator).tolist():
            found = draft(torch.cat((ids[:, : anchor + 1], masks), dim=-1), taps=taps[:, :anchor])
            memory = None
            for place in range(skipped, draft.config.block_size):
                before = anchor + place - skipped
                logits, memory = draft.biased(found.logits[:, place], ids[:, before], found.states[:, place], memory)
                loss = loss + torch.nn.functional.cross_entropy(logits, ids[:, before + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return draft.eval()


def randomise_head(model, scale: float = 0.4, seed: int = 3, name: str = "default") -> None:
    """Weights for a head that judges some tokens well and some badly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in acceptance_layer(model).acceptance_head[name].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def with_head(draft, name: str = "default", seed: int = 3, **config):
    """`draft` as a `PeftModel` with a random head."""
    config = {"num_layers": 1, "rejection_weight": 1.0} | config
    model = get_peft_model(draft, AcceptanceHeadConfig(**config), adapter_name=name)
    randomise_head(model, seed=seed, name=name)
    return model


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, four special tokens, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
    )  # fmt: skip


def prompt(length: int = 7, seed: int = 0) -> torch.Tensor:
    """(1, length) of ordinary token ids."""
    return torch.randint(4, VOCAB - 4, (1, length), generator=torch.Generator().manual_seed(seed))


def ragged(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of rows of these lengths, padded on the left."""
    longest = max(lengths)
    ids = torch.cat([prompt(longest, seed + row) for row in range(len(lengths))])
    mask = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}


@contextmanager
def heard():
    """The rounds of the generations inside the block."""
    rounds: list[Round] = []
    with collect_stats(on_round=rounds.append):
        yield rounds


# Labels of tiny pairs.

LABELLED_MODES = {"greedy": Decoding(), "sampling": Decoding(True, top_k=20)}


def prompts(tokenizer, n=10, **columns):
    return tokenized_prompts(tokenizer, Dataset.from_dict({"prompt": [f"{i} + {i * i}?" for i in range(n)]} | columns))


ON_POLICY = Rows()


def card_of(pair, rows, made=ON_POLICY, **changes):
    settings = {"states": [], "max_new_tokens": 8, "batch_size": 4, "seed": 0} | changes
    modes = settings.pop("modes", LABELLED_MODES)
    return LabelsCard.of(
        *pair, Decoding(True), modes, made, prompts=len(rows),
        prompts_sha256=fingerprint(rows), **settings,
    )  # fmt: skip
