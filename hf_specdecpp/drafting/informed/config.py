"""EAGLE-3 drafts' configurations, as they are here and as they are published, in the two layouts that there are.

`"eagle"` (SafeAILab, SpecForge, SGLang): a flat Llama configuration, the layer is `midlayer`, and layer ids, in
`eagle_config`, say after which of the target's layers a state is taken, from 0. `"speculators"` (speculators, vLLM):
the layer's configuration is nested, layers are `layers.0` and so on, and layer ids are indices into `hidden_states`.
"""

from __future__ import annotations

import json
from typing import Any

from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
EAGLE, SPECULATORS = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"), ("Eagle3Speculator", "Eagle3DraftModel")
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps",
    "attention_bias", "attention_dropout", "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip
KEPT = ("speculators_config", "speculators_version", "embed_requires_grad")  # said again as they were


class ReadsTarget:
    """Of configurations of drafts that read their target's states."""

    @property
    def num_taps(self) -> int:
        return len(self.target_layers or (2, 0, -3))


class Eagle3Config(ReadsTarget, LlamaConfig):
    """The configuration of an EAGLE-3 draft; `vocab_size` is the target's.

    Args:
        draft_vocab_size (`int`, *optional*): the tokens that the draft can say; all if left out.
        target_hidden_size (`int`, *optional*): the target's width; the draft's own if left out.
        target_layers (`list[int]`, *optional*): the taps, indices into the target's `hidden_states`: 0 are the
            embeddings, i what the i-th layer says. Left out, 2, N // 2 and N - 3 of N layers.
        qk_norm (`bool`): layers are those of Qwen3, with norms of queries and keys, instead of Llama's.
        norm_before_residual (`bool`): the state passes its norm before it becomes the residual.
        norm_before_fc (`bool`): one norm of all taps together before they are fused.
        fc_norm (`bool`): one norm for each tap before they are fused.
        norm_output (`bool`): the state that is fed back has passed the last norm.
        own_embedding (`bool`): it has an embedding of its own, instead of the target's.
        layout (`str`): how it is published, `"eagle"` (SafeAILab, SpecForge) or `"speculators"`.
        published (`dict`, *optional*): what else the published configuration said, to be said again.
        target_name_or_path (`str`, *optional*): the target that it was trained for.
    """

    model_type = "eagle3"
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    target_layers: list[int] | None = None
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    layout: str = "eagle"
    published: dict | None = None
    target_name_or_path: str | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.draft_vocab_size = self.draft_vocab_size or self.vocab_size
        self.target_hidden_size = self.target_hidden_size or self.hidden_size

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Eagle3Config:
        """From a configuration of ours or a published one; of the latter only what tensors do not settle."""
        ours = config_dict.get("model_type") == cls.model_type
        return super().from_dict(config_dict if ours else read_config(config_dict, {}).to_dict(), **kwargs)

    def to_json_string(self, use_diff: bool = True) -> str:
        """The published configuration, see `write_config`."""
        return json.dumps(write_config(self), indent=2, sort_keys=True) + "\n"


