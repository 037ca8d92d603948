"""One recommendation, in app, command line and report alike; withdrawn where a measurement contradicts it."""

import re
from dataclasses import replace

import numpy as np
import pytest
import streamlit as st
import tiny_models
from analysis_helpers import flat_cost, toy_recordings
from sample_recordings import sample_cost, sample_recording, write_sample_gallery
from streamlit.testing.v1 import AppTest
from test_app_pages import ROOT

from specviz import cli
from specviz.analysis import grid, measured_point, speedup_curve
from specviz.analysis.bootstrap import Interval
from specviz.analysis.checks import Check, check
from specviz.analysis.comparison import MeasuredPoint
from specviz.analysis.ready_settings import draft_to_name, ready_settings
from specviz.analysis.tuning import Tuning, tune
from specviz.analysis.tuning_report import tuning_html
from specviz.analysis.verdict import DO_NOT, SPECULATE, WITHDRAWN, advise, setting_words
from specviz.trace import PairInfo, RecordingSet, read_recordings, write_recordings
from specviz.ui import measuring
from specviz.ui.library import ShownSet, gallery_recording

PASTE = ("num_assistant_tokens", "spec-draft", "num_speculative_tokens", "Ready to paste")


def tuned(agreements, cost=None, tokens=60):
    recordings = toy_recordings(3, agreements, tokens)
    return tune(recordings, cost or flat_cost(), resamples=200)


@pytest.fixture(scope="module")
def paying():
    return tuned([0.8, 0.9, 0.85, 0.9, 0.8, 0.9])


def test_a_setting_that_surely_pays_is_recommended_with_settings_to_paste(paying):
    advice = advise(paying)
    assert advice.answer == SPECULATE and advice.recommendation.startswith("Use ")
    assert paying.best.held_out.low > 1 and len(ready_settings(advice)) == 3
    assert all(word in tuning_html(advice, "") for word in PASTE[:3])


def test_where_nothing_is_accepted_the_verdict_is_not_to_speculate_whatever_the_prices(paying, monkeypatch):
    recordings = toy_recordings(3, [0.0] * 4, 40)
    wrong = [replace(one, draft_token=(one.output_ids + 1).astype(np.int32)) for one in recordings]
    assert tune(wrong, flat_cost(), resamples=20).most_tokens_per_pass == 1
    monkeypatch.setattr(Tuning, "most_tokens_per_pass", 1.004)
    advice = advise(paying)  # whose prices say that it pays
    assert advice.answer == DO_NOT and "accepts hardly any token" in advice.recommendation
    assert ready_settings(advice) == () and not any(word in tuning_html(advice, "") for word in PASTE)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(0.7, 0.6, 0.8), "even the best setting is slower, expect 0.70×"),
        (Interval(1.03, 0.95, 1.1), "may be no faster than plain decoding, expect 1.03×"),
        (Interval(0.99, 0.9, 1.2), "even the best setting is slower"),
        (Interval(float("nan"), float("nan"), float("nan")), "even the best setting is slower"),
    ],
)
def test_a_speedup_whose_interval_is_not_above_1_is_no_reason_to_speculate(paying, interval, words):
    doubtful = replace(
        paying, **{name: replace(getattr(paying, name), held_out=interval) for name in ("drop", "keep", "fixed")}
    )
    advice = advise(doubtful)
    assert advice.answer == DO_NOT and words in advice.recommendation
    assert advice.recommendation.startswith("Do not speculate") and ready_settings(advice) == ()


def test_a_program_gets_no_settings_of_a_kind_that_does_not_surely_pay(paying):
    doubtful = replace(paying, fixed=replace(paying.fixed, held_out=Interval(1.05, 0.9, 1.2)))
    advice = advise(doubtful)
    transformers, llama, vllm = ready_settings(advice)
    assert advice.answer == SPECULATE and transformers.text and "# older versions" in llama.text
    assert vllm.text == "" and "nothing to paste" in vllm.note and "(1.05×)" in vllm.note
    assert "num_speculative_tokens" not in tuning_html(advice, "") and "nothing to paste" in tuning_html(advice, "")
    no_keep = replace(paying, keep=replace(paying.keep, held_out=Interval(0.9, 0.8, 1.0)))
    transformers, llama, _ = ready_settings(advise(no_keep))
    assert transformers.text == "" and "older versions:" not in llama.text


