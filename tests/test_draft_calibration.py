"""Calibration measures against scikit-learn and by hand; intervals by simulation; context and stretches."""

from dataclasses import replace

import numpy as np
import pytest
from analysis_helpers import random_cost, toy_recordings
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_recordings import sample_recording
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score

from specviz.analysis import context_report, speedup_curve
from specviz.analysis import draft_calibration as draft
from specviz.errors import SpecVizError
from specviz.replay import FixedLength, replay
from specviz.replay.contexts import KINDS, kinds_of_positions, places_in_sentence, vocabulary_flags

FLAGS = vocabulary_flags(lambda token: [b".", b" the", b"s", b" 4", b"\n"][token], 5)


def simulated(seed, tokens, prompts=10, shift=0.0):
    """Tokens accepted with chance confidence - shift."""
    source = np.random.default_rng(seed)
    confidence = source.uniform(0.05, 1, tokens)
    accepted = source.random(tokens) < np.clip(confidence - shift, 0, 1)
    others = source.random((2, tokens))
    return draft.Judged(confidence, *others, accepted, np.arange(tokens) % prompts)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), tokens=st.integers(5, 400), shift=st.sampled_from([0.0, 0.2]))
def test_measures_equal_scikit_learn(seed, tokens, shift):
    found = simulated(seed, tokens, shift=shift)
    measured = draft.calibration(found, resamples=20)
    assert measured.brier.score == pytest.approx(brier_score_loss(found.accepted, found.confidence))
    if 0 < found.accepted.sum() < tokens:
        for name, sign in draft.SIGNALS.items():
            expected = roc_auc_score(found.accepted, sign * getattr(found, name))
            assert measured.signals[name].area == pytest.approx(expected)
        rate, confidence = calibration_curve(found.accepted, found.confidence, n_bins=10)
        np.testing.assert_allclose(measured.diagram.rate, rate)
        np.testing.assert_allclose(measured.diagram.confidence, confidence)
    parts = measured.brier
    assert parts.score == pytest.approx(parts.unreliability - parts.resolution + parts.uncertainty + parts.within)


def test_errors_by_hand():
    confidence = np.array([0.15, 0.18, 0.85, 0.89, 0.9])
    accepted = np.array([False, True, True, True, False])
    # Bins (0.1, 0.2] and (0.8, 0.9]: |1/2 - 0.165| over two tokens, |2/3 - 0.88| over three.
    expected = (2 * abs(0.5 - 0.165) + 3 * abs(2 / 3 - 0.88)) / 5
    assert draft.calibration_error(draft.reliability(confidence, accepted)) == pytest.approx(expected)
    # Two bins of about equal counts: the lower one holds the median.
    adaptive = draft.reliability(confidence, accepted, 2, equal_counts=True)
    assert adaptive.count.tolist() == [3, 2]
    expected = (3 * abs(2 / 3 - 1.18 / 3) + 2 * abs(0.5 - 0.895)) / 5
    assert draft.calibration_error(adaptive) == pytest.approx(expected)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.93])
def test_wilson_intervals_cover(chance):
    trials = 60
    successes = np.random.default_rng(1).binomial(trials, chance, 4000)
    low, high = draft.wilson(successes, trials)
    assert 0.92 < ((low <= chance) & (chance <= high)).mean() < 0.99


def test_the_interval_of_the_calibration_error_covers_when_prompts_differ():
    def draw(seed, prompts=40, tokens=50):
        source = np.random.default_rng(seed)
        confidence = source.uniform(0.3, 0.9, (prompts, tokens))
        ease = source.normal(-0.2, 0.1, (prompts, 1))  # of a prompt; confidences are too high by 0.2 on average
        accepted = source.random((prompts, tokens)) < np.clip(confidence + ease, 0, 1)
        other = np.zeros(prompts * tokens)
        return draft.Judged(confidence.ravel(), other, other, accepted.ravel(), np.repeat(np.arange(prompts), tokens))

    covered = []
    for seed in range(200):
        tokens = draw(seed)
        diagram = draft.reliability(tokens.confidence, tokens.accepted)
        interval = draft._error_interval(tokens, draft.calibration_error(diagram), draft.BINS, 400)
        covered.append(interval.low <= 0.2 <= interval.high)
    assert 0.90 <= np.mean(covered) <= 0.99


def test_a_shifted_draft_is_found_out_and_calibrating_mends_it():
    taught, shown = simulated(1, 4000, shift=0.25), simulated(2, 4000, shift=0.25)
    before = draft.calibration(shown)
    assert before.error.low > 0.15
    isotonic = draft.isotonic_map(taught)
    after = draft.calibration(draft.Judged(isotonic(shown.confidence), *list(vars(shown).values())[1:]))
    assert after.error.value < 0.05 < before.error.value
    assert after.brier.score < before.brier.score
    assert after.signals["confidence"].area == pytest.approx(before.signals["confidence"].area, abs=0.01)


def test_the_temperature_is_found():
    source = np.random.default_rng(0)
    confidence = source.uniform(0.05, 0.99, 40_000)
    true = 1 / (1 + np.exp(-draft.log_odds(confidence) / 2))
    other = np.zeros(40_000)
    tokens = draft.Judged(confidence, other, other, source.random(40_000) < true, np.zeros(40_000, int))
    change, temperature = draft.temperature_map(tokens)
    assert temperature == pytest.approx(2, abs=0.1)
    np.testing.assert_allclose(change(confidence), true, atol=0.02)


