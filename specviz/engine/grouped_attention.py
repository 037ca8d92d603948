"""Attention that reads shared keys and values in place, on a CPU.

In grouped-query attention (Ainslie et al. 2023) several query heads share one key-value head. Before transformers calls
PyTorch's attention it copies keys and values for each of those query heads, in every layer and pass over more than one
token: the longer the text, the dearer that makes verification. PyTorch's kernel for the CPU takes the shared heads as
they are. (On CUDA its fused kernels do not when there is a mask, so transformers' way stays there.)
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

NAME = "grouped_sdpa"  # of this attention among transformers'


def use_grouped_attention(body: PreTrainedModel) -> bool:
    """Let a decoder on a CPU attend this way, if it would copy keys and values otherwise; whether it now does."""
    config = body.config.get_text_config(decoder=True)
    try:
        heads = config.num_attention_heads
        shared = (getattr(config, "num_key_value_heads", None) or heads) < heads
    except (AttributeError, RuntimeError):  # recurrent families have no heads, others a number of them for each layer
        return False
    if shared and body.device.type == "cpu" and config._attn_implementation == "sdpa":
        body.set_attn_implementation(NAME)
    return config._attn_implementation == NAME


def stop_grouped_attention(body: PreTrainedModel) -> None:
    """Back to transformers' own attention, for families that give theirs arguments this one does not know."""
    body.set_attn_implementation("sdpa")


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function, for queries (1, H, n, d) and keys and values (1, G, m, d), H a multiple of G.

    Without a mask the pass is either a prefill, in which each token sees those before it, or one token that sees all.
    """
    rows = query.shape[2]
    causal = rows > 1 and attention_mask is None and (module.is_causal if is_causal is None else is_causal)
    if causal:  # a cache of fixed length holds nothing beyond the prompt yet
        key, value = key[:, :, :rows], value[:, :, :rows]
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, is_causal=causal, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
