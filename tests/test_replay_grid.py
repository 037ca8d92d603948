"""The grid counts what the one-cell replay shows; breakpoints miss nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specviz.replay.grid as grid_module
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, replay, replay_grid, trace_counts
from specviz.replay.counts import RoundCounts
from tests.reference_round import random_toy, recording_from_toy, reference_trace

EOS = (0,)
# Multiples of 1/8 are confidences of the toys; 0.3 and its float32 neighbours try the comparison's rounding.
LEVELS = [0.0, 0.125, 0.25, 0.3, float(np.float32(0.3)), 0.375, 0.5, 0.625, 0.75, 0.875, 1.0]


def toy_recordings(seed, agreements, recorded_tokens, output_limit=10**6, levels=8):
    recordings = []
    for index, agreement in enumerate(agreements):
        toy = random_toy(seed + index, agreement=agreement, levels=levels)
        prompt = tuple(range(1, 2 + index % 3))
        recordings.append(recording_from_toy(*toy, 16, recorded_tokens, EOS, prompt, output_limit))
    return recordings


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreements=st.lists(st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]), min_size=1, max_size=5),
    recorded_tokens=st.integers(1, 40),
    output_limit=st.sampled_from([10**6, 12]),
    shorter=st.one_of(st.none(), st.integers(1, 12)),
    thresholds=st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3),
    max_drafts=st.lists(st.integers(1, 16), min_size=1, max_size=3),
    on_fail=st.sampled_from(["drop", "keep"]),
    lanes_per_block=st.sampled_from([1, 20, 1 << 12]),
    states_per_stretch=st.sampled_from([1, 100, 1 << 16]),
    levels=st.sampled_from([8, 10]),
)
def test_grid_equals_replay(
    seed,
    agreements,
    recorded_tokens,
    output_limit,
    shorter,
    thresholds,
    max_drafts,
    on_fail,
    lanes_per_block,
    states_per_stretch,
    levels,
):
    recordings = toy_recordings(seed, agreements, recorded_tokens, output_limit, levels)
    if shorter is not None:
        shorter = min(shorter, *(len(recording.output_ids) for recording in recordings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_module, "LANES_PER_BLOCK", lanes_per_block)
        patch.setattr(grid_module, "STATES_PER_STRETCH", states_per_stretch)
        grid = replay_grid(recordings, thresholds, max_drafts, on_fail, shorter)
    for index in np.ndindex(len(recordings), len(thresholds), len(max_drafts)):
        policy = ConfidenceThreshold(thresholds[index[1]], on_fail)
        trace = replay(recordings[index[0]], policy, max_drafts[index[2]], shorter)
        expected = trace_counts(trace, max(max_drafts))
        for name in RoundCounts.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(grid.counts, name)[index], getattr(expected, name), err_msg=name)
