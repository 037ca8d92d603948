"""Stopping policies, and what they would have done: recordings to traces. Needs numpy only."""

from specviz.replay.one_setting import replay
from specviz.replay.policies import (
    POLICIES,
    ConfidenceThreshold,
    FixedLength,
    Policy,
    StepStats,
    policy_from_settings,
)

__all__ = ["POLICIES", "ConfidenceThreshold", "FixedLength", "Policy", "StepStats", "policy_from_settings", "replay"]
