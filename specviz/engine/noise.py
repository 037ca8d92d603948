"""Random numbers that are a function of a seed and a place, so that whoever asks for a place gets the same number.

Every number is a step of SplitMix64 (Steele, Lea, Flood 2014) from a state that hashes seed and place. Nothing depends
on the order of asking or on the device's generators; devices may differ in the last bit of a logarithm.
"""

from __future__ import annotations

import torch

_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # 64-bit constants as torch's signed integers
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser of int64 values; shifts bring in zeros, products wrap."""
    values = (values ^ ((values >> 30) & ((1 << 34) - 1))) * _FIRST
    values = (values ^ ((values >> 27) & ((1 << 37) - 1))) * _SECOND
    return values ^ ((values >> 31) & ((1 << 33) - 1))


def states(seed: torch.Tensor | int, *place: torch.Tensor | int) -> torch.Tensor:
    """A state for each seed and place: int64 tensors that broadcast against each other."""
    state = _mixed(torch.as_tensor(seed, dtype=torch.int64) + _STEP)
    for part in place:
        state = _mixed(state + (torch.as_tensor(part, dtype=torch.int64, device=state.device) + 1) * _STEP)
    return state


def uniform(seed: torch.Tensor | int, *place: torch.Tensor | int) -> torch.Tensor:
    """float64 numbers in [0, 1), multiples of 2**-52."""
    return ((states(seed, *place) >> 12) & ((1 << 52) - 1)).double() * 2.0**-52


def gumbel(state: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """fp32 Gumbel noise of each token: states (...) and token ids (k,) give (..., k)."""
    bits = _mixed(state[..., None] + (tokens + 1) * _STEP)
    inside = (((bits >> 12) & ((1 << 52) - 1)).double() + 0.5) * 2.0**-52  # never 0 or 1
    return -torch.log(-torch.log(inside)).float()


def draw(distribution: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens (...) drawn from distributions (..., V), which need not be normalised, by inverting their sums.

    A token of probability 0 is never drawn. Sums are float64.
    """
    sums = distribution.double().cumsum(-1)
    at = uniforms.to(sums.device)[..., None] * sums[..., -1:]
    return torch.searchsorted(sums, at, right=True)[..., 0]
