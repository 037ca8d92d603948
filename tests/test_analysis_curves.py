"""Curves equal sums over single replays; intervals and verdicts say what the prompts can tell."""

import numpy as np
import pytest
from analysis_helpers import flat_cost, random_cost, toy_recordings

from specviz.analysis.bootstrap import resample_weights, speedup_limits
from specviz.analysis.curves import grid, speedup_curve
from specviz.analysis.prediction import predict
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, breakpoints, replay


@pytest.fixture(scope="module")
def recordings():
    return toy_recordings(15, [0.5, 0.8, 0.9, 1.0], 25)


@pytest.fixture(scope="module")
def cost():
    return random_cost(5)


def pooled_by_replay(recordings, cost, threshold, max_draft, on_fail="drop", mode="fast"):
    predictions = [
        predict(replay(recording, ConfidenceThreshold(threshold, on_fail), max_draft), cost, pass_mode=mode)
        for recording in recordings
    ]
    return sum(one.plain_seconds for one in predictions) / sum(one.seconds for one in predictions)


@pytest.mark.parametrize("on_fail", ["drop", "keep"])
def test_the_curve_is_the_exact_step_function(recordings, cost, on_fail):
    curve = speedup_curve(recordings, cost, 5, on_fail=on_fail, pass_mode="fast", resamples=50)
    every = np.concatenate([[0.0], *(breakpoints(recording, 5, on_fail) for recording in recordings)])
    np.testing.assert_array_equal(curve.thresholds, np.unique(every.astype(np.float64)))
    assert curve.exact and curve.on_fail == on_fail
    for threshold in (0.0, *curve.thresholds[3:-1:17], 0.123, 0.77, np.nextafter(curve.thresholds[4], 0), 1.0):
        expected = pooled_by_replay(recordings, cost, threshold, 5, on_fail)
        assert curve.speedup[curve.at(threshold)] == pytest.approx(expected, rel=1e-9)


def test_the_counts_of_the_exact_curve_are_those_of_a_grid_at_its_thresholds(recordings, cost):
    exact = speedup_curve(recordings, cost, 5, pass_mode="fast", resamples=50)
    sampled = speedup_curve(recordings, cost, 5, exact.thresholds, pass_mode="fast", resamples=50)
    assert not sampled.exact
    for name in ("speedup", "low", "high", "seconds", "plain_seconds"):
        np.testing.assert_allclose(getattr(exact, name), getattr(sampled, name), rtol=1e-12)
    for name in exact.counts.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(exact.counts, name), getattr(sampled.counts, name))


def test_the_grid_holds_the_pooled_speedup_of_every_cell(recordings, cost):
    cells = grid(recordings, cost, [0.5, 0.0, 0.9], [2, 5], pass_mode="invariant", resamples=50)
    np.testing.assert_array_equal(cells.thresholds, [0, 0.5, 0.9])
    for row, threshold in enumerate(cells.thresholds):
        for column, max_draft in enumerate(cells.max_drafts):
            expected = pooled_by_replay(recordings, cost, threshold, max_draft, mode="invariant")
            assert cells.speedup[row, column] == pytest.approx(expected, rel=1e-9)
    best = cells.best
    assert best.speedup.value == cells.speedup.max()
    at = list(cells.thresholds).index(best.threshold), list(cells.max_drafts).index(best.max_draft)
    assert (best.speedup.low, best.speedup.high) == pytest.approx((cells.low[at], cells.high[at]))


def test_the_default_grid_covers_what_was_recorded_and_measured(recordings):
    cells = grid(recordings, random_cost(5, widest=6), pass_mode="fast", resamples=20)
    np.testing.assert_array_equal(cells.max_drafts, [1, 2, 3, 4, 5])
    assert len(cells.thresholds) == 101 and cells.outside == 0


def test_an_empty_set_gets_a_sentence(cost):
    with pytest.raises(SpecVizError, match="at least one recording"):
        speedup_curve([], cost, 3)


def test_bootstrap_equals_resampling_one_by_one():
    random = np.random.default_rng(0)
    plain, seconds = random.uniform(1, 2, 6), random.uniform(1, 2, (6, 3))
    weights = resample_weights(6, 200, seed=1)
    assert (weights.sum(axis=1) == 6).all()
    samples = []
    for row in weights.astype(int):
        drawn = np.repeat(np.arange(6), row)
        samples.append(plain[drawn].sum() / seconds[drawn].sum(axis=0))
    expected = np.quantile(samples, (0.05, 0.95), axis=0)
    np.testing.assert_allclose(speedup_limits(plain, seconds, weights, 0.9), expected)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """400 prompt sets of 40 prompts, 95 % intervals: the true ratio of means lies in 90 to 99 % of them."""
    random = np.random.default_rng(7)
    inside = 0
    for trial in range(400):
        plain = random.gamma(4, 0.25, 40)
        seconds = (plain * random.uniform(0.5, 1.0, 40))[:, None]
        low, high = speedup_limits(plain, seconds, resample_weights(40, 300, trial), 0.95)
        inside += low[0] <= 1 / 0.75 <= high[0]
    assert 0.90 <= inside / 400 <= 0.99


def test_one_prompt_gets_no_interval():
    recording = toy_recordings(15, [0.8])
    curve = speedup_curve(recording, flat_cost(), 4)
    assert np.isnan(curve.low).all() and np.isnan(curve.high).all()
    assert "interval" not in curve.sentence
