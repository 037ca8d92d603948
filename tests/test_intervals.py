"""Intervals hold what they say: the choice of prompts and the timing of the passes, on simulations with known truth."""

import numpy as np
import pytest
from analysis_helpers import PAIR, exactly, random_cost, toy_recordings

from specviz.analysis import grid, predict
from specviz.analysis.arena import arena
from specviz.analysis.bootstrap import resample_weights, speedup_limits
from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.analysis.curves import replicates_of, speedup_curve
from specviz.analysis.tuning import tune
from specviz.replay import ConfidenceThreshold, replay

CONTEXTS = (1, 60)
WIDTHS = (1, 2, 3, 5)
TRUE = PassTimes(
    WIDTHS,
    exactly([[1.0, 1.1], [1.02, 1.15], [1.1, 1.2], [1.3, 1.4]]),
    exactly([[0.12, 0.13], [0.13, 0.14]]),
    exactly([0.98, 1.05]),
    exactly(0.01),
)
TRUTH = CostModel(PAIR, CONTEXTS, {"fast": TRUE}, 5)


def measured(source, repeats, spread) -> CostModel:
    """The true times as a noisy machine shows them."""

    def timed(timing: Timing) -> Timing:
        return Timing.of(timing.median[..., None] * source.lognormal(0, spread, (*timing.median.shape, repeats)))

    times = PassTimes(WIDTHS, *map(timed, (TRUE.target_pass, TRUE.draft_step, TRUE.plain_step, TRUE.round_overhead)))
    values = {"version": 1, "pair": vars(PAIR), "contexts": CONTEXTS, "repeats": repeats}
    return CostModel.from_json(values | {"modes": {"fast": times.to_json()}})


@pytest.mark.parametrize(("repeats", "spread"), [(21, 0.3), (7, 0.15)])
def test_the_interval_covers_the_truth_as_often_as_it_says(repeats, spread):
    """Prompts drawn from a large population, times measured with noise; the truth is the population at true times."""
    population = toy_recordings(0, np.tile((0.6, 0.7), 30), tokens=16, max_draft=4)
    setting = {"thresholds": [0.3], "max_drafts": [3]}
    everything = grid(population, TRUTH, **setting, resamples=2)
    truth, source, number, tries = float(everything.speedup[0, 0]), np.random.default_rng(1), 24, 250
    hits = {"both": 0, "prompts": 0}
    for _ in range(tries):
        drawn = source.integers(0, len(population), number)
        cost = measured(source, repeats, spread)
        recordings = [population[place] for place in drawn]
        cells = grid(recordings, cost, **setting, resamples=200)
        hits["both"] += bool(cells.low[0, 0] <= truth <= cells.high[0, 0])
        low, high = speedup_limits(cells.plain_seconds, cells.seconds[:, 0], resample_weights(number, 200), 0.95)
        hits["prompts"] += bool(low[0] <= truth <= high[0])
    shares = {name: count / tries for name, count in hits.items()}
    assert 0.92 <= shares["both"] <= 0.995, shares
    assert shares["prompts"] < 0.85, "the prompts alone are not what makes it uncertain"


def test_exact_times_leave_the_uncertainty_of_the_prompts_alone():
    recordings = toy_recordings(1, (0.4, 0.6, 0.8, 0.9), tokens=20, max_draft=4)
    cells = grid(recordings, random_cost(2, widest=5), thresholds=[0.0, 0.5], pass_mode="fast", resamples=300)
    flat = cells.seconds.reshape(len(recordings), -1)
    limits = speedup_limits(cells.plain_seconds, flat, resample_weights(len(recordings), 300), cells.level)
    np.testing.assert_allclose(np.stack((cells.low, cells.high)).reshape(2, -1), limits, rtol=1e-5)


def test_what_prices_multiply_gives_the_seconds():
    recordings = toy_recordings(1, (0.4, 0.6, 0.8), tokens=20, max_draft=4)
    cost = random_cost(2, widest=5)
    cells = grid(recordings, cost, thresholds=[0.0, 0.5, 0.9], pass_mode="fast", resamples=2)
    once = replicates_of(recordings, cost, "fast", weights=np.eye(3))
    work = cells.work.reshape(3, -1, cells.work.shape[-1])
    np.testing.assert_allclose(once.seconds(work), cells.seconds.reshape(3, -1), rtol=1e-5)
    np.testing.assert_allclose(once.plain, cells.plain_seconds, rtol=1e-12)


def noisy(share: float) -> CostModel:
    """The true times, each with quartiles this share away from its median."""

    def timing(one: Timing) -> Timing:
        return Timing(one.median, one.median * (1 - share), one.median * (1 + share))

    times = PassTimes(WIDTHS, *map(timing, (TRUE.target_pass, TRUE.draft_step, TRUE.plain_step, TRUE.round_overhead)))
    return CostModel(PAIR, CONTEXTS, {"fast": times}, 7)


def test_every_interval_of_a_speedup_widens_with_the_spread_of_the_times():
    recordings = toy_recordings(1, (0.5, 0.5, 0.6, 0.6, 0.7, 0.7), tokens=20, max_draft=4)
    found = {}
    for share in (0.0, 0.2):
        cost = noisy(share)
        cells, curve = grid(recordings, cost), speedup_curve(recordings, cost, 3)
        tuning, judged = tune(recordings, cost), arena(recordings, cost)
        entry = judged.entry("Threshold, keep")
        found[share] = {
            "grid": (cells.high - cells.low).mean(),
            "curve": (curve.high - curve.low).mean(),
            "tuned": tuning.best.speedup.high - tuning.best.speedup.low,
            "held out": tuning.best.held_out.high - tuning.best.held_out.low,
            "arena": entry.speedup.high - entry.speedup.low,
        }
    for name, width in found[0.2].items():
        assert width > 1.3 * found[0.0][name], (name, found)


def test_settings_share_the_times_of_a_replicate():
    """Two settings of the same passes differ by far less than either is uncertain."""
    recordings = toy_recordings(1, (0.5, 0.5, 0.6, 0.6, 0.7, 0.7), tokens=20, max_draft=4)
    cost = noisy(0.2)
    work = grid(recordings, cost, thresholds=[0.0, 0.1], max_drafts=[3]).work[:, :, 0]
    replicates = replicates_of(recordings, cost, "fast")
    first, second = (replicates.plain[:, None] / replicates.seconds(work)).T
    assert np.std(first - second) < 0.5 * np.std(first)


def test_one_recording_has_no_interval():
    recording = toy_recordings(1, (0.6,), tokens=20, max_draft=4)
    assert np.isnan(grid(recording, noisy(0.2)).low).all()


def test_a_trace_is_priced_like_its_counts():
    (recording,) = toy_recordings(1, (0.6,), tokens=20, max_draft=4)
    cells = grid([recording], TRUTH, thresholds=[0.3], max_drafts=[3], resamples=2)
    assert predict(replay(recording, ConfidenceThreshold(0.3), 3), TRUTH, pass_mode="fast").seconds == pytest.approx(
        cells.seconds[0, 0, 0]
    )
