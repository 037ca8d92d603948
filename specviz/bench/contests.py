"""Contestants of the arena for benches: each at some values of its knob, on any recordings, at made-up prices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specviz.analysis.arena import CONTESTANTS
from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.analysis.fitting import Training
from specviz.analysis.oracle import optimal_oracles, stop_oracles
from specviz.replay import Policy, PolicyReplayer
from specviz.replay.contexts import vocabulary_flags
from specviz.trace import PairInfo

LETTERS = vocabulary_flags(lambda token: f" {chr(97 + token % 26)}".encode(), 1000)


def contestants_on(
    replayer: PolicyReplayer, cost: CostModel, flags: bytes = LETTERS
) -> Iterator[tuple[str, list[Policy]]]:
    """(label, one policy per prompt): every contestant at a low, a middle and a high value of its knob; the oracles."""
    number, training = len(replayer), Training(replayer, cost, "fast", flags)
    for contestant in CONTESTANTS:
        values = contestant.knob_values(replayer.max_draft)
        for value in sorted({values[0], values[len(values) // 2], values[-1]}):
            policy = contestant.make(value, training)
            yield f"{contestant.label} {contestant.knob} {value:g}", [policy] * number
    yield "Stop oracle", stop_oracles(replayer)
    yield "Optimal oracle", optimal_oracles(replayer, cost, "fast")


def made_up_cost(longest: int, draft: float = 1.0, width: float = 1.0) -> CostModel:
    """Times in the proportions of a small pair on a CPU, for what needs prices but no measurement.

    Args:
        draft, width: multiply the time of a draft step, and what each further token in a target pass costs.
    """

    def timing(values):
        return Timing(values, values, values)

    widths = np.arange(1, longest + 2)
    times = PassTimes(
        widths=tuple(widths.tolist()),
        target_pass=timing((0.1 + 0.004 * width * widths)[:, None] * np.ones(2)),
        draft_step=timing(draft * np.array([[0.017, 0.017], [0.02, 0.02]])),
        plain_step=timing(np.array([0.1, 0.1])),
        round_overhead=timing(np.array(0.0005)),
    )
    return CostModel(PairInfo(), (1, 4096), {"fast": times}, repeats=1)
