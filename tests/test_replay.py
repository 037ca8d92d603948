"""Replay equals the slow reference, round by round and step by step."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, Policy, StepStats, policy_from_settings, replay
from specviz.trace import trace_differences
from tests.reference_round import DraftStep, TargetStep, random_toy, recording_from_toy, reference_trace

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

    def reset(self):
        self.limit, self.rounds = 3, 0

    def draft_limit(self, max_draft):
        return max(1, min(self.limit, max_draft))

    def stops(self, stats):
        return stats.confidence <= 0.2 + 0.05 * (self.rounds % 5) + 0.1 * stats.depth

    def end_round(self, proposed, accepted):
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


@settings(max_examples=300, deadline=None)
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
