"""Counts and traces have one price, the price of hand-counted rounds; contexts that were not measured have none."""

import json

import numpy as np
import pytest
from analysis_helpers import exactly, flat_cost, random_cost, toy_recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.analysis.prediction import predict, round_times
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, replay, replay_grid, trace_counts


def priced_by_hand(trace, cost, mode, fully_used):
    """Round by round, interpolating at each round's own context."""
    times, contexts = cost.modes[mode], cost.contexts

    def at(table, context):
        return np.interp(context, contexts, table)

    draft = verify = 0.0
    prompt = len(trace.run.prompt_ids)
    for row in range(len(trace.rounds["round"])):
        context = prompt + int(trace.rounds["start"][row])
        for step in range(int(trace.rounds["draft_steps"][row])):
            two = step == 0 and row > 0 and fully_used[row - 1]
            draft += at(times.draft_step.median[int(two)], context + step)
        width = int(trace.rounds["proposed"][row]) + 1
        column = 0 if mode == "invariant" else list(times.widths).index(width)
        verify += at(times.target_pass.median[column], context)
    plain = sum(at(times.plain_step.median, prompt + position) for position in range(len(trace.run.output_ids)))
    return draft, verify, plain


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    tokens=st.integers(1, 40),
    threshold=st.sampled_from([0.0, 0.3, 0.7]),
    max_draft=st.integers(1, 8),
    on_fail=st.sampled_from(["drop", "keep"]),
    mode=st.sampled_from(["fast", "invariant"]),
)
def test_counts_and_rounds_have_one_price(seed, agreement, tokens, threshold, max_draft, on_fail, mode):
    recordings = toy_recordings(seed, [agreement, 0.8], tokens)
    cost = random_cost(seed, contexts=(0, 7, 19, 60))  # crooked on purpose
    counts = replay_grid(recordings, [threshold, 0.9], [max_draft, 8], on_fail).counts
    prompts = [len(recording.prompt_ids) for recording in recordings]
    many = predict(counts, cost, pass_mode=mode, prompt_tokens=prompts)
    trace = replay(recordings[0], ConfidenceThreshold(threshold, on_fail), max_draft)
    one = predict(trace, cost, pass_mode=mode)
    times = round_times(trace, cost, pass_mode=mode)
    for name in ("draft", "verify", "overhead"):
        total = getattr(times, name).sum()
        np.testing.assert_allclose(total, getattr(one, f"{name}_seconds"), rtol=1e-9)
        np.testing.assert_allclose(total, getattr(many, f"{name}_seconds")[0, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(one.plain_seconds, many.plain_seconds[0, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(one.speedup, many.speedup[0, 0, 0], rtol=1e-9)
    assert sum(one.shares.values()) == pytest.approx(1)
    assert one.tokens == len(trace.run.output_ids) and not one.outside


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 60), max_draft=st.integers(1, 8))
def test_straight_tables_are_priced_as_by_hand(seed, tokens, max_draft):
    recording = toy_recordings(seed, [0.8], tokens)[0]
    cost = random_cost(seed, straight=True)
    # two tokens cost a constant more: the surcharge is priced at the mean context
    for times in cost.modes.values():
        for values in (times.draft_step.median, times.draft_step.lower, times.draft_step.upper):
            values[1] = values[0] + 0.25
    trace = replay(recording, ConfidenceThreshold(0.4), max_draft)
    rounds = trace.rounds
    fully_used = [
        rounds["proposed"][row] and rounds["target_status"][row] != "correction" and not rounds["withheld"][row]
        for row in range(len(rounds["round"]))
    ]
    for mode in cost.modes:
        found = predict(trace, cost, pass_mode=mode)
        draft, verify, plain = priced_by_hand(trace, cost, mode, fully_used)
        assert found.draft_seconds == pytest.approx(draft)
        assert found.verify_seconds == pytest.approx(verify)
        assert found.plain_seconds == pytest.approx(plain)
        assert found.overhead_seconds == pytest.approx(len(rounds["round"]) * {"fast": 0.1, "invariant": 0.2}[mode])


def test_a_bend_between_two_contexts_costs_little():
    """Times that grow by half over a bend in the middle of a generation: within 2 % of interpolating every round."""
    recording = toy_recordings(16, [0.8], 60)[0]
    grown = np.array([1.0, 1.05, 1.5])
    fast = PassTimes((1, 9), exactly([grown, 2 * grown]), exactly([grown / 9] * 2), exactly(grown), exactly(0))
    cost = CostModel(random_cost(0).pair, (0, 20, 80), {"fast": fast}, 3)
    trace = replay(recording, ConfidenceThreshold(0.4), 8)
    widths = tuple(range(1, 10))
    full = exactly([grown * np.interp(width, [1, 9], [1, 2]) for width in widths])
    by_hand = CostModel(cost.pair, cost.contexts, {"fast": PassTimes(widths, full, *_rest(fast))}, 3)
    draft, verify, plain = priced_by_hand(trace, by_hand, "fast", [False] * len(trace.rounds["round"]))
    found = predict(trace, cost)
    assert found.seconds == pytest.approx(draft + verify, rel=0.02)
    assert found.plain_seconds == pytest.approx(plain, rel=0.005)


def _rest(times):
    return times.draft_step, times.plain_step, times.round_overhead


def test_two_rounds_by_hand():
    """Five steps at 0.1 (one of them over two tokens, 0.15), passes over 1 + n tokens at 1 + n / 10, overhead 0.01."""
    cost = flat_cost(verify=1 + np.arange(17) / 10, draft=0.1, two=0.15, overhead=0.01)
    counts = trace_counts(replay(toy_recordings(1, [1.0])[0], ConfidenceThreshold(0.0), 4)).map(np.asarray)
    by_hand = {name: np.array([0]) for name in counts.__dataclass_fields__}
    by_hand |= {name: np.array([value]) for name, value in {"rounds": 2, "draft_steps": 5, "proposed": 4}.items()}
    by_hand |= {"accepted": np.array([3]), "emitted": np.array([5]), "two_token_steps": np.array([1])}
    by_hand |= {"proposal_lengths": np.array([[0, 1, 0, 1]]), "verify_context": np.array([[0, 9, 0, 7]])}
    found = predict(type(counts)(**by_hand), cost, prompt_tokens=[7])
    assert found.draft_seconds[0] == pytest.approx(0.55)
    assert found.verify_seconds[0] == pytest.approx(1.1 + 1.3)
    assert found.overhead_seconds[0] == pytest.approx(0.02)
    assert found.plain_seconds[0] == pytest.approx(5)
    assert found.speedup[0] == pytest.approx(5 / 2.97)
    assert found.tokens_per_second[0] == pytest.approx(5 / 2.97)
    assert found.wasted_seconds[0] == pytest.approx(0.55 * 2 / 5)


def test_gaps_between_widths_are_interpolated():
    narrow = flat_cost().modes["fast"]
    fast = PassTimes((1, 5), exactly([[1, 1], [3, 3]]), *_rest(narrow))
    cost = CostModel(random_cost(0).pair, (0, 1000), {"fast": fast}, 3)
    trace = replay(toy_recordings(2, [1.0], levels=1)[0], ConfidenceThreshold(0.0), 2)
    assert trace.rounds["proposed"][0] == 2
    assert round_times(trace, cost).verify[0] == pytest.approx(2)


def test_contexts_beyond_the_measured_ones_are_marked_and_draft_lengths_have_no_price():
    recording = toy_recordings(15, [0.7], 30)[0]
    trace = replay(recording, ConfidenceThreshold(0.0), 8)
    for contexts in ((5, 200), (0, 9)):
        beyond = predict(trace, random_cost(1, contexts=contexts))
        assert beyond.outside and np.isfinite(beyond.seconds)
    with pytest.raises(SpecVizError, match="draft lengths up to 3"):
        predict(trace, random_cost(1, widest=4))
    with pytest.raises(SpecVizError, match="only in fast"):
        predict(trace, flat_cost(), pass_mode="invariant")


def test_a_clamped_context_costs_what_the_nearest_does():
    recording = toy_recordings(15, [0.7], 30)[0]
    trace = replay(recording, ConfidenceThreshold(0.0), 8)
    flat = flat_cost()
    short = CostModel(flat.pair, (0, 2), flat.modes, 3)
    assert predict(trace, short).seconds == pytest.approx(predict(trace, flat).seconds)


def test_cost_models_survive_json():
    cost = random_cost(4)
    again = CostModel.from_json(json.loads(json.dumps(cost.to_json())))
    assert again.to_json() == cost.to_json() and again.pair == cost.pair
    assert again.modes["fast"].widths == cost.modes["fast"].widths


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "newer SpecViz"),
        ({"modes": None}, "damaged"),
        ({"modes": {}}, "pass modes"),
        ({"contexts": [20, 0, 200]}, "context lengths"),
        ({"contexts": [0, 20]}, "shape"),
        ({"pair": {"colour": "red"}}, "damaged"),
    ],
)
def test_damaged_cost_models_get_a_sentence(change, message):
    with pytest.raises(SpecVizError, match=message):
        CostModel.from_json(random_cost(4).to_json() | change)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_positive(bad):
    values = random_cost(4).to_json()
    values["modes"]["fast"]["plain_step"]["median"][1] = bad
    with pytest.raises(SpecVizError, match="not a positive time"):
        CostModel.from_json(values)


def test_timing_takes_quartiles_over_the_last_axis():
    timing = Timing.of([[1, 2, 3, 4, 5], [10, 10, 10, 10, 90]])
    np.testing.assert_array_equal(timing.median, [3, 10])
    np.testing.assert_array_equal(timing.lower, [2, 10])
    np.testing.assert_array_equal(timing.upper, [4, 10])
