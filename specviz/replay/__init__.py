"""Stopping policies, and what they would have done: recordings to traces and counts. Needs numpy only."""

from specviz.replay.counts import RoundCounts, trace_counts
from specviz.replay.expected import acceptance_chances, replay_expected
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
from specviz.replay.rules import RULES, AcceptanceRule, rule_from_settings, rule_from_text
from specviz.replay.sampling import Sampling
from specviz.replay.step_function import breakpoints

__all__ = [
    "POLICIES",
    "RULES",
    "AcceptanceRule",
    "ConfidenceThreshold",
    "FixedLength",
    "GridCounts",
    "Policy",
    "PolicyReplayer",
    "RoundCounts",
    "Sampling",
    "StepStats",
    "acceptance_chances",
    "breakpoints",
    "policy_from_settings",
    "replay",
    "replay_expected",
    "replay_grid",
    "rule_from_settings",
    "rule_from_text",
    "trace_counts",
]
