"""Pass times that can be true together, and speedups that can."""

import json
import re

import numpy as np
import pytest
from analysis_helpers import PAIR, exactly, random_cost, toy_recordings
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specviz.analysis import grid, predict
from specviz.analysis.calibrated import MachineBusy, cost_model
from specviz.analysis.consistent import contradictions, isotonic, rising
from specviz.analysis.cost_model import CostModel, PassTimes, Timing, rates
from specviz.analysis.metrics import pooled
from specviz.analysis.tuning import tune
from specviz.engine.calibration import PassSamples
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, replay, replay_grid

RECORDINGS = toy_recordings(3, (0.0, 0.3, 0.6, 0.95, 1.0), tokens=20, max_draft=4)


AN_HOUR = float(np.log10(3600.0))
CONTEXTS = st.sampled_from([(2,), (1, 60), (0, 8, 17), (3, 12, 200)])


def seconds(least=-9.0, most=AN_HOUR):
    return st.floats(least, most).map(lambda power: float(10.0**power))


@st.composite
def written_costs(draw, contexts=CONTEXTS):
    """A cost model as a file may hold it: whatever is of the right shape, possible or not."""
    at = draw(contexts)
    widths = draw(st.sampled_from([[1, 5], [1, 2, 3, 5], [5]]))
    mode = "fast" if widths[0] == 1 else "invariant"

    def timing(*shape, values):
        number = int(np.prod(shape)) if shape else 1
        drawn = draw(st.lists(values, min_size=number, max_size=number))
        median = np.array(drawn).reshape(shape)
        spread = draw(st.floats(0, 0.9))
        return {
            "median": median.tolist(),
            "lower": (median * (1 - spread)).tolist(),
            "upper": np.minimum(3600.0, median * (1 + spread)).tolist(),
        }

    target, overhead = timing(len(widths), len(at), values=seconds()), timing(values=st.just(0.0) | seconds(-9, 0))
    least = np.array(target["median"]).min(axis=0) + overhead["median"]
    plain = np.minimum(3600.0, least * draw(st.floats(1e-3, 1.3)))
    times = {
        "widths": widths,
        "compiled": False,
        "target_pass": target,
        "draft_step": timing(2, len(at), values=seconds()),
        "plain_step": {name: plain.tolist() for name in ("median", "lower", "upper")},
        "round_overhead": overhead,
    }
    repeats = draw(st.integers(1, 40))
    return {"version": 1, "pair": vars(PAIR), "contexts": list(at), "repeats": repeats, "modes": {mode: times}}


def accepted(values) -> CostModel:
    try:
        return CostModel.from_json(json.loads(json.dumps(values)))
    except SpecVizError:
        assume(False)


def ceiling(cost, counts, prompts, outputs):
    """Tokens per target pass, where each pass counts as a plain step at its context takes."""
    price = rates(cost, None, prompts, outputs, 0)
    lines = price.plain.reshape(len(prompts), *(1 for _ in counts.rounds.shape[1:]), 2)
    plain = lines[..., 0] * counts.rounds + lines[..., 1] * counts.verify_context.sum(axis=-1)
    return predict(counts, cost, prompt_tokens=prompts).plain_seconds.sum(axis=0) / plain.sum(axis=0)


@settings(max_examples=150, deadline=None)
@given(written_costs())
def test_no_speedup_exceeds_its_tokens_per_target_pass_whatever_the_accepted_times(values):
    """Where times depend on the context, a pass counts as much as a plain step at its context: a text whose later,
    slower positions are the ones that save passes gains more time than passes."""
    cost = accepted(values)
    cells = grid(RECORDINGS, cost, thresholds=[0.0, 0.3, 0.7, 1.0], resamples=2)
    prompts = [len(one.prompt_ids) for one in RECORDINGS]
    outputs = [len(one.output_ids) for one in RECORDINGS]
    counts = replay_grid(RECORDINGS, cells.thresholds, cells.max_drafts, "drop").counts
    assert (cells.speedup <= ceiling(cost, counts, prompts, outputs) * (1 + 1e-6)).all()
    never = cells.speedup[cells.thresholds == 1.0]  # every round commits one token
    assert (never <= 1 + 1e-6).all()


