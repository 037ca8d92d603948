"""The arena, fitted policies and tuning: what they promise, on small recordings and on the gallery."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from analysis_helpers import flat_cost, random_cost, toy_recordings

from specviz.analysis import CostModel, grid
from specviz.analysis.arena import CONTESTANTS, OPTIMAL_ORACLE, STOP_ORACLE, THRESHOLDS, arena, holm, pairwise_tests
from specviz.analysis.arena_table import arena_table, curve_table, pair_table
from specviz.analysis.bootstrap import Interval
from specviz.analysis.draft_calibration import halves
from specviz.analysis.fitting import Training
from specviz.analysis.ready_settings import ready_settings
from specviz.analysis.tuning import fold_of_each, more_prompts, tune, tuning_table
from specviz.analysis.tuning_report import tuning_html
from specviz.analysis.verdict import advise
from specviz.errors import SpecVizError
from specviz.plots import policy_figures
from specviz.replay import PolicyReplayer
from specviz.replay.contexts import vocabulary_flags
from specviz.ui.gallery import list_items, load_item

FLAGS = vocabulary_flags(lambda token: [b".", b" the", b"s", b" 4", b"\n"][token], 5)


@pytest.fixture(scope="module")
def gallery():
    items = [load_item(name) for name in list_items()]
    recordings = [item.recordings.recordings[0] for item in items]
    tokens = {token: text for item in items for token, text in item.tokens.items()}
    flags = vocabulary_flags(lambda token: tokens.get(token, b""), max(tokens) + 1)
    return recordings, CostModel.from_json(items[0].recordings.cost_model), flags


@pytest.fixture(scope="module")
def judged(gallery):
    recordings, cost, flags = gallery
    return arena(recordings, cost, 8, flags=flags, pass_mode="fast", resamples=200)


def test_the_arena_is_sorted_complete_and_under_the_oracle(judged):
    assert len(judged.entries) == len(CONTESTANTS) + 2 >= 16
    speedups = [entry.speedup.value for entry in judged.entries]
    assert speedups == sorted(speedups, reverse=True)
    best = judged.entry(OPTIMAL_ORACLE)
    assert judged.entries[0] is best and best.captured.value == pytest.approx(1)
    for entry in judged.entries:
        assert (entry.seconds >= best.seconds * (1 - 1e-12)).all(), entry.label
        assert entry.speedup.value == pytest.approx(judged.plain_seconds.sum() / entry.seconds.sum())
        assert entry.speedup.low <= entry.speedup.value <= entry.speedup.high
        assert (entry.curve <= best.speedup.value).all()
        assert 0 <= entry.waste <= 1
    assert judged.entry(STOP_ORACLE).oracle and len(judged.policies) == len(CONTESTANTS)
    table = arena_table(judged)
    assert table["policy"].tolist() == [entry.label for entry in judged.entries]
    assert all(sentence.endswith(".") for sentence in judged.sentences)
    curves, pairs = curve_table(judged), pair_table(judged)
    for label, rows in curves.groupby("policy"):
        assert rows["speedup"].tolist() == judged.entry(label).curve.tolist()
    assert set(curves["policy"]) == {entry.label for entry in judged.policies if entry.knob}
    assert len(pairs) == len(CONTESTANTS) * (len(CONTESTANTS) - 1) / 2 and pairs["p"].is_monotonic_increasing
    assert table["beats"].sum() == pairs["sure"].sum() == len(judged.sure)


def test_the_page_says_truly_whether_deriving_or_learning_the_rule_pays(judged):
    threshold = max(judged.entry(f"Threshold, {fate}").captured.value for fate in ("drop", "keep"))
    pays = max(judged.entry(label).captured.value for label in ("Cost-aware", "Learned")) >= threshold
    assert ("at least as much as" in judged.sentences[1]) == pays
    derived = {("Cost-aware", fate) for fate in THRESHOLDS} | {("Learned", fate) for fate in THRESHOLDS}
    assert pays and ("not sure" in judged.sentences[1]) == (not derived & judged.sure)
    surely = replace(judged, sure=judged.sure | derived)
    assert "not sure" not in surely.sentences[1]


def test_each_half_is_judged_at_the_choice_of_the_other(gallery, judged):
    recordings, cost, _ = gallery
    first, second = halves(recordings)
    entry = judged.entry("Fixed length")
    cells = grid(recordings, cost, [0.0], range(1, 9), pass_mode="fast", resamples=10)
    seconds = cells.seconds[:, 0]
    choices = [1 + int(seconds[half].sum(axis=0).argmin()) for half in (first, second)]
    assert list(entry.chosen) == choices
    np.testing.assert_allclose(entry.seconds[second], seconds[second, choices[0] - 1])
    np.testing.assert_allclose(entry.seconds[first], seconds[first, choices[1] - 1])
    own = seconds[first, choices[0] - 1].sum() + seconds[second, choices[1] - 1].sum()
    assert entry.chosen_speedup == pytest.approx(judged.plain_seconds.sum() / own)
    assert entry.chosen_speedup >= entry.speedup.value


def test_nothing_learnt_depends_on_the_judged_half():
    recordings, cost = toy_recordings(1, [0.4, 0.6, 0.8, 0.9, 0.5, 0.7], 30), random_cost(1)
    first, second = halves(recordings)
    # Other recordings in the second half must leave the first half's teaching, and so the second's policies, alone.
    changed = list(recordings)
    for place, other in zip(second, toy_recordings(99, [0.2] * len(second), 30), strict=True):
        changed[place] = other
    results = []
    for chosen in (recordings, changed):
        replayer = PolicyReplayer(chosen, 5)
        training = Training(replayer.part(first), cost, "fast", FLAGS)
        results.append((training.cost_aware, training.learned, training.context_threshold(0.5)))
    assert results[0] == results[1]


def test_the_arena_without_token_texts_leaves_out_what_needs_them():
    recordings = toy_recordings(2, [0.4, 0.8, 0.6], 20)
    result = arena(recordings, random_cost(2), 4, pass_mode="fast", resamples=20)
    assert result.left_out == ("By context",)
    assert len(result.entries) == len(CONTESTANTS) + 1


@pytest.mark.parametrize(
    ("number", "max_draft", "message"), [(1, None, "at least two"), (2, 99, "cover 1 to 8"), (2, 0, "cover 1 to 8")]
)
def test_what_the_arena_cannot_do_gets_a_sentence(number, max_draft, message):
    with pytest.raises(SpecVizError, match=message):
        arena(toy_recordings(2, [0.5] * number, 20), random_cost(2), max_draft, pass_mode="fast")


def test_drafts_that_are_never_right_or_always_right_can_be_fitted():
    for agreement in (0.0, 1.0):
        result = arena(toy_recordings(2, [agreement] * 2, 20), flat_cost(), 4, flags=FLAGS, resamples=20)
        assert np.isfinite([entry.speedup.value for entry in result.entries]).all()


def test_the_sign_flip_test_equals_all_flips_by_hand():
    source = np.random.default_rng(0)
    seconds = {"a": source.uniform(1, 2, 6), "b": source.uniform(1.2, 2.4, 6)}
    difference = np.log(seconds["a"]) - np.log(seconds["b"])
    means = [abs(np.mean(difference * np.array(signs))) for signs in product((1, -1), repeat=6)]
    expected = np.mean(np.array(means) >= abs(difference.mean()) - 1e-12)
    (((faster, _), chance),) = pairwise_tests(seconds).items()
    assert chance == pytest.approx(expected)
    assert faster == ("a" if difference.mean() < 0 else "b")


@pytest.mark.parametrize("prompts", [8, 30])
def test_the_sign_flip_test_errs_as_often_as_it_says(prompts):
    source = np.random.default_rng(5)
    wrong = 0
    for _ in range(300):
        ease = source.normal(0, 1, prompts)
        seconds = {name: np.exp(ease + source.normal(0, 0.2, prompts)) for name in "ab"}
        wrong += next(iter(pairwise_tests(seconds).values())) <= 0.05
    assert 0.01 <= wrong / 300 <= 0.09
    shifted = {"a": np.exp(source.normal(0, 0.02, prompts)), "b": np.exp(0.3 + source.normal(0, 0.02, prompts))}
    assert pairwise_tests(shifted)["a", "b"] <= 0.05


def test_holm_stops_at_the_first_that_fails():
    tests = {("a", "b"): 0.01, ("a", "c"): 0.02, ("b", "c"): 0.04}
    assert holm(tests) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert holm({**tests, ("a", "c"): 0.03}) == [("a", "b")]


@pytest.fixture(scope="module")
def tuned(gallery):
    recordings, cost, _ = gallery
    return tune(recordings, cost, pass_mode="fast", resamples=200)


def test_tuning_is_cross_validated(gallery, tuned):
    recordings, cost, _ = gallery
    parts = fold_of_each(recordings, 5)
    for name, choice in (("drop", tuned.drop), ("keep", tuned.keep)):
        cells = grid(recordings, cost, on_fail=name, pass_mode="fast", resamples=10)
        flat = cells.seconds.reshape(len(recordings), -1)
        for fold in range(5):
            cell = flat[parts != fold].sum(axis=0).argmin()
            np.testing.assert_allclose(choice.held_out_seconds[parts == fold], flat[parts == fold, cell])
        row, column = np.unravel_index(flat.sum(axis=0).argmin(), cells.speedup.shape)
        assert (choice.threshold, choice.max_draft) == (cells.thresholds[row], cells.max_drafts[column])
        inside = (cells.thresholds >= choice.flat[0]) & (cells.thresholds <= choice.flat[1])
        assert (cells.speedup[inside, column] >= 0.99 * choice.speedup.value - 1e-12).all()
        assert choice.flat[0] <= choice.threshold <= choice.flat[1]
        assert choice.regret >= 0 and choice.held_out.value <= choice.speedup.value
    assert tuned.fixed.threshold == 0 and tuned.fixed.speedup.value <= tuned.drop.speedup.value
    advice = advise(tuned)
    assert advice.recommendation.endswith(".") and advice.recommendation.count(". ") == 0
    assert tuning_table(tuned)["choice"].tolist() == ["drop", "keep", "fixed"]


def test_a_pair_that_never_pays_is_not_recommended():
    recordings = toy_recordings(3, [0.0, 0.1, 0.0], 20)
    result = tune(recordings, flat_cost(draft=2.0, two=2.0), resamples=20)
    assert advise(result).recommendation.startswith("Do not speculate")


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Interval(0.1, 0.05, 0.15), 0),
        (Interval(-0.1, -0.15, -0.05), 0),
        (Interval(0.1, -0.1, 0.3), 30),
        (Interval(-0.1, -0.3, 0.1), 30),
        (Interval(0.001, -0.1, 0.1), None),
        (Interval(0.01, -2.0, 2.0), None),
    ],
)
def test_how_many_more_prompts(difference, expected):
    assert more_prompts(difference, 10) == expected


def test_settings_to_paste(tuned):
    transformers, llama, vllm = ready_settings(advise(tuned))
    compile(transformers.text, "settings", "exec")
    assert f"num_assistant_tokens = {tuned.keep.max_draft}" in transformers.text
    assert f"assistant_confidence_threshold = {tuned.keep.threshold:.2f}" in transformers.text
    assert f"--spec-draft-p-min {tuned.drop.threshold:.2f} --spec-draft-n-max {tuned.drop.max_draft}" in llama.text
    assert f"--draft-p-min {tuned.keep.threshold:.2f} --draft-max {tuned.keep.max_draft}" in llama.text
    assert f'"num_speculative_tokens": {tuned.fixed.max_draft}' in vllm.text
    assert "built-in one" in vllm.note and '"model": "DRAFT"' in vllm.text  # which the gallery was recorded with
    loadable = replace(tuned, pair=replace(tuned.pair, draft="HuggingFaceTB/SmolLM2-135M"))
    assert "DRAFT" not in ready_settings(advise(loadable))[2].note


def test_a_hostile_model_name_stays_text(gallery, tuned):
    from shlex import split

    hostile = replace(
        tuned, pair=replace(tuned.pair, draft="small", draft_source="x'; rm -rf ~ <script>", device="<b>")
    )
    option, value = split(ready_settings(advise(hostile))[2].text)
    assert option == "--speculative-config" and "x'; rm -rf ~ <script>" in value
    page = tuning_html(advise(hostile), "")
    assert "<script>" not in page and "<b>" not in page


def test_figures_can_be_drawn(judged, tuned):
    figures = [policy_figures.arena_figure(judged), policy_figures.pairs_figure(judged)]
    figures += [policy_figures.knob_figure(judged, entry.label) for entry in judged.policies if entry.knob]
    figures += policy_figures.tuning_figures(tuned)
    for figure in figures:
        assert figure.layout.title.text and "odelled" in figure.layout.title.subtitle.text
        figure.to_json()


def test_the_level_without_a_threshold_is_named_in_the_legend(tuned):
    """A label on the line is crossed by `keep`, whose curve ends on that level."""
    figure = policy_figures.tuning_figures(tuned)[0]
    (level,) = [line for line in figure.data if line.name == f"no threshold, γ = {tuned.fixed.max_draft}"]
    assert set(level.y) == {tuned.fixed.speedup.value} and level.showlegend is not False
    assert not any("no threshold" in note.text for note in figure.layout.annotations)