def test_a_single_prompt_gets_advice_that_says_so():
    advice = advise(tuned([0.9]))
    assert advice.answer == SPECULATE and "on this one prompt" in advice.recommendation
    assert advice.sentences == (
        "One prompt says nothing about others; record more to learn what to expect of new prompts.",
    )
    assert "nan" not in advice.text


def test_a_measured_point_that_contradicts_the_model_withdraws_the_advice(paying):
    point = MeasuredPoint(0.0, 3, Interval(0.52, 0.50, 0.54), 6)
    advice = advise(paying, [Check(point, 2.42)])
    assert advice.answer == WITHDRAWN and ready_settings(advice) == ()
    assert "Measured 0.52× (95% interval 0.50 to 0.54), predicted 2.42×" in advice.recommendation
    assert "do not rely on" in advice.recommendation and "measure the costs again" in advice.recommendation
    assert "Use " not in advice.text
    assert not any(word in tuning_html(advice, "") for word in PASTE)
    best = paying.best
    agreeing = Check(MeasuredPoint(best.threshold, best.max_draft, Interval(1.5, 1.3, 1.7), 6), 1.52)
    confirmed = advise(paying, [agreeing])
    assert confirmed.answer == SPECULATE and "Measured 1.50×" in confirmed.text and "agrees" in confirmed.text


@pytest.mark.parametrize(
    ("low", "high", "predicted", "contradicts"),
    [
        (0.9, 1.1, 1.05, False),
        (0.9, 1.1, 1.2, True),
        (0.9, 1.1, 0.8, True),
        (0.999, 1.001, 1.03, False),  # as near as predictions have to be
        (float("nan"), float("nan"), 1.2, True),
    ],
)
def test_what_contradicts(low, high, predicted, contradicts):
    assert Check(MeasuredPoint(0.5, 2, Interval(1.0, low, high), 3), predicted).contradicts == contradicts


def test_a_check_predicts_for_the_prompts_that_were_measured_at_their_setting():
    recordings, cost = toy_recordings(3, [0.8, 0.9, 0.1], 40), flat_cost()
    point = MeasuredPoint(0.3, 4, Interval(1.0, 0.9, 1.1), 2, "keep")
    expected = grid(recordings[:2], cost, [0.3], [4], on_fail="keep").speedup[0, 0]
    assert check(point, recordings, cost).predicted == pytest.approx(expected)


def test_a_measured_point_has_an_interval_also_on_one_prompt():
    point = measured_point(0.3, 5, [[2.0], [2.2], [2.1]], [[1.0], [1.0], [1.1]], "keep")
    assert point.prompts == 1 and point.on_fail == "keep"
    assert point.speedup.value == pytest.approx(6.3 / 3.1)
    assert point.speedup.low < point.speedup.value < point.speedup.high
    cut_short = measured_point(0.3, 5, [[2.0, 4.0], [2.0]], [[1.0, 2.0], [1.0]])
    assert cut_short.prompts == 2 and cut_short.speedup.value == pytest.approx(2)


def test_everything_that_holds_something_fixed_says_so():
    recordings = toy_recordings(3, [0.8, 0.9], 40)
    curve = speedup_curve(recordings, flat_cost(), 5, on_fail="keep", resamples=20)
    assert curve.sentence.startswith("With γ = 5 and keep held fixed: best at threshold")
    assert curve.best.speedup.value == curve.speedup.max()
    cells = grid(recordings, flat_cost(), resamples=20)
    assert cells.sentence.startswith("With drop held fixed: best at threshold")


