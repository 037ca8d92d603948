"""The live panel's data, unpacked as the browser unpacks it, says what the replay says."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_round import random_toy, recording_from_toy
from sample_recordings import sample_cost, sample_recording

from specviz.analysis import metrics, predict, threshold_outcomes
from specviz.replay import ConfidenceThreshold, breakpoints, replay
from specviz.replay.policies import ON_FAIL
from specviz.ui.panel_data import STATUS_LETTERS, TARGET_LETTERS, WITHHELD_LETTERS, pack_recording, pack_rounds


def rounds_at(packed, tau):
    """What the browser does: a walk of look-ups."""
    level = np.searchsorted(packed["levels"], tau, "right")
    start = 0
    while start < packed["emitted"]:
        variant = [v for v in packed["starts"][start] if v[0] <= level][-1]
        yield start, *variant[1:]
        start = variant[-1]


def assert_same_as_replay(recording, packed_recording, packed, tau, max_draft, on_fail):
    trace = replay(recording, ConfidenceThreshold(tau, on_fail), max_draft)
    steps = trace.steps
    found = list(rounds_at(packed, tau))
    assert [start for start, *_ in found] == trace.rounds["start"].tolist()
    assert [reason for *_, reason, _ in found] == trace.rounds["stop_reason"].tolist()
    assert [TARGET_LETTERS[target] for _, _, target, *_ in found] == trace.rounds["target_status"].tolist()
    drafted = steps["source"] == "draft"
    letters = "".join(letters for _, letters, *_ in found)
    assert [STATUS_LETTERS[letter] for letter in letters] == steps["status"][drafted].tolist()
    for letter, known, agrees in zip(
        letters,
        steps["target_token"][drafted] >= 0,
        steps["target_token"][drafted] == steps["token"][drafted],
        strict=True,
    ):
        if letter in WITHHELD_LETTERS:
            assert letter == ("u" if not known else "W" if agrees else "w")

    tokens, confidences = [], []
    for start, letters, *_ in found:
        rejected = letters.find("r")
        for index in range(len(letters)):
            if rejected < 0 or index <= rejected:
                tokens.append(packed_recording["draft"][start + index])
                confidences.append(packed_recording["confidence"][start + index])
            else:
                place = packed_recording["branchOffsets"][start + rejected] + index - rejected - 1
                tokens.append(packed_recording["branch"][place])
                confidences.append(packed_recording["branchConfidence"][place])
    assert [packed_recording["texts"][token] for token in tokens] == [f"<{token}>" for token in steps["token"][drafted]]
    np.testing.assert_allclose(confidences, steps["confidence"][drafted], atol=6e-5)
    return trace


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]), st.integers(1, 24), st.floats(0, 1), st.sampled_from(ON_FAIL))
def test_unpacked_rounds_are_those_of_the_replay(seed, max_draft, tokens, tau, on_fail):
    recording = recording_from_toy(*random_toy(seed), 5, tokens, (0,))
    packed_recording = json.loads(json.dumps(pack_recording(recording, "<{}>".format)))
    packed = json.loads(json.dumps(pack_rounds(recording, max_draft, on_fail=on_fail)))
    at_changes = [0.0, *packed["levels"]]
    for threshold in (0.0, 1.0, tau, *at_changes):
        assert_same_as_replay(recording, packed_recording, packed, threshold, max_draft, on_fail)
    found = [at_changes[level] for level in packed["changes"]]
    assert found[0] == 0
    assert found[1:] == breakpoints(recording, max_draft, on_fail).tolist()


@pytest.mark.parametrize("on_fail", ON_FAIL)
@pytest.mark.parametrize("max_draft", [1, 4, 8])
def test_numbers_of_each_stretch_are_those_of_the_trace(max_draft, on_fail):
    recording, cost = sample_recording(96), sample_cost()
    packed = pack_rounds(recording, max_draft, cost, on_fail)
    thresholds = [0.0, *packed["levels"]]
    for index, level in list(enumerate(packed["changes"]))[::7]:
        trace = replay(recording, ConfidenceThreshold(thresholds[level], on_fail), max_draft)
        outcomes, shown = threshold_outcomes(trace), packed["counts"]
        assert shown["accepted"][index] == outcomes.accepted
        assert shown["rejected"][index] == outcomes.rejected
        assert shown["discarded"][index] == outcomes.discarded
        assert shown["wronglyWithheld"][index] == outcomes.wrongly_withheld
        assert shown["rightlyWithheld"][index] == outcomes.rightly_withheld
        assert shown["untestedWithheld"][index] == outcomes.withheld_untested
        assert shown["rounds"][index] == len(trace.rounds["round"])
        assert packed["speedup"][index] == pytest.approx(predict(trace, cost).speedup, abs=1e-4)
        expected = metrics(trace)
        for name, values in packed["metrics"].items():
            assert (values[index] is None) == bool(np.isnan(getattr(expected, name)))
            assert values[index] is None or values[index] == pytest.approx(getattr(expected, name), abs=1e-4)


def test_histogram_counts_every_position_once():
    recording = sample_recording(200)
    histogram = pack_recording(recording, str)["histogram"]
    wrong = int((recording.draft_token != recording.output_ids).sum())
    assert sum(histogram["wrong"]) == wrong
    assert sum(histogram["right"]) == 200 - wrong


def test_a_long_recording_packs_small():
    recording = sample_recording(512)
    size = len(json.dumps([pack_recording(recording, str), pack_rounds(recording, 8, sample_cost())]))
    assert size < 400_000
