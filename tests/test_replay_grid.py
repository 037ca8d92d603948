"""The grid counts what the one-cell replay shows; breakpoints miss nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_round import random_toy, recording_from_toy, reference_trace

import specviz.replay.grid as grid_module
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, breakpoints, replay, replay_grid, trace_counts
from specviz.replay.counts import RoundCounts
from specviz.trace import trace_differences

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


def test_grid_of_draft_lengths_whose_outcomes_need_more_than_a_byte():
    toy = random_toy(4, agreement=0.97)
    recording = recording_from_toy(*toy, 60, 70, EOS)
    grid = replay_grid([recording], [0.0, 0.125], [60, 45])
    for index in np.ndindex(1, 2, 2):
        trace = replay(recording, ConfidenceThreshold([0.0, 0.125][index[1]]), [60, 45][index[2]])
        for name, expected in vars(trace_counts(trace, 60)).items():
            np.testing.assert_array_equal(getattr(grid.counts, name)[index], expected, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    recorded_tokens=st.integers(1, 30),
    max_draft=st.integers(1, 16),
    on_fail=st.sampled_from(["drop", "keep"]),
    levels=st.sampled_from([8, 1000]),
)
def test_breakpoints_are_exactly_where_the_trace_changes(seed, agreement, recorded_tokens, max_draft, on_fail, levels):
    toy = random_toy(seed, agreement=agreement, levels=levels)
    recording = recording_from_toy(*toy, 16, recorded_tokens, EOS)

    def trace_at(threshold):
        policy = ConfidenceThreshold(float(threshold), on_fail)
        return reference_trace(*toy, policy, max_draft, recorded_tokens, EOS)

    values = breakpoints(recording, max_draft, on_fail)
    assert values.dtype == np.float32
    edges = [0.0, *values.tolist(), 1.0]
    assert edges == sorted(edges) and len(set(values.tolist())) == len(values)
    inside = trace_at(0.0)
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        at_low = trace_at(low)
        if low > 0:
            assert trace_differences(inside, at_low), "nothing changes at a breakpoint"
        inside = at_low
        below_high = np.nextafter(high, -1)  # the next float64, finer than any confidence
        if below_high > low:
            assert trace_differences(at_low, trace_at((low + high) / 2)) == []
            assert trace_differences(at_low, trace_at(below_high)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thresholds": []}, "at least one"),
        ({"thresholds": [1.5]}, "outside 0 to 1"),
        ({"thresholds": [float("nan")]}, "outside 0 to 1"),
        ({"max_drafts": [0]}, "covers 1 to 16"),
        ({"max_drafts": [3, 17]}, "covers 1 to 16"),
        ({"on_fail": "maybe"}, "drop"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"recordings": []}, "at least one"),
    ],
)
def test_wrong_grids_get_a_sentence(change, message):
    arguments = {"recordings": toy_recordings(1, [0.5], 8), "thresholds": [0.5], "max_drafts": [4]} | change
    with pytest.raises(SpecVizError, match=message):
        replay_grid(**arguments)
