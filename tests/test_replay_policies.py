"""Stopping policies: the comparison, the settings, the registry."""

import math

import numpy as np
import pytest

from specviz.errors import SpecVizError
from specviz.replay import POLICIES, ConfidenceThreshold, FixedLength, StepStats, policy_from_settings


def stats(confidence):
    return StepStats(depth=0, position=0, token=1, confidence=confidence, entropy=1.0, margin=0.5)


def test_threshold_is_strict():
    policy = ConfidenceThreshold(0.5)
    assert policy.stops(stats(0.5)) and policy.stops(stats(0.25))
    assert not policy.stops(stats(float(np.nextafter(np.float32(0.5), np.float32(1)))))
    assert not ConfidenceThreshold(0.0).stops(stats(1e-30))
    assert ConfidenceThreshold(1.0).stops(stats(1.0))
    # The float32 nearest to 0.3 is above 0.3, the one nearest to 0.7 below 0.7.
    assert not ConfidenceThreshold(0.3).stops(stats(float(np.float32(0.3))))
    assert ConfidenceThreshold(0.7).stops(stats(float(np.float32(0.7))))


def test_distance_is_to_the_threshold():
    assert ConfidenceThreshold(0.5).distance(stats(0.25)) == 0.25 == ConfidenceThreshold(0.5).distance(stats(0.75))
    assert FixedLength().distance(stats(0.5)) == math.inf


@pytest.mark.parametrize("policy", [FixedLength(), ConfidenceThreshold(0.25), ConfidenceThreshold(1, "keep")])
def test_settings_invert(policy):
    assert policy_from_settings(policy.settings()) == policy
    assert POLICIES[policy.settings()["policy"]] is type(policy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "hope"}, "choose one of fixed, threshold"),
        ({}, "choose one of"),
        ({"policy": "threshold"}, "do not fit"),
        ({"policy": "fixed", "threshold": 0.5}, "do not fit"),
        ({"policy": "threshold", "threshold": 1.01}, "between 0 and 1"),
        ({"policy": "threshold", "threshold": -0.01}, "between 0 and 1"),
        ({"policy": "threshold", "threshold": math.nan}, "between 0 and 1"),
        ({"policy": "threshold", "threshold": 0.5, "on_fail": "sigh"}, '"drop" or "keep"'),
    ],
)
def test_wrong_settings_get_a_sentence(settings, message):
    with pytest.raises(SpecVizError, match=message):
        policy_from_settings(settings)
