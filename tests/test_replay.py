"""Replay equals the slow reference, round by round and step by step."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_round import random_toy, recording_from_toy, reference_trace

from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, Policy, replay
from specviz.trace import trace_differences

EOS = (0,)
GAMMAS = st.integers(1, 16)
THRESHOLDS = st.sampled_from([0.0, 0.125, 0.25, 0.375, 0.3, 0.5, 0.625, 0.75, 0.875, 0.999, 1.0])


@dataclass
class RisingAndFalling(Policy):
    """A policy with state in every hook: the limit follows the last round, the threshold the number of rounds."""

    name: ClassVar[str] = "rising"
    on_fail: str = "drop"
    limit: int = 3
    rounds: int = 0

    def begin(self, prompt_ids):
        self.limit, self.rounds = 3, 0

    def draft_limit(self, max_draft):
        return max(1, min(self.limit, max_draft))

    def stops(self, stats):
        return stats.confidence <= 0.2 + 0.05 * (self.rounds % 5) + 0.1 * stats.depth

    def end_round(self, proposed, accepted, tokens):
        self.rounds += 1
        self.limit += 2 if accepted == proposed else -1

    def settings(self):
        return {"policy": self.name}


def toy_and_recording(seed, agreement, recorded_tokens, output_limit=10**6, recorded_draft=16):
    toy = random_toy(seed, agreement=agreement)
    return toy, recording_from_toy(*toy, recorded_draft, recorded_tokens, EOS, (3, 1), output_limit)


def assert_same(replayed, expected):
    assert trace_differences(replayed, expected) == []
    for table in ("rounds", "steps"):
        for name, values in getattr(replayed, table).items():
            np.testing.assert_array_equal(values, getattr(expected, table)[name], err_msg=name)
    expected.validate()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    recorded_tokens=st.integers(1, 40),
    asked=st.integers(1, 45),
    output_limit=st.sampled_from([10**6, 12, 1]),
    gamma=GAMMAS,
    policy=st.one_of(
        st.builds(FixedLength),
        st.builds(ConfidenceThreshold, THRESHOLDS, st.sampled_from(["drop", "keep"])),
        st.builds(RisingAndFalling, st.sampled_from(["drop", "keep"])),
    ),
)
def test_replay_equals_reference(seed, agreement, recorded_tokens, asked, output_limit, gamma, policy):
    toy, recording = toy_and_recording(seed, agreement, recorded_tokens, output_limit)
    if not recording.ended and min(asked, output_limit) > len(recording.output_ids):
        with pytest.raises(SpecVizError, match="the text went on"):
            replay(recording, policy, gamma, asked)
        return
    expected = reference_trace(*toy, policy, gamma, asked, EOS, (3, 1), output_limit)
    replayed = replay(recording, policy, gamma, asked)
    assert_same(replayed, expected)
    assert replayed.run == expected.run or str(replayed.run) == str(expected.run)  # NaN times are never equal
    assert replayed.run.output_ids == tuple(recording.output_ids[: len(replayed.run.output_ids)].tolist())


@pytest.mark.parametrize(
    ("max_draft", "max_new_tokens", "message"),
    [(0, None, "covers 1 to 16"), (17, None, "covers 1 to 16"), (4, 0, "at least 1"), (4, 21, "the text went on")],
)
def test_what_a_recording_does_not_cover_gets_a_sentence(max_draft, max_new_tokens, message):
    recording = recording_from_toy(*random_toy(2), 16, 20, eos_ids=(99,))
    with pytest.raises(SpecVizError, match=message):
        replay(recording, FixedLength(), max_draft, max_new_tokens)


def test_the_output_does_not_depend_on_the_settings():
    toy, recording = toy_and_recording(5, 0.7, 40)
    outputs = {
        replay(recording, ConfidenceThreshold(threshold, on_fail), gamma).run.output_ids
        for threshold in (0.0, 0.3, 1.0)
        for on_fail in ("drop", "keep")
        for gamma in (1, 7, 16)
    }
    assert outputs == {tuple(recording.output_ids.tolist())}


def cut_branch(recording, row):
    """Drop the last step of the branch at one position."""
    at = recording.branch_offsets[row + 1] - 1
    offsets = recording.branch_offsets.copy()
    offsets[row + 1 :] -= 1
    names = ("branch_token", "branch_confidence", "branch_entropy", "branch_margin")
    return {"branch_offsets": offsets} | {name: np.delete(getattr(recording, name), at) for name in names}


@pytest.mark.parametrize("eos_ids", [(0,), (99,)])
def test_no_branch_may_lack_its_last_step(eos_ids):
    """The toys' branches are as short as the budget, end-of-sequence and the draft length allow."""
    recording = recording_from_toy(*random_toy(11, agreement=0.3), 6, 20, eos_ids)
    rows = np.flatnonzero(np.diff(recording.branch_offsets))
    assert len(rows) > 3
    for row in rows:
        with pytest.raises(SpecVizError, match="too short"):
            replace(recording, **cut_branch(recording, row)).validate()


def changed(name, index, value):
    def change(recording):
        values = getattr(recording, name).copy()
        values[index] = value
        return {name: values}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("draft_confidence", 0, 1.5), "draft_confidence holds 1.5, which is not above 0"),
        (changed("branch_confidence", 0, np.nan), "branch_confidence holds nan, which is not above 0"),
        (changed("output_ids", 0, 99), "end-of-sequence"),
        (changed("branch_token", 0, 99), "goes on after"),
        (changed("branch_offsets", 0, 1), "offsets"),
        (changed("branch_offsets", 3, 1000), "offsets"),
        (lambda recording: {"output_ids": recording.output_ids[:-1]}, "is int32 of shape"),
        (lambda recording: {"draft_margin": recording.draft_margin.astype(np.float64)}, "float64"),
        (lambda recording: {"finish_reason": "eos"}, "end-of-sequence"),
        (lambda recording: {"finish_reason": "stopped"}, "finish reason"),
        (lambda recording: {"max_new_tokens": 30}, "20 of 30 tokens"),
        (lambda recording: {"output_limit": 10}, "the finish reason is .length"),
    ],
)
def test_recordings_that_cannot_be_replayed_are_refused(change, message):
    recording = recording_from_toy(*random_toy(2, agreement=0.3), 6, 20, eos_ids=(99,))
    with pytest.raises(SpecVizError, match=message):
        replace(recording, **change(recording)).validate()
