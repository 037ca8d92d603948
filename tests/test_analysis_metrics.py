"""Metrics of a trace told by hand, and from counts the same."""

import numpy as np
import pytest
from analysis_helpers import toy_recordings

from specviz.analysis.metrics import ThresholdOutcomes, metrics, pooled, threshold_outcomes
from specviz.replay import ConfidenceThreshold, StepStats, replay, replay_grid, trace_counts
from specviz.trace import PairInfo, RunInfo, TraceBuilder


def told_by_hand():
    """Round 1: proposes 5 6 7, the target says 5 9. Round 2: proposes 4, withholds 3, the target says 4 3.
    Round 3: proposes 1, withholds 8, the target says 2. Round 4: withholds 8, the target says 6."""
    builder = TraceBuilder(PairInfo())
    output = []
    for drafted, withheld, accepted, target in (
        ([5, 6, 7], False, 1, [5, 9]),
        ([4, 3], True, 1, [4, 3]),
        ([1, 8], True, 0, [2]),
        ([8], True, 0, [6]),
    ):
        steps = [StepStats(depth, len(output) + depth, token, 0.5, 1.0, 0.25) for depth, token in enumerate(drafted)]
        builder.add_round(
            drafted=steps,
            distances=[1.0] * len(steps),
            withheld=withheld,
            stop_reason="threshold" if withheld else "max_draft",
            accepted=accepted,
            target_tokens=target,
            target_margins=[1.0] * len(target),
        )
        output += target
    settings = {"policy": {"policy": "threshold"}, "max_draft": 3}
    return builder.finish(RunInfo("measured", PairInfo(), settings, "", (1, 2), tuple(output), "length"))


def test_by_hand():
    trace = told_by_hand()
    for found in (metrics(trace), metrics(trace_counts(trace))):
        assert found.acceptance_rate == pytest.approx(2 / 5)
        assert found.acceptance_rate_tested == pytest.approx(2 / 4)
        assert found.tokens_per_target_pass == pytest.approx(6 / 4)
        assert found.mean_accepted_run == pytest.approx(2 / 4)
        assert found.mean_draft_length == pytest.approx(5 / 4)
        assert found.draft_steps_wasted == 6
        assert found.target_passes_saved == 2
    assert threshold_outcomes(trace) == ThresholdOutcomes(
        accepted=2, rejected=2, rightly_withheld=1, wrongly_withheld=1, discarded=1, withheld_untested=1
    )


def test_nothing_proposed_has_no_acceptance_rate():
    recording = toy_recordings(15, [0.8])[0]
    found = metrics(replay(recording, ConfidenceThreshold(1.0), 4))
    assert np.isnan(found.acceptance_rate) and found.tokens_per_target_pass == 1 and found.target_passes_saved == 0


def test_a_set_is_pooled_before_it_is_divided():
    recordings = toy_recordings(15, [0.2, 0.9, 1.0])
    counts = replay_grid(recordings, [0.0, 0.5], [2, 5]).counts
    found = metrics(pooled(counts))
    for row, threshold in enumerate((0.0, 0.5)):
        traces = [replay(recording, ConfidenceThreshold(threshold), 5) for recording in recordings]
        accepted, proposed = (
            sum(int(trace.rounds[name].sum()) for trace in traces) for name in ("accepted", "proposed")
        )
        assert found.acceptance_rate[row, 1] == pytest.approx(accepted / proposed)