@settings(max_examples=100, deadline=None)
@given(written_costs(contexts=st.just((2,))))
def test_where_times_do_not_depend_on_the_context_the_bound_is_that_of_the_counts(values):
    cost = accepted(values)
    cells = grid(RECORDINGS, cost, thresholds=[0.0, 0.4, 0.8, 1.0], resamples=2)
    assert (cells.speedup <= cells.counts.emitted / cells.counts.rounds * (1 + 1e-6)).all()
    for recording in RECORDINGS:
        trace = replay(recording, ConfidenceThreshold(0.0), 4)
        assert predict(trace, cost).speedup <= len(trace.run.output_ids) / len(trace.rounds["start"]) * (1 + 1e-6)


@settings(max_examples=100, deadline=None)
@given(written_costs())
def test_every_price_is_a_time(values):
    cost = accepted(values)
    for recording in RECORDINGS:
        for policy in (FixedLength(), ConfidenceThreshold(0.5)):
            priced = predict(replay(recording, policy, 4), cost)
            for part in ("draft_seconds", "plain_seconds", "seconds"):
                assert 0 <= getattr(priced, part) < np.inf, part


def test_no_advice_beyond_one_token_a_pass():
    """The fault as it was reported: a draft of which nothing is accepted, and times that made it 2.42× fast."""
    recordings = toy_recordings(5, (0.0,) * 6, tokens=24, max_draft=8)
    values = random_cost(1, widest=9).to_json()
    values["modes"] = {"fast": values["modes"]["fast"]}
    target = np.array(values["modes"]["fast"]["target_pass"]["median"])
    plain = values["modes"]["fast"]["plain_step"]
    for name in plain:
        plain[name] = (target.min(axis=0) * 2.4).tolist()
    with pytest.raises(SpecVizError, match="a plain step took .* which cannot be; measure it again"):
        CostModel.from_json(values)
    for name in plain:  # within what kernels and noise explain
        plain[name] = ((target.min(axis=0) + 0.1) * 1.05).tolist()
    cost = CostModel.from_json(values)
    tuning = tune(recordings, cost)
    for choice in tuning.choices:
        assert max(choice.speedup.value, choice.held_out.value) <= tuning.most_tokens_per_pass * (1 + 1e-9)


@pytest.mark.parametrize("item", ["target_pass", "draft_step", "plain_step", "round_overhead"])
@pytest.mark.parametrize("bad", [1e308, 3601.0, -1e-3, float("nan"), float("inf")])
def test_a_time_that_no_pass_takes_is_refused(item, bad):
    values = random_cost(4).to_json()
    timing = values["modes"]["fast"][item]
    timing["median"] = np.full(np.shape(timing["median"]), bad).tolist()
    with pytest.raises(SpecVizError, match="not a positive time of at most an hour"):
        CostModel.from_json(values)


@pytest.mark.parametrize(
    "change",
    [
        {"repeats": float("inf")},
        {"repeats": 0},
        {"contexts": [1, float("inf")]},
        {"contexts": [1, 1e30]},
        {"measured_at": "yesterday"},
        {"measured_at": 5},
        {"load_average": "high"},
        {"load_average": float("nan")},
        {"processors": None},
        {"pair": {"target": ["a"], "draft": "b"}},
        {"pair": {"target": "a", "draft": "b", "versions": 3}},
        {"version": "1"},
    ],
)
def test_a_damaged_cost_model_is_one_sentence(change):
    with pytest.raises(SpecVizError, match=re.compile("measure it again", re.I)):
        CostModel.from_json(random_cost(4).to_json() | change)


def test_quartiles_lie_around_their_median():
    values = random_cost(4).to_json()
    values["modes"]["fast"]["plain_step"]["lower"][0] = values["modes"]["fast"]["plain_step"]["median"][0] * 1.5
    with pytest.raises(SpecVizError, match="median outside its quartiles"):
        CostModel.from_json(values)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.01, 10)), min_size=1, max_size=12))
def test_isotonic_regression_is_that_of_scikit_learn(rows):
    from sklearn.isotonic import isotonic_regression

    values, weights = np.array(rows).T
    np.testing.assert_allclose(isotonic(values, weights), isotonic_regression(values, sample_weight=weights), atol=1e-9)


def noisy_samples(target, seed, spread=0.05, repeats=21, plain=None, draft=(0.2, 0.21)) -> PassSamples:
    """Samples around true times by width (W,), at one context."""
    source = np.random.default_rng(seed)

    def samples(*true):
        return np.array(true, float)[:, None, None] * source.lognormal(0, spread, (len(true), 1, repeats))

    return PassSamples(
        PAIR,
        "fast",
        False,
        (10,),
        tuple(range(1, len(target) + 1)),
        samples(*target),
        samples(*draft),
        samples(target[0] if plain is None else plain)[0],
        np.full(repeats, 1e-4),
    )


