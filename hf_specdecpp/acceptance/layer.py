"""Mounts acceptance heads on the draft's output embedding, whose input is the hidden state that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from .config import AcceptanceHeadConfig
from .head import AcceptanceHead


@dataclass
class Listener:
    """Holds what the head may read of the latest forward pass, (batch, length, hidden_size)."""

    hidden_states: Tensor | None = None


# A context variable, so that threads that share one draft each hear their own forward passes.
_listener: ContextVar[Listener | None] = ContextVar("acceptance_listener", default=None)


@contextmanager
def listening() -> Iterator[Listener]:
    """Within the context, forward passes of a draft leave their hidden states here; elsewhere a head costs nothing."""
    listener = Listener()
    token = _listener.set(listener)
    try:
        yield listener
    finally:
        _listener.reset(token)


class AcceptanceHeadLayer(nn.Module, BaseTunerLayer):
    """The draft's output embedding, with acceptance heads that read its input.

    The output is that of the wrapped layer, bit for bit. `heard` is what compiled passes leave, see `listening`.
    """

    adapter_layer_names = ("acceptance_head",)

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: AcceptanceHeadConfig):
        super().__init__()
        self.base_layer = base_layer
        self.acceptance_head = nn.ModuleDict()
        self.head_configs: dict[str, AcceptanceHeadConfig] = {}
        self.heard: Tensor | None = None
        self._active_adapter = adapter_name
        self.update_layer(adapter_name, config)

    def update_layer(self, adapter_name: str, config: AcceptanceHeadConfig) -> None:
        """Adds a head, on the device that the wrapped layer computes on; its dtype stays float32."""
        head = AcceptanceHead(config.hidden_size, config.num_layers, config.tied, len(config.features))
        if head.out.weight.device.type != "meta":
            head.to(execution_device(self.get_base_layer()))
        self.acceptance_head[adapter_name] = head
        self.head_configs[adapter_name] = config
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    @property
    def active_head_name(self) -> str | None:
        """The head that judges now. Adapters of other methods may be active beside it; they are not looked at."""
        if self.disable_adapters:
            return None
        names = [name for name in self.active_adapters if name in self.acceptance_head]
        if len(names) > 1:
            raise ValueError(f"one acceptance head can be active at a time, got {names}: choose one with set_adapter")
        return names[0] if names else None

    def forward(self, hidden_states: Tensor, *args, **kwargs) -> Tensor:
        if torch.compiler.is_compiling():  # a graph sees no context variable, and breaks at it
            self.heard = hidden_states
            return self.base_layer(hidden_states, *args, **kwargs)
        listener = _listener.get()
        if listener is not None:
            listener.hidden_states = hidden_states
        return self.base_layer(hidden_states, *args, **kwargs)

    @torch.no_grad()
    def acceptance_logits(self, hidden_states: Tensor, features: Tensor | None = None) -> Tensor:
        """The active head's calibrated logits of acceptance.

        Args:
            hidden_states (`torch.Tensor` of shape `(batch, length, hidden_size)`): of the token each is about, see
                `AcceptanceHeadConfig.reads`.
            features (`torch.FloatTensor` of shape `(batch, length, features)`, *optional*): see `token_features`.

        Returns:
            `torch.FloatTensor` of shape `(batch, length)`.
        """
        name = self.active_head_name
        return self.head_configs[name].acceptance_logits(self.acceptance_head[name](hidden_states, features))

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        raise NotImplementedError("an acceptance head changes no weights, so none can be merged; call `unload()`")

    def __repr__(self) -> str:
        return "acceptance." + super().__repr__()


def execution_device(module: nn.Module) -> torch.device:
    """Where a module with a `weight` computes. Offloaded weights lie on "meta" until accelerate's hook brings them."""
    device = module.weight.device
    if device.type != "meta":
        return device
    hook = getattr(module, "_hf_hook", None)
    devices = [getattr(h, "execution_device", None) for h in (hook, *getattr(hook, "hooks", ()))]
    return torch.device(next((d for d in devices if d is not None), "cpu"))


def acceptance_layer(model: nn.Module) -> AcceptanceHeadLayer:
    """The layer that carries the heads of `model`, a `PeftModel` or a draft with heads loaded in place.

    Raises:
        ValueError: if `model` has no acceptance head.
    """
    for module in model.modules():
        if isinstance(module, AcceptanceHeadLayer):
            return module
    raise ValueError(
        f"the draft, a {type(model).__name__}, has no acceptance head: load one with draft.load_adapter(head), "
        "train one with `specdecpp label` and `specdecpp train`, or choose a rule that asks none, such as "
        "StoppingConfig(rule='cost-aware', settings={'uses_head': False})"
    )