def test_sweep_tune_and_arena_print_one_recommendation(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("specviz.cli_policies._flags", lambda *_: None)
    path = tmp_path / "set.parquet"
    recordings, cost = toy_recordings(3, [0.8, 0.9, 0.85, 0.9], 40), flat_cost()
    write_recordings(RecordingSet(recordings, cost.to_json()), path)
    expected = advise(tune(recordings, cost)).recommendation
    report = tmp_path / "r.html"
    for arguments in (["sweep"], ["sweep", "--keep"], ["tune", "--html", str(report)], ["arena", "-g", "4"]):
        assert cli.main([arguments[0], str(path), *arguments[1:]]) == 0
        assert expected in capsys.readouterr().out.replace("\n", " "), arguments
    assert expected in report.read_text("utf-8")


def test_a_command_prints_no_settings_below_do_not_speculate(tmp_path, capsys):
    path, report = tmp_path / "set.parquet", tmp_path / "r.html"
    recordings = toy_recordings(3, [0.0, 0.1, 0.0, 0.1], 40)
    write_recordings(RecordingSet(recordings, flat_cost(draft=0.5, two=0.5).to_json()), path)
    for command in ("tune", "sweep"):
        assert cli.main([command, str(path), *(["--html", str(report)] if command == "tune" else [])]) == 0
        printed = capsys.readouterr().out
        assert "Do not speculate" in printed and not any(word in printed for word in PASTE)
    assert not any(word in report.read_text("utf-8") for word in PASTE)


def test_tune_measures_its_best_setting_and_compares_it_with_the_prediction(tmp_path, capsys):
    target, draft = tiny_models.save_pair(tmp_path, "llama")
    prompts, out = tmp_path / "p.txt", tmp_path / "set.parquet"
    prompts.write_text("the cat\nthe dog sat\nan apple\n")
    pair = ["--target", str(target), "--draft", str(draft)]
    record = ["record", *pair, "--prompts", str(prompts), "--out", str(out), "-n", "12", "-g", "4"]
    assert cli.main([*record, "--no-cost-model"]) == 0
    recordings = read_recordings(out)
    cost = replace(flat_cost(verify=100.0, draft=40.0, two=40.0, plain=100.0), pair=recordings.pair)  # no such machine
    write_recordings(recordings.with_cost_model(cost.to_json()), out)
    capsys.readouterr()
    assert cli.main(["tune", str(out), *pair, "--measure"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Measured \d+\.\d\d× \(95% interval .*predicted \d+\.\d\d× at threshold .* on 3 prompts", printed)
    assert recordings.pair.draft_source == str(draft)
    status = cli.main(["tune", str(out), "--target", str(target), "--draft", str(target), "--measure"])
    assert status == 2 and "take both of the same pair" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("pair", "named", "filled_in"),
    [
        (PairInfo(draft="draft", draft_source="/models/my pair/draft"), "/models/my pair/draft", False),
        (PairInfo(draft="org/small", draft_source="org/small@main"), "org/small@main", False),
        (PairInfo(draft="org/small"), "org/small", False),
        (PairInfo(draft="draft"), "DRAFT", True),
        (PairInfo(draft="SpecViz built-in draft", draft_source="builtin-draft"), "DRAFT", True),
    ],
)
def test_other_programs_get_what_the_user_loaded_the_draft_by(paying, pair, named, filled_in):
    source, note = draft_to_name(pair)
    assert source == named and ("in place of DRAFT" in note) == filled_in
    vllm = ready_settings(advise(replace(paying, pair=pair)))[2]
    assert f'"model": "{named}"' in vllm.text and vllm.note.endswith(note)


# --- the pages ------------------------------------------------------------------------------------------------------


@pytest.fixture
def gallery(tmp_path, monkeypatch):
    """A gallery on whose whole speculation pays, by the cost model."""
    write_sample_gallery(tmp_path, tokens=48)
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    monkeypatch.setattr("specviz.analysis.cost_model.CostModel.from_json", lambda values: cheap_cost())
    st.cache_resource.clear()
    yield ShownSet("", tuple(gallery_recording(name) for name in ("ocean", "soup", "verse")))
    st.cache_resource.clear()


def cheap_cost():
    """Times at which speculation surely pays: a draft step takes next to nothing."""
    times = sample_cost().modes["invariant"]

    def always(timing, seconds):
        return replace(timing, **{name: np.full_like(values, seconds) for name, values in vars(timing).items()})

    cheap = replace(times, target_pass=always(times.target_pass, 0.055), draft_step=always(times.draft_step, 0.001))
    return replace(sample_cost(), modes={"invariant": cheap})


def open_page(name):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    return app.switch_page(f"pages/{name}.py").run() if name != "explore" else app


def words(app):
    return " ".join(text.value for text in app.text)


def test_every_page_shows_the_recommendation_of_tuning(gallery):
    expected = advise(tune(gallery.recordings, cheap_cost())).recommendation
    assert expected.startswith("Use ")
    for page, key in (("tuning", "tuning-set"), ("arena", "arena-set"), ("thresholds", "grid-set")):
        app = open_page(page)
        assert app.selectbox(key=key).value == "gallery"
        assert expected in words(app) and not app.exception, page
        assert "held" in words(app) or page == "tuning"
    single = advise(tune(gallery.recordings[:1], cheap_cost()))
    app = open_page("explore")
    app.session_state["live-panel"] = {"tau": 0.9, "gamma": 1, "fate": "drop", "drawn": [1, "drop"]}
    app.run()
    assert single.recommendation in words(app)
    assert setting_words(single.choice) in app.button(key="explore-show-best").label


def test_the_button_opens_the_recommended_setting(gallery, monkeypatch):
    drawn = []
    monkeypatch.setattr("specviz.ui.live_panel.live_panel", lambda **given: drawn.append(given))
    choice = advise(tune(gallery.recordings[:1], cheap_cost())).choice
    app = open_page("explore")
    app.session_state["live-panel"] = {"tau": 0.9, "gamma": 1, "fate": "drop", "drawn": [1, "drop"]}
    app.run()
    app.button(key="explore-show-best").click().run()
    assert not app.exception and drawn[-1]["tau"] == choice.threshold and drawn[-1]["key"] != drawn[0]["key"]
    shown = gallery.members[0]
    assert drawn[-1]["rounds"] == shown.packed_rounds(choice.max_draft, choice.on_fail)
    app = open_page("thresholds")
    app.multiselect(key="compared-sets").set_value(["gallery:ocean"]).run()
    app.button(key="thresholds-show-best").click().run()
    assert not app.exception
    assert app.slider(key="compared-gamma").value == choice.max_draft
    assert app.segmented_control(key="on-fail").value == choice.on_fail
    assert f"With γ = {choice.max_draft} and {choice.on_fail} held fixed" in words(app)


def test_the_fate_of_the_token_that_fails_is_in_link_curves_and_downloads(gallery):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["on_fail"] = "keep"
    app.run()
    assert any("and keep" in head.value for head in app.subheader)
    for page, key in (("thresholds", "on-fail"), ("data", "data-on-fail"), ("race", "race-on-fail")):
        app.switch_page(f"pages/{page}.py").run()
        assert not app.exception and app.segmented_control(key=key).value == "keep"
    assert app.query_params["on_fail"] in ("keep", ["keep"])
    app.segmented_control(key="race-on-fail").set_value("drop").run()
    app.switch_page("pages/data.py").run()
    assert app.segmented_control(key="data-on-fail").value == "drop"


@pytest.mark.parametrize("page", ["tuning", "thresholds"])
def test_a_measurement_is_drawn_and_told_as_soon_as_its_job_is_over_on_every_page(gallery, monkeypatch, page):
    class OverJob:
        id, over, state, message, failures, shown, members = "m", True, "finished", "", {}, None, ()
        notes = ()
        point = MeasuredPoint(0.0, 3, Interval(0.52, 0.50, 0.54), 3)

    class Shop:
        def job(self, job_id):
            return OverJob if job_id == "m" else None

        def memory_bytes(self):
            return 0

    for module in ("measuring", "link_jobs", "watching", "costs"):
        monkeypatch.setattr(f"specviz.ui.{module}.workshop", Shop)
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    app.session_state[measuring.JOB] = "m"  # the page runs for the first time since the job ended
    app.session_state[measuring.OF_JOB] = gallery.recordings
    app.switch_page(f"pages/{page}.py").run()
    if page == "thresholds":
        app.multiselect(key="compared-sets").set_value(["gallery"]).run()
        app.slider(key="compared-gamma").set_value(3).run()
    assert not app.exception
    assert "Measured 0.52×" in words(app) and "predicted" in words(app)
    assert "do not rely on" in words(app) and "Use threshold" not in words(app)
    assert not app.code
    app.switch_page("pages/thresholds.py" if page == "tuning" else "pages/tuning.py").run()
    assert "do not rely on" in words(app) and "Use threshold" not in words(app)


def test_a_point_belongs_to_the_recordings_that_were_measured_and_the_latest_counts(gallery):
    first = MeasuredPoint(0.4, 3, Interval(1.2, 1.1, 1.3), 3)
    second = replace(first, speedup=Interval(1.1, 1.0, 1.2))
    same_again = [replace(one) for one in gallery.recordings]
    st.session_state[measuring.POINTS] = {
        "a": (same_again, first),
        "b": (gallery.recordings, second),
        "c": (gallery.recordings[:2], first),
        "d": ([sample_recording(20)], first),
    }
    try:
        assert measuring.measured_points(gallery) == [second]
    finally:
        st.session_state.pop(measuring.POINTS)
