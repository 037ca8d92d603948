"""The thresholds at which anything changes."""

import math

import numpy as np

from specviz.replay.one_setting import Rounds
from specviz.replay.policies import ConfidenceThreshold
from specviz.trace.recording import Recording


def breakpoints(
    recording: Recording, max_draft: int, on_fail: str = "drop", max_new_tokens: int | None = None
) -> np.ndarray:
    """Every threshold at which the replayed trace changes, exactly.

    As a function of the threshold the trace is constant from 0 up to but without the first value, from each value up
    to the next, and from the last value up to 1; at each value it differs from what it was just below. So a grid over
    0 and these values misses nothing. With `trace(t) = replay(recording, ConfidenceThreshold(t, on_fail), max_draft)`
    and values [0.25, 0.5], `trace(0.3)` equals `trace(0.25)` and differs from `trace(0.24)`.

    Returns:
        Sorted float32 array of confidences, possibly empty.

    Raises:
        SpecVizError: the recording does not cover these settings.
    """
    rounds = Rounds(recording, max_draft, max_new_tokens)
    policy = ConfidenceThreshold(0.0, on_fail)
    # As the threshold rises, the next change comes at the lowest confidence that still passes in a round that takes
    # place. A round is the same until the threshold reaches the lowest confidence that passed in it.
    known: dict[int, tuple[int, float]] = {}  # start -> end, that lowest confidence
    values: list[float] = []
    while True:
        start, lowest = 0, math.inf
        while start < len(rounds.output):
            end, passed = known.get(start, (0, 0.0))
            if passed <= policy.threshold:
                turn = rounds.play(start, policy)
                end = turn.end
                passing = [step.confidence for step in turn.drafted if not policy.stops(step)]
                passed = min(passing, default=math.inf)
                known[start] = end, passed
            lowest = min(lowest, passed)
            start = end
        if lowest == math.inf:
            return np.array(values, np.float32)
        values.append(lowest)
        policy.threshold = lowest
