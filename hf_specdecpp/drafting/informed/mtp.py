"""Multi-token prediction (MTP, arXiv 2412.19437): a layer of the target's own checkpoint that drafts for it.

Entry i is the token x_i beside the target's last state of x_{i-1}, normed as the target's output layer reads it;
behind it the layer says x_{i+1} with the target's output layer. Behind tokens that it drafted itself it reads its own
last state. A checkpoint may have such a layer for each depth. The first serves all: it is the only one in most, and
deeper ones would need a text of their own, each shifted by one more token.

Layers and their names in a checkpoint are transformers'.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import MtpModel

from ...decoding.masks import windows
from .borrowed import Borrowed
from .config import ReadsTarget
from .dflash import TargetVocabulary
from .eagle3 import Eagle3ForCausalLM, StepModel
from .published import PublishedDraft


class MtpConfig(ReadsTarget, PreTrainedConfig):
    """The configuration of a target's MTP layer.

    Args:
        text_config (`PreTrainedConfig`): of the layer, see `get_mtp_config`.
        vocab_size (`int`), hidden_size (`int`): the target's.
        target_layers (`list[int]`): the tap, the last of the target's `hidden_states`.
    """

    model_type = "mtp"
    text_config: PreTrainedConfig | dict | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    target_layers: list[int] | None = None
    own_embedding: bool = False
    layout: str = "speculators"  # the meaning of its layer ids
    target_name_or_path: str | None = None

    @property
    def target_hidden_size(self) -> int | None:
        return self.hidden_size


class MtpStep(StepModel):
    """An MTP layer without its vocabulary."""

    def __init__(self, mtp: MtpModel):
        super().__init__(mtp.config)
        self.layers, self.norm = mtp.layers[:1], nn.Identity()  # the layer has its own
        self.rotary_emb = copy.deepcopy(mtp.rotary_emb)
        if getattr(mtp, "has_per_layer_rope", False):
            self.rope["layer_type"] = self.config.layer_types[0]

    @property
    def fc(self) -> nn.Linear:
        return self.layers[0].eh_proj

    def fused(self, taps: Tensor) -> Tensor:
        return taps.to(self.fc.weight)  # the layer fuses them itself


class MtpForCausalLM(PublishedDraft, PreTrainedModel, GenerationMixin):
    """The draft that a target carries; `load_draft` makes it of the target's checkpoint."""

    config_class = MtpConfig
    config: MtpConfig
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _no_split_modules = ("MtpLayer",)

    def __init__(self, config: MtpConfig, mtp: MtpModel):
        super().__init__(config)
        self.model, self.lm_head = MtpStep(mtp), TargetVocabulary(config)

    @classmethod
    def from_pretrained(cls, target: PreTrainedModel) -> MtpForCausalLM:
        """The draft of `target`, from the checkpoint that it was loaded from, in its dtype.

        Raises:
            ValueError: if the checkpoint holds no MTP layers, or such as cannot draft token by token.
        """
        name = target.config._name_or_path
        try:
            mtp = MtpModel.from_pretrained(target)
        except (RuntimeError, ValueError, OSError) as error:
            raise ValueError(
                f"the configuration of {name!r} names MTP layers (num_mtp_layers), and none can be loaded from its "
                f"checkpoint, so give another draft: {' '.join(str(error).split())}"
            ) from error
        layer = mtp.config
        layer.num_hidden_layers = 1
        if getattr(layer, "layer_types", None):
            layer.layer_types = layer.layer_types[:1]
        if mtp.rotary_emb is None or not mtp.use_post_norm or not windows(layer):
            raise ValueError(
                f"the MTP layers of {name!r}, a {layer.model_type}, keep another state than keys and values, or take "
                "another form than DeepSeek-V3's: give another draft"
            )
        depth = target.config.get_text_config().num_hidden_layers
        config = MtpConfig(
            text_config=layer, vocab_size=layer.vocab_size, hidden_size=layer.hidden_size, target_layers=[depth],
            name_or_path=name, dtype=layer.dtype,
        )  # fmt: skip
        config._attn_implementation = layer._attn_implementation
        draft = cls(config, mtp)
        draft.borrow(target)
        return draft

    def borrow(self, target: PreTrainedModel) -> None:
        super().borrow(target)
        self.lm_head.borrowed = Borrowed(target.get_output_embeddings())

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuses, since the layer is part of the target's checkpoint."""
        raise ValueError(
            "an MTP draft is part of its target's checkpoint, and there is nothing else to save: load it from there"
        )

    forward = Eagle3ForCausalLM.forward
