"""From the engine's samples to a cost model."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.trace import PairInfo


class PassSamples(Protocol):
    """What the engine measured in one pass mode, in seconds; see `PassTimes` for the meaning of each.

    target_pass: (W, C, n); draft_step: (2, C, n); plain_step: (C, n); round_overhead: (m,).
    """

    pair: PairInfo
    pass_mode: str
    contexts: Sequence[int]
    widths: Sequence[int]
    target_pass: np.ndarray
    draft_step: np.ndarray
    plain_step: np.ndarray
    round_overhead: np.ndarray
    compiled: bool


def cost_model(*samples: PassSamples) -> CostModel:
    """The cost model of one pair from samples of one pass mode or of both, at the same context lengths."""
    first = samples[0]
    modes = {
        each.pass_mode: PassTimes(
            widths=tuple(each.widths),
            target_pass=Timing.of(each.target_pass),
            draft_step=Timing.of(each.draft_step),
            plain_step=Timing.of(each.plain_step),
            round_overhead=Timing.of(np.maximum(each.round_overhead, 0.0)),
            compiled=each.compiled,
        )
        for each in samples
    }
    return CostModel(first.pair, tuple(first.contexts), modes, first.plain_step.shape[-1])
