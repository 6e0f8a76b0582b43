"""The tuner: attaches acceptance heads to a draft that it freezes and otherwise leaves as it is."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import ClassVar

import torch
from peft.tuners.tuners_utils import BaseTuner
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..decoding.masks import windows, within_windows
from .config import AcceptanceHeadConfig, model_signature
from .head import AcceptanceHead
from .layer import AcceptanceHeadLayer, acceptance_layer, execution_device


@torch.no_grad()
def states_at(model: PreTrainedModel, places: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
    """Last hidden states of a pass of the decoder, at `places`, (batch, tokens) -> (batch, tokens, hidden_size).

    A mask of three dimensions, (batch, tokens, tokens), is boolean: true where a token may see another, windows aside.
    """
    mask: Tensor | dict[str, Tensor] = attention_mask
    if attention_mask.ndim == 3:
        known, positions = windows(model.config) or {"full_attention": None}, inputs["position_ids"]
        mask = within_windows(known, attention_mask, positions, positions, model.dtype)
    states = model.get_decoder()(attention_mask=mask, use_cache=False, **inputs).last_hidden_state
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))


def read_head(folder: str | Path) -> tuple[AcceptanceHead, AcceptanceHeadConfig]:
    """A saved head without a draft, to judge recorded hidden states."""
    config = AcceptanceHeadConfig.from_pretrained(folder)
    head = AcceptanceHead(config.hidden_size, config.num_layers, config.tied, len(config.features))
    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    head.load_state_dict({name.split(".acceptance_head.")[1]: tensor for name, tensor in tensors.items()})
    return head.eval(), config


# In place of a draft's own methods while it carries a head.


def get_output_embeddings(self: PreTrainedModel) -> nn.Module:
    """The draft's own output embedding, without the layer that carries the heads."""
    return acceptance_layer(self).get_base_layer()


def resize_token_embeddings(*args, **kwargs) -> None:
    """Refuses, since a head belongs to the vocabulary that it was attached for."""
    raise ValueError(
        "the draft carries an acceptance head, which belongs to its vocabulary: resize the embeddings of the draft "
        "alone, then attach a head that was trained for the new size"
    )


class AcceptanceHeadModel(BaseTuner):
    """Attaches acceptance heads to a causal language model; its logits stay as they are, bit for bit."""

    prefix = "acceptance_"
    tuner_layer_cls = AcceptanceHeadLayer
    target_module_mapping: ClassVar[dict] = {}

    def _prepare_adapter_config(self, peft_config: AcceptanceHeadConfig, model_config: dict) -> AcceptanceHeadConfig:
        output = self.model.get_output_embeddings()
        if output is None:
            raise ValueError(
                f"{type(self.model).__name__} has no output embedding for an acceptance head to sit on: "
                "the draft must be a causal language model"
            )
        facts = {
            "hidden_size": output.weight.shape[-1],
            "vocab_size": self.model.config.get_text_config().vocab_size,
            "draft_signature": model_signature(self.model.config),
        }
        described = {
            "hidden_size": "hidden states of size",
            "vocab_size": "a vocabulary of size",
            "draft_signature": "drafts of signature",
        }
        for name, fact in facts.items():
            expected = getattr(peft_config, name)
            if expected is None:
                setattr(peft_config, name, fact)
            elif expected != fact:
                raise ValueError(
                    f"this head is for {described[name]} {expected}, but the draft has {fact}: "
                    f"it belongs to {peft_config.base_model_name_or_path!r}; train one for this draft"
                )
        return peft_config

    def _check_target_module_exists(self, peft_config: AcceptanceHeadConfig, key: str) -> bool:
        return self.model.get_submodule(key) is type(self.model).get_output_embeddings(self.model)

    def _create_and_replace(self, peft_config, adapter_name, target, target_name, parent, current_key) -> None:
        if isinstance(target, AcceptanceHeadLayer):
            target.update_layer(adapter_name, peft_config)
        else:
            self._replace_module(parent, target_name, AcceptanceHeadLayer(target, adapter_name, peft_config), target)
            self.model.get_output_embeddings = MethodType(get_output_embeddings, self.model)
            self.model.resize_token_embeddings = resize_token_embeddings
            if hasattr(self.model, "hf_device_map"):  # tells `load_adapter` that the head is not offloaded
                self.model.hf_device_map[f"{current_key}.acceptance_head"] = execution_device(target)

    def _replace_module(self, parent, child_name, new_module, child) -> None:
        # PEFT's takes the head to where the wrapped weight is, be it "meta", and sets that weight, be it borrowed.
        setattr(parent, child_name, new_module)

    def forward(self, *args, acceptance_only: bool = False, **kwargs):
        """The draft's own forward pass; or, to train a head, the frozen decoder and the head without the vocabulary.

        With `acceptance_only`, takes `features` (batch, tokens, features), and either the tokens' `hidden_states`
        (batch, tokens, hidden_size) or `places` (batch, tokens), where they are in a pass of the decoder over all
        other arguments; returns the raw logits of acceptance, (batch, tokens). A mode of `forward`, not a method, so
        that DistributedDataParallel sees it.
        """
        if not acceptance_only:
            return self.model(*args, **kwargs)
        features, hidden_states = kwargs.pop("features"), kwargs.pop("hidden_states", None)
        if hidden_states is None:
            hidden_states = states_at(self.model, **kwargs)
        layer = acceptance_layer(self.model)
        return layer.acceptance_head[layer.active_head_name](hidden_states, features)

    def unload(self) -> nn.Module:
        """The draft as it was before."""
        model = super().unload()
        for name in ("get_output_embeddings", "resize_token_embeddings"):
            vars(model).pop(name, None)
        return model

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        # The default strips an adapter's name only where it is the second to last part of a key. Here it precedes
        # `blocks.0.linear.weight`, so without this a head could only be loaded under the name it was saved with.
        return key.replace(f".acceptance_head.{adapter_name}.", ".acceptance_head.")
