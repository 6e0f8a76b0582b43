"""What drafts that read the target have in common, of whatever kind: how they are loaded, saved and given to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from .borrowed import Borrowed
from .config import layers_read
from .tensors import HUB, KEY_MAPPING, check_rows, check_stored, published_name, published_tensors, stored_shapes

KINDS = {"eagle3": "EAGLE-3", "dflash": "DFlash", "dspark": "DSpark"}


class PublishedDraft:
    """Stands before `PreTrainedModel` among the bases of a draft.

    Attributes:
        read_published: makes the configuration of a published one and the shapes of the published tensors.
    """

    read_published: ClassVar[Callable[..., PreTrainedConfig]]

    @classmethod
    def from_pretrained(cls, name: str, *args: Any, **kwargs: Any) -> PreTrainedModel:
        """Loads a published draft, which `borrow` then gives to its target.

        Args:
            name (`str`): a folder, or an id on the Hub; safetensors or a PyTorch checkpoint, in either layout.
            kwargs: of `PreTrainedModel.from_pretrained`.

        Raises:
            ValueError: if tensors are missing or of other shapes than the configuration says, or if `d2t` names tokens
                that the vocabulary lacks, or one twice.
        """
        hub = {key: kwargs[key] for key in HUB if key in kwargs}
        shapes = stored_shapes(name, **hub)
        config = cls.read_published(PreTrainedConfig.get_config_dict(name, **hub)[0], shapes)
        with torch.device("meta"):
            wanted = {published_name(n, config.layout): tuple(t.shape) for n, t in cls(config).state_dict().items()}
        if config.draft_vocab_size == config.vocab_size:
            wanted.pop("d2t", None)
        check_stored(name, KINDS[config.model_type], wanted, shapes)
        draft = super().from_pretrained(name, *args, **kwargs | {"config": config, "key_mapping": KEY_MAPPING})
        ids = getattr(draft.lm_head, "token_ids", None)  # `None` of one that speaks by the target's output layer
        if ids is not None:
            check_rows(name, ids, config.vocab_size)
        return draft

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Saves the draft as it is published, in the layout of its configuration.

        Args:
            kwargs: of `PreTrainedModel.save_pretrained`.
        """
        tensors = published_tensors(kwargs.pop("state_dict", None) or self.state_dict(), self.config)
        super().save_pretrained(folder, state_dict=tensors, **kwargs)

    def borrow(self, target: PreTrainedModel) -> None:
        """Takes of the target what the draft has none of, without copying it.

        Raises:
            ValueError: if the draft is for a target of another width, depth or vocabulary.
        """
        layers_read(self.config, target.config)
        self.config.target_name_or_path = self.config.target_name_or_path or target.config._name_or_path or None
        if self.model.embed_tokens is None:
            self.model.borrowed = Borrowed(target.get_input_embeddings())

    def get_decoder(self) -> nn.Module:
        return self.model

    def get_input_embeddings(self) -> nn.Module | None:
        return self.model.embed_tokens or (self.model.borrowed and self.model.borrowed.module)
