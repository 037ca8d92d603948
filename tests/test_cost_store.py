"""Costs that are kept: measured once for app and command line, measured again when they cannot be trusted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny_models
from analysis_helpers import PAIR, random_cost
from conftest import GALLERY, PRECISIONS
from engine_helpers import loaded_pair
from streamlit.testing.v1 import AppTest

from specviz import cli
from specviz.analysis.calibrated import MachineBusy
from specviz.analysis.cost_store import CostKey, load_cost, save_cost
from specviz.engine import calibration
from specviz.engine.engine import Engine
from specviz.errors import SpecVizError
from specviz.measure import costs
from specviz.trace import read_recordings

KEY = CostKey(PAIR, "abc", "fast")
COST = replace(random_cost(1), measured_at="2026-01-02T03:04:05+00:00", load_average=0.5, processors=2)


@pytest.fixture(scope="module")
def engine():
    return Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")


@pytest.fixture
def measurements(monkeypatch):
    """Every measurement is a short one, and counted."""
    done = []

    def few(engines, *, contexts, max_draft, stopped, progress):
        done.append(tuple(contexts))
        return calibration.calibrate_together(
            engines, contexts=contexts, max_draft=max_draft, repeats=2, stopped=stopped, progress=progress
        )

    monkeypatch.setattr(costs, "calibrate_together", few)
    monkeypatch.setattr(calibration, "load_average", lambda: 0.1)
    return done


@pytest.mark.parametrize(
    ("measured_at", "words"),
    [
        ("2026-01-02T03:04:05+00:00", ", 2026-01-02 03:04 UTC."),
        ("2026-01-02", ", 2026-01-02."),  # nobody noted the time of day
        ("", ", before SpecViz kept the date."),
    ],
)
def test_the_origin_says_as_much_of_the_date_as_is_known(measured_at, words):
    assert replace(random_cost(1), measured_at=measured_at).origin.endswith(words)


def test_whatever_the_app_ships_with_says_when_it_was_measured():
    shipped = [*GALLERY.glob("*.parquet"), *PRECISIONS.glob("*.parquet")]
    assert len(shipped) >= 13
    for path in shipped:
        assert read_recordings(path).cost_model["measured_at"].startswith("2026-"), path


def test_a_cost_model_is_read_as_it_was_kept():
    assert load_cost(KEY) is None
    save_cost(KEY, COST)
    assert load_cost(KEY).to_json() == COST.to_json()
    assert not list(KEY.path.parent.glob(".*")), "nothing unfinished is left"


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, pair=replace(PAIR, device="CPU, test, 4 threads")),
        replace(KEY, pair=replace(PAIR, target_revision="2")),
        replace(KEY, pair=replace(PAIR, draft_precision="fp32")),
        replace(KEY, pair=replace(PAIR, versions={"torch": "9"})),
        replace(KEY, architecture="abd"),
        replace(KEY, pass_mode="invariant", width=9),
        replace(KEY, compiled=True),
    ],
)
def test_whatever_changes_times_has_costs_of_its_own(other):
    save_cost(KEY, COST)
    assert load_cost(other) is None


def test_names_from_files_make_no_path():
    key = replace(KEY, pair=replace(PAIR, target="../../etc/x\0\n" + "y" * 400, draft="<b>"))
    save_cost(key, COST)
    assert key.path.parent == KEY.path.parent and len(key.path.name) < 120 and load_cost(key) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"key": {}, "cost": {}}',
        "[" * 100_000,
        json.dumps({"key": KEY.to_json(), "cost": {"version": 1}}),
    ],
)
def test_damaged_costs_are_a_sentence(text):
    save_cost(KEY, COST)
    KEY.path.write_text(text)
    with pytest.raises(SpecVizError, match="are damaged, so they are measured again"):
        load_cost(KEY)


def test_costs_are_measured_once_for_what_they_cover(engine, measurements):
    assert costs.kept_costs(engine, (8, 40), 4) is None
    cost = costs.measure_costs(engine, (8, 40), 4)
    assert cost.measured_at.endswith("+00:00") and cost.load_average == 0.1 and cost.processors
    assert cost.pair.device in cost.origin and cost.measured_at[:10] in cost.origin
    for span, longest in (((8, 40), 4), ((20, 30), 2)):
        assert costs.kept_costs(engine, span, longest).to_json() == cost.to_json()
    for span, longest in (((4, 40), 4), ((8, 41), 4), ((8, 40), 5)):
        assert costs.kept_costs(engine, span, longest) is None
    wider = costs.measure_costs(engine, (20, 60), 2)
    assert (wider.contexts[0], wider.contexts[-1], wider.mode().longest_draft) == (8, 60, 4), "nothing is lost"
    assert len(measurements) == 2


def test_a_text_up_to_the_end_of_the_context_is_covered_as_far_as_can_be_measured(engine, measurements):
    costs.measure_costs(engine, (4, engine.max_context), 2)
    assert costs.kept_costs(engine, (4, engine.max_context), 2) is not None


def test_costs_of_a_busy_machine_are_measured_again(engine, measurements):
    cost = costs.measure_costs(engine, (8, 40), 4)
    save_cost(costs.cost_key(engine), replace(cost, load_average=cost.processors * 2.0))
    said = []
    assert costs.kept_costs(engine, (8, 40), 4, say=said.append) is None
    assert said == ["The machine was busy when the kept pass times were measured, so they are measured again."]
    assert "while the machine was busy (load average" in load_cost(costs.cost_key(engine)).origin
    costs.measure_costs(engine, (8, 40), 4)
    assert costs.kept_costs(engine, (8, 40), 4) is not None


def test_damaged_costs_are_measured_again_and_replaced(engine, measurements):
    costs.measure_costs(engine, (8, 40), 4)
    costs.cost_key(engine).path.write_text("{")
    said = []
    assert costs.kept_costs(engine, (8, 40), 4, say=said.append) is None
    assert len(said) == 1 and "are damaged" in said[0]
    costs.measure_costs(engine, (8, 40), 4)
    assert costs.kept_costs(engine, (8, 40), 4) is not None


def test_costs_that_cannot_be_kept_are_used_all_the_same(engine, measurements, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIZ_DATA", str(tmp_path / "file"))
    said = []
    assert costs.measure_costs(engine, (8, 40), 4, say=said.append).contexts == (8, 24, 40)
    assert len(said) == 1 and "Cannot write" in said[0]


def test_two_folders_of_one_name_are_two_pairs(engine):
    other = Engine(loaded_pair(tiny_models.tiny_pair("qwen2")), pass_mode="fast")
    assert other.pair_info() == engine.pair_info()
    assert costs.cost_key(other) != costs.cost_key(engine)


def shuffled(samples, factors):
    """Samples in which pass n of those of each width takes `factors[n]` times as long."""
    target = samples.target_pass * np.asarray(factors)[:, None, None]
    return replace(samples, target_pass=target)


@pytest.mark.parametrize("contradictory", [1, 2, 5])
def test_contradictory_times_are_measured_again_and_then_refused(engine, measurements, monkeypatch, contradictory):
    stages, measure = [], costs.calibrate_together

    def spoilt(engines, **arguments):
        (samples,) = measure(engines, **arguments)
        even = np.ones_like(samples.target_pass)
        samples = replace(samples, target_pass=even, plain_step=even[0], draft_step=np.ones((2, *even.shape[1:])))
        return [shuffled(samples, (1, 3, 1)) if len(measurements) <= contradictory else samples]

    monkeypatch.setattr(costs, "calibrate_together", spoilt)

    def measured():
        return costs.measure_costs(engine, (8, 40), 2, progress=lambda stage, share: stages.append(stage))

    if contradictory < costs.TRIES:
        assert measured().mode().longest_draft == 2
    else:
        with pytest.raises(MachineBusy, match="The machine was busy while the passes were timed: a pass over 2 tokens"):
            measured()
        assert costs.kept_costs(engine, (8, 40), 2) is None
    assert len(measurements) == min(costs.TRIES, contradictory + 1)
    assert stages.count("The machine was busy; measuring passes again") == len(measurements) - 1


def test_all_passes_take_turns_in_every_repetition(monkeypatch):
    """Within a repetition everything is measured once, plain and speculative rounds among it, in a changing order."""
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    turns = []

    def noting(kind):
        method = getattr(calibration._Bench, kind)

        def run(bench, *arguments):
            turns.append((kind, *arguments))
            return method(bench, *arguments)

        return run

    kinds = ("_time_target", "_time_draft", "_time_plain", "_time_round")
    for kind in kinds:
        monkeypatch.setattr(calibration._Bench, kind, noting(kind))
    samples = calibration.calibrate(engine, contexts=(4, 20), max_draft=2, repeats=3)
    each = 3 * 2 + 2 * 2 + 2 + 2  # widths and draft steps and plain steps at two contexts; both kinds of round
    repetitions = [turns[start : start + each] for start in range(0, len(turns), each)]
    assert len(repetitions) == 4, "the first one warms up"
    for repeat, repetition in enumerate(repetitions, start=-1):
        assert {turn[-1] for turn in repetition} == {repeat}
        assert len({turn[:-1] for turn in repetition}) == each
    assert len({tuple(turn[:-1] for turn in repetition) for repetition in repetitions}) == 4
    assert samples.round_overhead.shape == (3,)


def test_app_and_command_line_share_what_was_measured(measurements, tmp_path, capsys):
    from specviz.ui.requests import PairChoice
    from specviz.ui.running import load_running_pair

    target, draft = tiny_models.save_pair(tmp_path / "pair", "llama")
    (tmp_path / "prompts.txt").write_text("the cat\nthe dog sat\n")
    pair = ["--target", str(target), "--draft", str(draft)]

    def record(name, *further):
        arguments = ["record", "--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / name), "-n", "12"]
        status = cli.main([*arguments, *pair, *further])
        return status, capsys.readouterr().err, read_recordings(tmp_path / name)

    status, said, first = record("1.parquet")
    number = len(measurements)  # more than one where the machine was busy
    assert status == 0 and number
    status, said, second = record("2.parquet")
    assert (status, len(measurements)) == (0, number)
    assert "They are taken again; --measure-costs-again replaces them." in " ".join(said.split())
    assert second.cost_model == first.cost_model
    running = load_running_pair(PairChoice(str(target), str(draft)), lambda *report: None)
    kept = running.kept_costs(first.recordings, print)
    assert kept.to_json() == first.cost_model
    status, said, third = record("3.parquet", "--measure-costs-again")
    assert status == 0 and len(measurements) > number and third.cost_model != first.cost_model
    assert running.kept_costs(first.recordings, print).to_json() == third.cost_model
    for command in ("sweep", "tune", "arena"):
        assert cli.main([command, str(tmp_path / "3.parquet")]) == 0
        assert kept.pair.device in capsys.readouterr().out
    assert cli.main(["tune", str(tmp_path / "3.parquet"), "--measure-costs-again"]) == 2
    assert "goes with recording" in capsys.readouterr().err


def test_a_machine_that_stays_busy_costs_no_recording(measurements, monkeypatch, tmp_path, capsys):
    target, draft = tiny_models.save_pair(tmp_path / "pair", "llama")
    (tmp_path / "prompts.txt").write_text("the cat\n")
    arguments = ["record", "--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "s.parquet"), "-n", "8"]
    arguments += ["--target", str(target), "--draft", str(draft)]

    def busy(*_, **__):
        raise MachineBusy(
            "The machine was busy while the passes were timed: …; close other programs and measure again."
        )

    with monkeypatch.context() as patch:
        patch.setattr(costs, "steady_samples", busy)
        assert cli.main(arguments) == 2
    assert "The recordings are kept; the same command continues there." in " ".join(capsys.readouterr().err.split())
    assert cli.main(arguments) == 0 and read_recordings(tmp_path / "s.parquet").cost_model


def caption_page():
    import streamlit as st
    from analysis_helpers import random_cost

    from specviz.ui.costs import cost_caption
    from specviz.ui.requests import PairChoice

    cost = random_cost(1)
    fast = type(cost)(
        cost.pair, cost.contexts, {"fast": cost.modes["fast"]}, cost.repeats, "2026-01-02T03:04:05+00:00", 0.5, 2
    )
    cost_caption(fast, PairChoice("a", "b") if st.session_state.get("known", True) else None, "here")


def test_the_caption_says_date_and_device_and_measures_again(monkeypatch):
    asked = []

    class Shop:
        def job(self, job_id):
            return None

        def submit(self, request):
            asked.append(request)
            return type("Job", (), {"id": "j"})

    monkeypatch.setattr("specviz.ui.costs.workshop", Shop)
    app = AppTest.from_function(caption_page).run()
    assert [caption.value for caption in app.caption] == ["Pass times measured on CPU, test, 2026-01-02 03:04 UTC."]
    app.button(key="here-measure-costs").click().run()
    (request,) = asked
    assert (request.pair.target, request.pass_mode, request.span, request.max_draft) == ("a", "fast", (0, 200), 16)
    unknown = AppTest.from_function(caption_page)
    unknown.session_state["known"] = False
    assert not unknown.run().button


def test_what_is_measured_again_prices_what_is_shown_and_what_is_kept(tmp_path, measurements):
    """A run with old times in the project folder; then the costs are measured again."""
    import time
    from dataclasses import asdict

    from specviz.trace import RecordingSet, kept
    from specviz.ui.requests import CostRequest, PairChoice, RunRequest
    from specviz.ui.running import load_running_pair
    from specviz.ui.workshop import FINISHED, Workshop

    target, draft = tiny_models.save_pair(tmp_path / "pair", "llama")
    choice = PairChoice(str(target), str(draft))
    shop = Workshop(load_running_pair)

    def finished(request):
        job = shop.submit(request)
        deadline = time.monotonic() + 60
        while not job.over and time.monotonic() < deadline:
            time.sleep(0.01)
        assert job.state == FINISHED, job.message
        return job

    run = finished(RunRequest(choice, "the cat", 12, 4))
    first = kept.read_kept(run.kept)
    assert first.cost_model and len(measurements) == 1
    again = finished(RunRequest(choice, "the dog", 10, 4))
    assert kept.read_kept(again.kept).cost_model == first.cost_model and len(measurements) == 1
    other = RecordingSet(first.recordings, first.cost_model)
    kept.keep(other, "upload-x.parquet", title="An upload", origin=kept.UPLOAD)
    cost = finished(CostRequest(choice, "fast", (4, 30), 16)).cost
    assert len(measurements) == 2 and cost.to_json() != first.cost_model
    for name in (run.kept, again.kept):
        assert kept.read_kept(name).cost_model == json.loads(json.dumps(cost.to_json()))
        assert kept.kept_sets()[name].sources == asdict(choice)
    assert kept.read_kept("upload-x.parquet").cost_model == first.cost_model, "nobody knows which models these were"
