"""Configurations of DFlash and DSpark drafts, as they are here and as they are published, in two layouts.

`"dflash"` (z-lab): a flat Qwen3 configuration, and in `dflash_config` the mask token and layer ids, which say after
which of the target's layers a state is taken, from 0. `"speculators"` (speculators, vLLM): the configuration of the
layers is nested, and layer ids are indices into `hidden_states`.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from transformers import PreTrainedConfig, Qwen3Config

from .config import KEPT, LAYERS, SHAPE, ReadsTarget, layer_settings

WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")


class DFlashConfig(ReadsTarget, Qwen3Config):
    """The configuration of a DFlash draft (arXiv 2602.06036); `vocab_size` is the target's.

    Args:
        block_size (`int`): tokens of a block: the newest of the text and masks.
        mask_token_id (`int`): the token that stands for one that is not known yet.
        sample_from_anchor (`bool`): a place says what follows it, and a block of `block_size` places as many tokens;
            else a mask says what stands in its own place, and a block one token less.
        draft_vocab_size (`int`, *optional*): the tokens that the draft can say; all if left out.
        target_hidden_size (`int`, *optional*): the target's width; the draft's own if left out.
        target_layers (`list[int]`, *optional*): the taps, indices into the target's `hidden_states`: 0 are the
            embeddings, i what the i-th layer says. Left out, 2, N // 2 and N - 3 of N layers.
        sliding_window_non_causal (`bool`): in layers with a window too, tokens of a block see those behind them.
        markov_rank (`int`): of the bias that the token before adds to the logits, see `MarkovHead`; 0 for none.
        markov_head_type (`str`): `"vanilla"`, `"gated"` or `"rnn"`.
        enable_confidence_head (`bool`), confidence_head_with_markov (`bool`): whether a layer says how likely the
            target is to accept each token, and whether it reads the token before.
        own_embedding (`bool`), own_head (`bool`): it has an embedding and an output layer of its own, instead of the
            target's.
        layout (`str`): how it is published, `"dflash"` (z-lab) or `"speculators"`.
        published (`dict`, *optional*): what else the published configuration said, to be said again.
        target_name_or_path (`str`, *optional*): the target that it was trained for.
    """

    model_type = "dflash"
    architecture: ClassVar[str] = "DFlashSpeculator"
    block_size: int = 8
    mask_token_id: int | None = None
    sample_from_anchor: bool = False
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    target_layers: list[int] | None = None
    sliding_window_non_causal: bool = False
    markov_rank: int = 0
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False
    own_embedding: bool = False
    own_head: bool = True
    layout: str = "speculators"
    published: dict | None = None
    target_name_or_path: str | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.draft_vocab_size = self.draft_vocab_size or self.vocab_size
        self.target_hidden_size = self.target_hidden_size or self.hidden_size

    @property
    def drafted(self) -> int:
        """Tokens that a block adds to a text."""
        return self.block_size - (not self.sample_from_anchor)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> DFlashConfig:
        """From a configuration of ours or a published one; of the latter only what tensors do not settle."""
        ours = config_dict.get("model_type") == cls.model_type
        return super().from_dict(config_dict if ours else read_block_config(config_dict, {}).to_dict(), **kwargs)

    def to_json_string(self, use_diff: bool = True) -> str:
        """The published configuration, see `write_block_config`."""
        return json.dumps(write_block_config(self), indent=2, sort_keys=True) + "\n"


class DSparkConfig(DFlashConfig):
    """The configuration of a DSpark draft (arXiv 2607.05147): DFlash with a Markov head and a confidence head."""

    model_type = "dspark"
    architecture: ClassVar[str] = "DSparkSpeculator"
    sample_from_anchor: bool = True
    markov_rank: int = 256
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True


OF_DFLASH = ("block_size", "mask_token_id", "sample_from_anchor", "sliding_window_non_causal")
OF_DSPARK = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
CONFIGS = {"dflash": DFlashConfig, "dspark": DSparkConfig}


def block_kind(config: dict[str, Any]) -> str | None:
    """Whether a published configuration is that of a `"dflash"` or a `"dspark"` draft; `None` for others."""
    kind = config.get("speculators_model_type") or ("dflash" if "dflash_config" in config else None)
    kind = kind or config.get("model_type")
    return kind if kind in CONFIGS else None


def check_reads(config: PreTrainedConfig, states: list[str]) -> None:
    """Raises `ValueError` if `states`, of `"before"` and `"after"` a token, has one that a draft of blocks lacks."""
    if isinstance(config, DFlashConfig) and "after" in states:
        raise ValueError(
            "the draft says a block of tokens in one pass and reads none of them, so it has no state after a token: "
            "label with --states before, and train a head with --reads before"
        )


def read_block_config(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> DFlashConfig:
    """From a published configuration, and the shapes of the published tensors, which settle what it leaves open.

    Raises:
        ValueError: for what such a draft cannot be.
    """
    kind = block_kind(config)
    nested, flat = config.get("transformer_layer_config"), config.get("dflash_config") or {}
    own = {name: (config | flat)[name] for name in OF_DFLASH + OF_DSPARK if (config | flat).get(name) is not None}
    values = {"model_type": "qwen3", **(config if nested is None else nested)}
    if values["model_type"] not in (*LAYERS, *CONFIGS):
        raise ValueError(
            f"the draft's layers are of type {values['model_type']!r}, and a draft of blocks can have those of "
            f"{' and '.join(LAYERS)}: use another draft"
        )
    for name in ("block_size", "mask_token_id"):
        if name not in own:
            raise ValueError(f"the draft's configuration names no {name}, which a draft of blocks needs: add it")
    layer = LAYERS.get(values.pop("model_type"), Qwen3Config)(**values)
    if not 0 <= own["mask_token_id"] < layer.vocab_size:
        raise ValueError(
            f"the draft's mask_token_id is {own['mask_token_id']}, and its vocabulary has {layer.vocab_size} tokens: "
            "use another draft"
        )
    layers = config.get("aux_hidden_state_layer_ids")
    if layers is None and flat.get("target_layer_ids"):
        layers = [i + 1 for i in flat["target_layer_ids"]]
    if not layers:
        raise ValueError(
            "the draft's configuration names no layer ids of the target, which a draft of blocks needs: add them"
        )
    taps, fused = len(layers), shapes.get("fc.weight", (0, 0))[1]
    if fused % taps:
        raise ValueError(f"fc.weight reads {fused} numbers, which are no {taps} states of the target of equal width")
    found = CONFIGS[kind](
        **{name: getattr(layer, name) for name in SHAPE}, **own,
        **{name: getattr(layer, name) for name in WINDOWS if hasattr(layer, name)},
        rope_parameters=layer.rope_parameters, tie_word_embeddings=False, target_layers=layers,
        layout="dflash" if nested is None else "speculators",
        draft_vocab_size=config.get("draft_vocab_size") or shapes.get("lm_head.weight", (None,))[0],
        target_hidden_size=fused // taps or config.get("target_hidden_size"),
        own_embedding="embed_tokens.weight" in shapes, own_head=not shapes or "lm_head.weight" in shapes,
        published={name: config[name] for name in KEPT if name in config},
        dtype=config.get("dtype", config.get("torch_dtype")),
    )  # fmt: skip
    if found.confidence_head_with_markov and found.enable_confidence_head and not found.markov_rank:
        raise ValueError("the draft's confidence head reads a Markov head (markov_rank is 0), which it lacks")
    if not found.own_head and found.draft_vocab_size != found.vocab_size:
        found.own_head = True  # then it is missed
    return found


def write_block_config(config: DFlashConfig) -> dict[str, Any]:
    """A published configuration, in the layout of `config`."""
    layer = layer_settings(config) | {name: getattr(config, name) for name in WINDOWS}
    own = {name: getattr(config, name) for name in OF_DFLASH}
    own |= {"dtype": str(config.dtype).removeprefix("torch.")} | (config.published or {})
    if config.layout == "dflash":
        flat = {"mask_token_id": own.pop("mask_token_id")}
        if config.target_layers is not None:
            flat["target_layer_ids"] = [i - 1 for i in config.target_layers]
        return {
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", **layer, **own, "dflash_config": flat,
        }  # fmt: skip
    if config.model_type == "dspark":
        own |= {name: getattr(config, name) for name in OF_DSPARK}
    tokens = [{"proposal_type": "greedy", "speculative_tokens": config.drafted, "verifier_accept_k": 1,
               "accept_tolerance": 0.0}]  # fmt: skip
    own.setdefault("speculators_config", {
        "algorithm": config.model_type, "default_proposal_method": "greedy", "proposal_methods": tokens,
        "verifier": {"name_or_path": config.target_name_or_path, "architectures": []},
    })  # fmt: skip
    return {
        "architectures": [config.architecture], "speculators_model_type": config.model_type, **own,
        "draft_vocab_size": config.draft_vocab_size, "aux_hidden_state_layer_ids": config.target_layers,
        "transformer_layer_config": {"model_type": "qwen3", **layer},
    }  # fmt: skip