def layers_read(draft: PreTrainedConfig, target: PreTrainedConfig) -> tuple[int, ...]:
    """Which of the target's `hidden_states` a draft reads; none, if it is an ordinary one.

    Raises:
        ValueError: if the draft is for a target of another width, depth or vocabulary.
    """
    if not isinstance(draft, ReadsTarget):
        return ()
    target = target.get_text_config()
    for what, own, theirs in (
        ("states of width", draft.target_hidden_size, target.hidden_size),
        ("a vocabulary of", draft.vocab_size, target.vocab_size),
    ):
        if own != theirs:
            raise ValueError(
                f"the draft is for a target with {what} {own}, and this one has {theirs}: use a draft that was "
                "trained for this target"
            )
    depth = target.num_hidden_layers
    layers = draft.target_layers or [2, depth // 2, depth - 3]
    if min(layers) < 0 or max(layers) > depth:
        raise ValueError(
            f"the draft reads the target's hidden states {layers}, and a target of {depth} layers has those from 0 to "
            f"{depth}: use a draft that was trained for this target"
        )
    if not draft.own_embedding and draft.hidden_size != target.hidden_size:
        raise ValueError(
            f"the draft has no embedding, and the target's, of width {target.hidden_size}, does not fit its own width "
            f"{draft.hidden_size}: use a draft with an embedding of its own"
        )
    return tuple(layers)


def is_eagle3(config: dict[str, Any]) -> bool:
    """Whether a published configuration is that of an EAGLE-3 draft."""
    kind = config.get("speculators_model_type")
    if kind is not None:
        return kind == "eagle3"
    named = set(config.get("architectures") or []) & {*EAGLE, *SPECULATORS}
    return bool(named) or config.get("model_type") == "eagle3" or "draft_vocab_size" in config


def read_config(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Eagle3Config:
    """From a published configuration, and the shapes of the published tensors, which settle what it leaves open.

    Raises:
        ValueError: for what an EAGLE-3 draft cannot be.
    """
    nested = config.get("transformer_layer_config")
    layout = "eagle" if nested is None else "speculators"
    values = {"model_type": "llama", **(config if nested is None else nested)}
    if values["model_type"] not in (*LAYERS, "eagle3"):
        raise ValueError(
            f"the draft's layers are of type {values['model_type']!r}, and an EAGLE-3 draft can have those of "
            f"{' and '.join(LAYERS)}: use another draft"
        )
    layer = LAYERS.get(values.pop("model_type"), LlamaConfig)(**values)
    if getattr(layer, "use_sliding_window", False) and layer.sliding_window:
        raise ValueError("the draft's layers have sliding windows, which EAGLE-3 drafts cannot have here")
    if (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        raise ValueError(
            "the draft reads one state of the target (eagle_config says use_aux_hidden_state: false), as EAGLE-1 and "
            "EAGLE-2 did: only drafts in the format of EAGLE-3 can be loaded"
        )
    layers = config.get("eagle_aux_hidden_state_layer_ids")
    if layers is None and (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids"):
        layers = [i + 1 for i in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    taps, fused = len(layers or (2, 0, -3)), shapes.get("fc.weight", (0, 0))[1]
    if fused % taps:
        raise ValueError(f"fc.weight reads {fused} numbers, which are no {taps} states of the target of equal width")
    norms = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}
    flags = {flag: bool(config.get(flag)) or norms.get(flag) in shapes for flag in FLAGS}
    count = sum(name in shapes for name in (f"{at}self_attn.q_proj.weight" for at in places(shapes)))
    return Eagle3Config(
        **{name: getattr(layer, name) for name in SHAPE if name != "num_hidden_layers"}, **flags,
        num_hidden_layers=count or (1 if nested is None else layer.num_hidden_layers),
        mlp_bias=getattr(layer, "mlp_bias", False),
        rope_parameters=layer.rope_parameters, tie_word_embeddings=False, layout=layout, target_layers=layers,
        draft_vocab_size=config.get("draft_vocab_size") or shapes.get("lm_head.weight", (None,))[0],
        target_hidden_size=fused // taps or config.get("target_hidden_size"),
        qk_norm=any(name.endswith("q_norm.weight") for name in shapes),
        own_embedding="embed_tokens.weight" in shapes,
        published={name: config[name] for name in KEPT if name in config},
        dtype=config.get("dtype", config.get("torch_dtype")),
    )  # fmt: skip


def places(names: Any) -> list[str]:
    """How names of tensors of layers begin."""
    return sorted({"midlayer." if n.startswith("midlayer.") else n[: n.index(".", 7) + 1]
                   for n in names if n.startswith(("midlayer.", "layers."))})  # fmt: skip


def layer_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """What a published configuration says of a draft's layers."""
    layer = {name: getattr(config, name) for name in SHAPE} | {"tie_word_embeddings": False}
    rope = dict(config.rope_parameters)
    layer["rope_theta"] = rope.pop("rope_theta")
    layer["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    return layer


def write_config(config: Eagle3Config) -> dict[str, Any]:
    """A published configuration, in the layout of `config`."""
    layer = layer_settings(config)
    kind = "qwen3" if config.qk_norm else "llama"
    if kind == "llama":
        layer["mlp_bias"] = config.mlp_bias
    own = {"draft_vocab_size": config.draft_vocab_size} | (config.published or {})
    own["dtype"] = str(config.dtype).removeprefix("torch.")
    if config.target_hidden_size != config.hidden_size:
        own["target_hidden_size"] = config.target_hidden_size
    if config.layout == "eagle":
        own |= {flag: True for flag in FLAGS if getattr(config, flag)}
        if config.target_layers is not None:
            ids = [i - 1 for i in config.target_layers]
            own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
        return {"architectures": [EAGLE[0]], "model_type": kind, **layer, **own}
    proposals = [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}]
    own.setdefault("speculators_config", {
        "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": proposals,
        "verifier": {"name_or_path": config.target_name_or_path, "architectures": []},
    })  # fmt: skip
    return {
        "architectures": [SPECULATORS[0]], "speculators_model_type": "eagle3", **own,
        **{flag: getattr(config, flag) for flag in FLAGS},
        "eagle_aux_hidden_state_layer_ids": config.target_layers,
        "transformer_layer_config": {"model_type": kind, **layer},
    }  # fmt: skip