def test_depths_are_those_of_the_tested_steps():
    recordings = toy_recordings(3, [0.9] * 8, 40)
    found = draft.by_depth(recordings, 5)
    tested = sum(int(replay(one, FixedLength(), 5).rounds["tested"].sum()) for one in recordings)
    assert sum(len(part) for part in found.values()) == tested
    assert len(found[0]) > len(found[3]) > 0


def test_precisions_of_the_same_models_are_told_apart_and_others_refused():
    bf16, nf4 = toy_recordings(4, [0.5, 0.8], 40)
    nf4 = replace(nf4, pair=replace(nf4.pair, target_precision="nf4"))
    parts = draft.by_precision([bf16, nf4, nf4])
    assert [len(part) for part in parts.values()] == [len(bf16.output_ids), 2 * len(nf4.output_ids)]
    assert list(parts)[1].startswith("target nf4, draft ")
    with pytest.raises(SpecVizError, match="different models"):
        draft.by_precision([bf16, replace(nf4, pair=replace(nf4.pair, draft="another"))])


def test_recalibration_learns_on_one_half_and_shows_the_other():
    recordings = toy_recordings(5, [0.4, 0.6, 0.8, 0.9], 60)
    found = draft.recalibrate(recordings)
    assert sorted(found.learnt_on + found.shown_on) == [0, 1, 2, 3]
    assert found.shown["as it is"].tokens == sum(len(recordings[place].output_ids) for place in found.shown_on)
    changed = [one if place in found.learnt_on else recordings[0] for place, one in enumerate(recordings)]
    assert draft.recalibrate(changed).temperature == found.temperature


def test_kinds_partition_the_positions():
    recordings = toy_recordings(4, [0.5, 0.8], 40)
    parts = draft.by_kind(recordings, FLAGS)
    assert sum(len(part) for part in parts.values()) == sum(len(one.output_ids) for one in recordings)
    assert set(parts) <= set(KINDS) and len(parts) > 2


@pytest.mark.parametrize("seed", range(5))
def test_a_strictly_rising_map_moves_the_best_threshold_but_not_the_best_speedup(seed):
    recordings, cost = toy_recordings(seed, [0.5, 0.8, 0.7], 40), random_cost(seed)
    maps = {"as it is": lambda c: c, "rising": lambda c: c**2 * 0.9, "flat": lambda c: np.round(c * 4) / 4}
    curves = draft.mapped_curves(recordings, cost, 5, maps, pass_mode="fast", resamples=10)
    plain, rising, flat = curves.values()
    np.testing.assert_array_equal(plain.speedup, rising.speedup)
    assert not np.array_equal(plain.thresholds, rising.thresholds)
    assert flat.speedup.max() <= plain.speedup.max() + 1e-12
    assert len(flat.speedup) < len(plain.speedup)
    reference = speedup_curve(recordings, cost, 5, pass_mode="fast", resamples=10)
    np.testing.assert_array_equal(plain.speedup, reference.speedup)


def test_halves_need_two_prompts_and_are_disjoint():
    recordings = toy_recordings(1, [0.5] * 5, 10)
    learn, show = draft.halves(recordings)
    assert sorted(learn + show) == list(range(5)) and abs(len(learn) - len(show)) <= 1
    with pytest.raises(SpecVizError, match="at least two prompts"):
        draft.halves(recordings[:1])
    with pytest.raises(SpecVizError, match="no recording"):
        draft.judged([])
    by_chance = replace(recordings[0], settings={**recordings[0].settings, "rule": "rejection"})
    with pytest.raises(SpecVizError, match="by chance"):
        draft.judged([by_chance])
    with pytest.raises(SpecVizError, match="by chance"):
        context_report.by_category([by_chance])


def test_tables_by_context_count_every_position():
    recordings = toy_recordings(6, [0.5, 0.9], 40)
    total = sum(len(one.output_ids) for one in recordings)
    for table in (
        context_report.by_kind(recordings, FLAGS),
        context_report.by_place(recordings, FLAGS),
        context_report.by_category(recordings),
    ):
        assert table["positions"].sum() == total
        right = sum((one.draft_token == one.output_ids).sum() for one in recordings)
        assert (table["acceptance"] * table["positions"]).sum() == pytest.approx(right)
        assert ((table["low"] <= table["acceptance"]) & (table["acceptance"] <= table["high"])).all()
    (kinds,) = [kinds_of_positions(one, FLAGS) for one in recordings[:1]]
    assert len(kinds) == len(recordings[0].output_ids)


def test_places_in_a_sentence():
    recording = toy_recordings(6, [0.5], 40)[0]
    ends = np.isin(recording.output_ids, (0, 4))  # the full stop and the line break
    expected, place = [], 0
    for end in ends:
        expected.append(place)
        place = 0 if end else place + 1
    assert places_in_sentence(recording, FLAGS).tolist() == expected


def test_stretches_find_the_planted_ones_and_the_draft_length_they_deserve():
    made_up = sample_recording(120, max_draft=8)
    drafted = made_up.output_ids.copy()
    drafted[30:60] += 1
    recording = replace(made_up, draft_token=drafted)
    found = context_report.stretches(recording, random_cost(1, straight=True), 8, pass_mode="fast")
    assert [stretch.predictable for stretch in found] == [True, False, True]
    assert abs(found[1].start - 30) <= 1 and abs(found[1].end - 60) <= 1
    assert found[0].start == 0 and found[-1].end == len(recording.output_ids)
    assert found[1].draft_length == 1 < found[0].draft_length
    assert found[1].acceptance < 0.1 < 0.9 < found[0].acceptance
    unpriced = context_report.stretches(recording, None, 8)
    assert unpriced == [replace(stretch, draft_length=None) for stretch in found]
