"""Stopping policies: the comparison, the settings, the registry."""

import math

import numpy as np
import pytest

from specviz.errors import SpecVizError
from specviz.replay import POLICIES, ConfidenceThreshold, FixedLength, StepStats, policy_from_settings
from specviz.replay.policies import (
    AdaEDL,
    CumulativeConfidence,
    DraftVerify,
    EntropyBound,
    Heuristic,
    LlamaCpp,
    MarginThreshold,
)


def stats(confidence=0.5, *, depth=0, entropy=1.0, margin=0.5):
    return StepStats(depth, position=depth, token=1, confidence=confidence, entropy=entropy, margin=margin)


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


def test_svip_stops_where_its_own_code_stops():
    # sqrt(0.15 * entropy) > 0.3, that is entropy > 0.6.
    policy = EntropyBound(0.3 / math.sqrt(0.15), "keep")
    assert not policy.stops(stats(entropy=0.599)) and policy.stops(stats(entropy=0.601))
    assert not EntropyBound(2.0).stops(stats(entropy=4.0)), "at the bound drafting goes on"
    assert not EntropyBound(0.0).stops(stats(entropy=0.0)) and EntropyBound(0.0).stops(stats(entropy=0.01))


def test_margin_and_product_must_exceed_their_bounds():
    assert MarginThreshold(0.25).stops(stats(margin=0.25)) and not MarginThreshold(0.25).stops(stats(margin=0.26))
    policy = CumulativeConfidence(0.25)
    assert [policy.stops(stats(0.5, depth=0)), policy.stops(stats(0.75, depth=1))] == [False, False]
    assert policy.stops(stats(0.5, depth=2))
    assert not policy.stops(stats(0.5, depth=0)), "a new round begins a new product"


ROUNDS = [(8, 8), (3, 3), (2, 0), (5, 5), (1, 1), (4, 4), (8, 8), (0, 0), (6, 6), (8, 7), (3, 3)]  # proposed, accepted


@pytest.mark.parametrize(("policy", "start"), [(DraftVerify(goal=0.7, step=0.1), 0.6), (AdaEDL(0.7, step=0.1), 0.3)])
def test_the_bound_moves_as_draft_and_verify_moves_it(policy, start):
    """Against a transcription of how the authors' code updates its threshold, for drafts of at most 8."""
    bound, rate, seen = start, 0.0, set()
    policy.begin(())
    for proposed, accepted in ROUNDS:
        policy.draft_limit(8)
        policy.end_round(proposed, accepted, [1] * (accepted + 1))
        if proposed:
            rate = 0.5 * rate + 0.5 * accepted / proposed
            move = 0.1 if rate < 0.7 else 0.0 if proposed == 8 else -0.1
            seen.add(move)
            bound = 0.9 * bound + 0.1 * (bound + move)
        assert policy._bound == pytest.approx(bound)
    assert seen == {0.1, 0.0, -0.1}
    policy.begin(())
    assert policy._bound == start, "every generation starts anew"


def test_draft_and_verify_and_adaedl_compare_what_they_say():
    policy = DraftVerify()
    assert policy.stops(stats(0.59)) and not policy.stops(stats(0.6)) and policy.on_fail == "keep"
    # 1 - sqrt(0.2 * 1.8) = 0.4
    assert AdaEDL(start=0.41).stops(stats(entropy=1.8)) and not AdaEDL(start=0.39).stops(stats(entropy=1.8))


def test_llama_cpp_throws_short_drafts_away():
    policy = LlamaCpp(0.75, 4, 2)
    assert policy.stops(stats(0.74)) and not policy.stops(stats(0.75))
    assert [policy.sent(number) for number in range(4)] == [0, 0, 2, 3]
    assert policy.draft_limit(3) == 3 and policy.draft_limit(9) == 4


def test_the_heuristic_carries_its_length_on_unless_transient():
    for transient, expected in ((False, 7), (True, 5)):
        policy = Heuristic(5, transient)
        policy.begin(())
        policy.end_round(5, 5, [1] * 6)
        assert policy.draft_limit(99) == 7
        policy.begin(())
        assert policy.draft_limit(99) == expected
