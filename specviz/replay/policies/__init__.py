"""Stopping policies: when does a draft phase end before `max_draft` tokens?

A policy is written once and serves both the engine and the replay, so they cannot drift apart. To add one, write
a class and add one line to `POLICIES`.
"""

from specviz.errors import SpecVizError
from specviz.replay.policies.adaptive import AdaEDL, DraftVerify, DynamicThreshold, Heuristic
from specviz.replay.policies.base import ON_FAIL, Policy, StepStats
from specviz.replay.policies.fitted import FEATURES, ContextThreshold, CostAware, Learned
from specviz.replay.policies.oracles import OptimalOracle, StopOracle
from specviz.replay.policies.signals import (
    ConfidenceThreshold,
    CumulativeConfidence,
    EntropyBound,
    FixedLength,
    LlamaCpp,
    MarginThreshold,
)

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        FixedLength,
        ConfidenceThreshold,
        CumulativeConfidence,
        EntropyBound,
        AdaEDL,
        MarginThreshold,
        Heuristic,
        DynamicThreshold,
        DraftVerify,
        LlamaCpp,
        CostAware,
        Learned,
        ContextThreshold,
        StopOracle,
        OptimalOracle,
    )
}


def policy_from_settings(settings: dict) -> Policy:
    """The policy that `Policy.settings` described."""
    knobs = dict(settings)
    name = knobs.pop("policy", None)
    if name not in POLICIES:
        raise SpecVizError(f"There is no stopping policy {name!r}; choose one of {', '.join(POLICIES)}.")
    try:
        return POLICIES[name](**knobs)
    except TypeError as error:
        raise SpecVizError(f"The settings {knobs} do not fit the stopping policy {name!r}: {error}.") from error


__all__ = [
    "FEATURES",
    "ON_FAIL",
    "POLICIES",
    "AdaEDL",
    "ConfidenceThreshold",
    "ContextThreshold",
    "CostAware",
    "CumulativeConfidence",
    "DraftVerify",
    "DynamicThreshold",
    "EntropyBound",
    "FixedLength",
    "Heuristic",
    "Learned",
    "LlamaCpp",
    "MarginThreshold",
    "OptimalOracle",
    "Policy",
    "StepStats",
    "StopOracle",
    "policy_from_settings",
]
