"""Local attention layers whose mask belongs to the layer, made to obey the mask of the pass.

GPT-Neo keeps in each layer a triangle of its own and takes the rows of it that would be right if the newest keys stood
last. Over a cache of fixed length they do not: behind them come entries still empty. Here such a layer gets the mask of
the pass, which knows where each row stands, cut to the layer's window.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

_EVERY_LENGTH = 1 << 24


def use_masks_of_passes(body: nn.Module) -> None:
    """Let GPT-Neo's layers take causality and window from the mask of the pass instead of their own triangles."""
    for layer in body.modules():
        if type(layer) is GPTNeoSelfAttention and layer.bias.shape[-1] != _EVERY_LENGTH:
            if layer.attention_type == "local":
                window = layer.config.window_size
                layer.register_forward_pre_hook(
                    lambda _, arguments, named, window=window: (arguments, _cut_to_window(named, window)),
                    with_kwargs=True,
                )
            layer.bias = torch.ones((), dtype=torch.bool, device=layer.bias.device).expand(
                1, 1, _EVERY_LENGTH, _EVERY_LENGTH
            )


def _cut_to_window(named: dict, window: int) -> dict:
    """The layer's arguments with a mask (1, 1, n, entries), 0 where a row looks, in which no row looks further back
    than `window` entries, its own included."""
    mask = named["attention_mask"]
    if mask is None or mask.shape[-1] <= window:
        return named
    # a row looks back from the last entry that its causal mask shows; one `window` further on hides an entry
    too_old = torch.zeros_like(mask, dtype=torch.bool)
    too_old[..., :-window] = mask[..., window:] == 0
    return named | {"attention_mask": mask.masked_fill(too_old, torch.finfo(mask.dtype).min)}
