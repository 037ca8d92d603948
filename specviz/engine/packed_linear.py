"""Linear layers repacked for narrow passes on a CPU.

PyTorch hands a pass over two to seventeen rows to a general matrix product that repacks the weights every time: here
a pass over 5 tokens then costs far more than one over a single token, and verification is not nearly free. oneDNN can
keep the weights in the layout of its kernels (what inductor's freezing does too), after which the cost of a pass
hardly grows with its width. `python -m specviz bench engine` measures both.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

LAYOUT_ROWS = 8  # rows that the layout is chosen for: a typical proposal


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this CPU has oneDNN kernels for the weight's type."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class PackedLinear(nn.Module):
    """`nn.Linear` for inference with its weight (out, in) kept in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), LAYOUT_ROWS)
        self._bias = None if bias is None else bias.detach()

    @cached_property
    def weight(self) -> torch.Tensor:
        """The weight (out, in), unpacked: for families that multiply by it themselves, such as some routers.

        It is kept from the first use on, beside the packed one.
        """
        return self._packed.to_dense()

    @property
    def bias(self) -> torch.Tensor | None:
        return self._bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")


def linear_layer(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """An inference layer that multiplies by `weight` (out, in) and adds `bias`: packed where this device can."""
    if can_pack(weight):
        return PackedLinear(weight, bias)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def pack_linear_layers(model: nn.Module) -> None:
    """Replace every plain `nn.Linear` below `model` by a packed one, where this CPU can; the old weights are freed.

    Quantised layers, embeddings and a tied output matrix stay as they are.
    """
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and id(child.weight) not in shared and can_pack(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))
