"""Stopping policies, and what they would have done: recordings to traces and counts. Needs numpy only."""

from specviz.replay.counts import RoundCounts, trace_counts
from specviz.replay.grid import GridCounts, replay_grid
from specviz.replay.one_setting import replay
from specviz.replay.policies import (
    POLICIES,
    ConfidenceThreshold,
    FixedLength,
    Policy,
    StepStats,
    policy_from_settings,
)
from specviz.replay.policy_counts import PolicyReplayer
from specviz.replay.step_function import breakpoints

__all__ = [
    "POLICIES",
    "ConfidenceThreshold",
    "FixedLength",
    "GridCounts",
    "Policy",
    "PolicyReplayer",
    "RoundCounts",
    "StepStats",
    "breakpoints",
    "policy_from_settings",
    "replay",
    "replay_grid",
    "trace_counts",
]
