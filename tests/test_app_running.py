"""What the workshop's worker does with a real, tiny pair."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from tiny_models import save_pair

from specviz.analysis import predict
from specviz.analysis.prompts import Prompt
from specviz.errors import SpecVizError
from specviz.models.builtin import prepare_target
from specviz.replay import ConfidenceThreshold, Sampling, replay
from specviz.replay.generation import LogitRequests
from specviz.replay.rules import TargetSampleMatch
from specviz.trace import used_tokens
from specviz.ui.requests import Drawing, MeasureRequest, PairChoice, RaceRequest, RunRequest, SweepRequest
from specviz.ui.running import load_running_pair
from specviz.ui.shown import Shown
from specviz.ui.token_texts import display_text

ROOT = Path(__file__).parent.parent
TOKENS = 24


@pytest.fixture(scope="module")
def choice(tmp_path_factory):
    target, draft = save_pair(tmp_path_factory.mktemp("pair"), chat=True)
    return PairChoice(str(target), str(draft), "fp32", "fp32")


@pytest.fixture(scope="module")
def pair(choice):
    return load_running_pair(choice, lambda *report: None)


def go_on():
    return False


def quiet(*report):
    pass


def test_a_run_tells_its_rounds_and_records(pair, choice):
    rounds = []
    recording, tokens = pair.record(RunRequest(choice, "the cat =1+1", TOKENS, 8), rounds.append, go_on, quiet)
    assert recording.prompt == "the cat =1+1"
    assert set(used_tokens([recording])) <= set(tokens)
    # The rounds told while running are those that the recording replays at the threshold it was made with.
    trace = replay(recording, ConfidenceThreshold(0.5), 8)
    told = [status for told in rounds for _, status in [*told["drafted"], *([told["own"]] if told["own"] else [])]]
    assert told == trace.steps["status"].tolist()
    texts = [text for told in rounds for text, _ in [*told["drafted"], *([told["own"]] if told["own"] else [])]]
    assert texts == [display_text(tokens[token]) for token in trace.steps["token"].tolist()]


def test_the_memory_told_is_that_of_all_weights(pair, choice):
    files = [path for source in (choice.target, choice.draft) for path in Path(source).glob("*.safetensors")]
    on_disk = sum(path.stat().st_size for path in files)
    assert pair.memory_bytes == pytest.approx(on_disk, rel=0.1)


def test_costs_price_the_run(pair, choice):
    recording, _ = pair.record(RunRequest(choice, "a dog", TOKENS, 8), lambda told: None, go_on, quiet)
    assert pair.kept_costs([recording], quiet) is None
    cost = pair.measure_costs(RunRequest(choice, "a dog", TOKENS, 8), [recording], go_on, quiet, quiet)
    assert predict(replay(recording, ConfidenceThreshold(0.5), 4), cost).speedup > 0


def test_a_race_times_the_same_text_twice(pair, choice):
    race = pair.race(RaceRequest(choice, "the mat", TOKENS, 0.5, 4), go_on)
    assert race.same_output
    assert len(race.tokens) == race.plain[-1][1] == race.speculative[-1][1]
    assert [committed for _, committed in race.plain] == list(range(1, len(race.tokens) + 1))
    for lane in (race.plain, race.speculative):
        seconds = [moment[0] for moment in lane]
        assert seconds == sorted(seconds)


def test_a_sweep_reports_the_bad_prompt_and_keeps_the_rest(pair, choice, tmp_path, monkeypatch):
    monkeypatch.setattr("specviz.ui.running.cache_folder", lambda: tmp_path)
    prompts = (Prompt("1", "", "the cat"), Prompt("2", "", "x" * 2000), Prompt("3", "", "a dog"))
    shares = []
    recordings, tokens, failures = pair.sweep(
        SweepRequest(choice, prompts, 12, 4), go_on, lambda stage, share: shares.append(share)
    )
    assert [recording.prompt for recording in recordings] == ["the cat", "a dog"]
    assert list(failures) == ["2"]
    assert tokens
    assert shares[-1] == 1


def test_a_sweep_draws_as_the_form_says(pair, choice, tmp_path, monkeypatch):
    monkeypatch.setattr("specviz.ui.running.cache_folder", lambda: tmp_path)
    drawing = Drawing(Sampling(0.9, 30, repetition_penalty=1.0), TargetSampleMatch(), 7, LogitRequests(), ("stop",))
    prompts = (Prompt("1", "", "the cat"),)
    (recording,), tokens, _ = pair.sweep(SweepRequest(choice, prompts, 12, 4, drawing), go_on, quiet)
    assert Drawing.of(recording) == drawing
    assert "temperature 0.9 under target_sample_match, seed 7" in Shown("s", "", recording, None, tokens).about()
    (greedy,), *_ = pair.sweep(SweepRequest(choice, prompts, 12, 4), go_on, quiet)
    assert greedy.output_ids.tolist() != recording.output_ids.tolist()
    assert "temperature" not in Shown("s", "", greedy, None, tokens).about()


def test_a_quantised_run_without_bitsandbytes_is_a_sentence(choice, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(SpecVizError, match="pip install bitsandbytes"):
        load_running_pair(replace(choice, target_precision="nf4"), quiet)


def test_a_measured_point_has_its_setting(pair, choice):
    point = pair.measure(MeasureRequest(choice, ((5, 6, 7), (11, 7)), 12, 0.4, 3, on_fail="keep"), go_on, quiet)
    assert (point.threshold, point.max_draft, point.prompts, point.on_fail) == (0.4, 3, 2, "keep")
    assert 0 < point.speedup.low <= point.speedup.value <= point.speedup.high
    single = pair.measure(MeasureRequest(choice, ((5, 6, 7),), 12, 0.4, 3), go_on, quiet)
    assert single.prompts == 1 and single.speedup.low < single.speedup.high


@pytest.mark.slow
def test_own_prompt_on_the_built_in_pair_to_the_panel_and_stopped_while_its_costs_are_measured():
    try:
        prepare_target()
    except SpecVizError as error:
        pytest.skip(f"needs the built-in pair: {error}")
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300).run()
    app.segmented_control(key="source").set_value("Your own prompt").run()
    app.text_area(key="own-text").set_value("Name three colours.").run()
    app.number_input(key="own-tokens").set_value(6).run()
    app.button(key="own-run").click().run()
    deadline = time.monotonic() + 400
    while not any("The same run" in head.value for head in app.subheader):
        assert time.monotonic() < deadline and not app.exception and not app.error
        time.sleep(0.5)
        app.run()
    stop = [button for button in app.button if button.key == "own-stop"]
    if stop:  # its pass times are still being measured
        stop[0].click().run()
        while [button for button in app.button if button.key == "own-stop"]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
            app.run()
        assert any("What was there by then is kept. The speedup is missing" in info.value for info in app.info)
    assert any("The same run" in head.value for head in app.subheader)
    assert not app.exception
    for page in ("pages/race.py", "pages/thresholds.py", "pages/data.py"):
        assert not app.switch_page(page).run().exception
