"""Masks of passes that a causal mask does not describe: trees, and rows of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig

MASKED_ATTENTION = ("eager", "sdpa")  # implementations that add a mask of four dimensions to their scores


def ancestry(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Who is an ancestor of whom in the trees of a batch.

    Args:
        parents (`torch.LongTensor` of shape `(rows, nodes)`): each node's parent, which comes before it; -1 for none.

    Returns:
        `torch.BoolTensor` of shape `(rows, nodes, nodes)`, true where the column is the row's ancestor or itself, and
        the number of ancestors, `torch.LongTensor` of shape `(rows, nodes)`.
    """
    nodes = parents.shape[-1]
    seen = (torch.arange(nodes) == parents[..., None]) | torch.eye(nodes, dtype=torch.bool)
    for _ in range((nodes - 1).bit_length()):  # each time twice as many generations back
        near = seen.float()
        seen = near @ near > 0
    return seen, seen.sum(-1) - 1


def windows(config: PreTrainedConfig) -> dict[str, int | None]:
    """For each type of layer the tokens that it sees at once, `None` for all; `{}` for types that are not known."""
    config = config.get_text_config()
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not types:  # where they are named, models slide as they say
        slides = window is not None and getattr(config, "use_sliding_window", True)
        types = ["sliding_attention" if slides else "full_attention"]
    known = {"full_attention": None, "sliding_attention": window}
    return {kind: known[kind] for kind in set(types)} if set(types) <= set(known) else {}


def within_windows(
    windows: dict[str, int | None], seen: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """The masks of a pass, as models take them: one, or one for each type of layer where they differ.

    Args:
        windows: see the function of that name.
        seen (`torch.BoolTensor` of shape `(rows, queries, keys)`): who may see what, windows aside.
        queries (`torch.LongTensor` of shape `(rows, queries)`), keys (`torch.LongTensor` of shape `(rows, keys)` or
            `(rows, queries, keys)`): their places in the text.
    """
    keys = keys[:, None] if keys.ndim == 2 else keys
    masks = {}
    for kind, window in windows.items():
        near = seen if window is None else seen & (queries[:, :, None] - keys < window)
        masks[kind] = additive(near, dtype)
    return masks if len(masks) > 1 else next(iter(masks.values()))


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the attention's scores, (rows, 1, queries, keys), from who sees what, (rows, queries, keys)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)[
        :, None
    ]
