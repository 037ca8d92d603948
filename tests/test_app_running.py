"""What the workshop's worker does with a real, tiny pair."""

import pytest
from tiny_models import save_pair

from specviz.analysis import predict
from specviz.analysis.prompts import Prompt
from specviz.replay import ConfidenceThreshold, replay
from specviz.ui.requests import MeasureRequest, PairChoice, RaceRequest, RunRequest, SweepRequest
from specviz.ui.running import load_running_pair
from specviz.ui.token_texts import display_text, used_tokens

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


def test_costs_price_the_run(pair, choice):
    recording, _ = pair.record(RunRequest(choice, "a dog", TOKENS, 8), lambda told: None, go_on, quiet)
    cost = pair.measure_costs(go_on, quiet)
    assert predict(replay(recording, ConfidenceThreshold(0.5), 4), cost, outside="clamp").speedup > 0


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


def test_a_measured_point_has_its_setting(pair, choice):
    point = pair.measure(MeasureRequest(choice, ("the cat", "a dog"), 12, 0.4, 3), go_on, quiet)
    assert (point.threshold, point.max_draft, point.prompts) == (0.4, 3, 2)
    assert point.speedup.value > 0