def test_noise_within_the_spread_becomes_a_consistent_table():
    errors = {"measured": [], "kept": []}
    for seed in range(30):
        samples = noisy_samples([1.0] * 8, seed)
        times = cost_model(samples).mode("fast")
        assert (np.diff(times.target_pass.median, axis=0) >= 0).all()
        assert times.plain_step.median[0] <= times.target_pass.median[0, 0] + 1e-4 + 1e-12
        measured = np.median(samples.target_pass, axis=-1)
        errors["measured"].append(np.abs(measured - 1).mean())
        errors["kept"].append(np.abs(times.target_pass.median - 1).mean())
    assert np.mean(errors["kept"]) < np.mean(errors["measured"]), "knowing the order makes the table truer"


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (noisy_samples([2.0, 1.0, 1.1], 0), r"a (plain step|pass over 1 token) took .* and a pass over 2 tokens"),
        (noisy_samples([1.0, 1.1, 2.0, 1.2], 0), r"a pass over 3 tokens took .* and a pass over 4 tokens"),
        (noisy_samples([1.0, 1.1], 0, plain=2.4), r"a plain step took .* and a pass over 1 token "),
        (noisy_samples([1.0, 1.1], 0, draft=(0.3, 0.2)), r"a draft step over 1 token took .* and over 2 tokens"),
    ],
)
def test_times_that_fall_beyond_their_spread_are_refused(samples, words):
    sentence = rf"The machine was busy while the passes were timed: {words}.*; close other programs and measure again\."
    with pytest.raises(MachineBusy, match=sentence):
        cost_model(samples)


def test_few_repetitions_say_little_of_their_own_spread():
    times = PassTimes((1, 2), exactly([[1.0], [0.85]]), exactly([[0.1], [0.1]]), exactly([0.9]), exactly(0.0))
    wide = PassTimes(
        times.widths, Timing([[1.0], [0.85]], [[0.98], [0.83]], [[1.02], [0.87]]), *list(vars(times).values())[2:5]
    )
    assert contradictions(wide, 21, (10,)) and not contradictions(wide, 3, (10,))


def test_what_is_consistent_stays_as_it_is():
    times = cost_model(noisy_samples([1.0, 1.5, 2.0], 1)).mode("fast")
    again = rising(times, 21)
    for name in ("target_pass", "draft_step", "plain_step", "round_overhead"):
        np.testing.assert_allclose(getattr(again, name).median, getattr(times, name).median, rtol=1e-12)


def test_an_older_model_changes_only_where_it_was_impossible():
    values = random_cost(4).to_json()
    assert CostModel.from_json(values).to_json() == values, "possible, though its times fall with the width"
    fast = values["modes"]["fast"]
    fast["plain_step"]["median"][1] = fast["target_pass"]["median"][3][1] = 1.0
    target = np.array(fast["target_pass"]["median"])
    target[:, 1] = np.maximum(target[:, 1], 1.2)
    target[3, 1] = 0.88  # with the overhead of 0.1 it is still a little shorter than the plain step
    for name in ("median", "lower", "upper"):
        fast["target_pass"][name] = target.tolist()
        fast["plain_step"][name] = fast["plain_step"]["median"]
    mended = CostModel.from_json(values).mode("fast")
    plain, shortest = mended.plain_step.median[1], mended.target_pass.median[3, 1] + 0.1
    assert 0.98 < plain < 1.0 and plain == pytest.approx(shortest)
    kept = np.delete(target[:, 1], 3)
    np.testing.assert_array_equal(np.delete(mended.target_pass.median[:, 1], 3), kept)
    np.testing.assert_array_equal(mended.target_pass.median[:, 0], target[:, 0])


def test_pooled_counts_of_the_recordings():
    """What the properties above rest on: the recordings hold rounds of one token and rounds of several."""
    cells = grid(RECORDINGS, random_cost(0, widest=5), thresholds=[0.0], pass_mode="fast", resamples=2)
    assert cells.counts.rounds.shape == (1, 4) and pooled(cells.counts).rounds.sum() > 0
    assert cells.counts.emitted.max() > cells.counts.rounds.min()
