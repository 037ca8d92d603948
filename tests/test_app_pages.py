"""Each page without a browser and without a model."""

import io
import json
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
from sample_recordings import sample_cost, sample_recording, sample_set, sample_words, write_sample_gallery
from streamlit.testing.v1 import AppTest

from specviz.analysis.bootstrap import Interval
from specviz.analysis.comparison import MeasuredPoint
from specviz.analysis.prompts import Prompt
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold
from specviz.replay import replay as replay_recording
from specviz.replay.policies import ON_FAIL
from specviz.trace import (
    read_recordings,
    read_trace_csv,
    tokens_from_json,
    tokens_to_json,
    trace_differences,
    write_recordings,
)
from specviz.ui import library, token_texts
from specviz.ui.gallery import list_items, load_item
from specviz.ui.report import html_report
from specviz.ui.requests import MeasuredRace, PairChoice, RaceRequest, RunRequest, SweepRequest
from specviz.ui.shown import Shown
from specviz.ui.workshop import FAILED, FINISHED, STOPPED, Workshop

ROOT = Path(__file__).parent.parent
PAGES = ["explore", "thresholds", "precision", "fidelity", "race", "learn", "data"]
PAGES = [f"pages/{name}.py" for name in PAGES]
TOKENS = {token: word.encode() for token, word in enumerate(sample_words())}


@pytest.fixture(autouse=True)
def sample_gallery(tmp_path, monkeypatch):
    write_sample_gallery(tmp_path, tokens=48)
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    st.cache_resource.clear()
    return tmp_path


def open_page(path, **query):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    if path != PAGES[0]:
        app.switch_page(path).run()
    return app


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_on_the_gallery_without_a_model(path):
    app = open_page(path)
    assert not app.exception
    assert not app.error
    assert app.title


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_without_a_gallery(path, sample_gallery):
    for file in sample_gallery.iterdir():
        file.unlink()
    app = open_page(path)
    assert not app.exception
    assert app.info


@pytest.mark.parametrize(
    "link", [{"tau": "nan"}, {"tau": "-3", "gamma": "999"}, {"gamma": "x", "item": "../../etc"}, {"run": "gone"}]
)
def test_a_nonsensical_link_still_opens(link):
    app = open_page(PAGES[0], **link)
    assert not app.exception
    assert not app.error
    if "run" in link:
        assert any("not in the project folder" in info.value for info in app.info)


def test_a_link_sets_item_threshold_and_draft_length():
    app = open_page(PAGES[0], item="soup", tau="0.25", gamma="3")
    assert any("τ = 0.250, γ = 3 and drop" in head.value for head in app.subheader)
    assert app.query_params["item"] in ("soup", ["soup"])


@pytest.mark.parametrize(("path", "key"), [("pages/data.py", "data-set"), ("pages/race.py", "race-set")])
def test_pages_begin_with_the_item_of_the_link_and_write_the_chosen_one_into_it(path, key):
    app = open_page(path, item="soup")
    assert app.selectbox(key=key).value == "gallery:soup"
    app.selectbox(key=key).set_value("gallery:ocean").run()
    assert app.selectbox(key=key).value == "gallery:ocean"
    assert app.query_params["item"] in ("ocean", ["ocean"])


def test_charts_follow_once_the_panel_is_on_screen():
    app = open_page(PAGES[0], item="soup", tau="0.25", gamma="3")
    assert not app.get("plotly_chart")
    app.session_state["live-panel"] = {"tau": 0.25, "gamma": 4, "drawn": [3, "drop"]}  # what the panel tells
    app.run()
    assert len(app.get("plotly_chart")) == 4
    assert any("τ = 0.250, γ = 3 and drop" in head.value for head in app.subheader)  # 4 is chosen, and not drawn yet
    assert not app.exception


def test_an_empty_prompt_is_refused_with_a_sentence():
    app = open_page(PAGES[0])
    app.segmented_control(key="source").set_value("Your own prompt").run()
    app.button(key="own-run").click().run()
    assert not app.exception
    assert "empty" in app.warning[0].value


def test_pages_reach_no_torch():
    code = "import sys, runpy; sys.path.insert(0, '.')\n"
    code += (
        "import specviz.ui.own_prompt, specviz.ui.library, specviz.ui.charts, specviz.ui.live_panel, specviz.ui.sweeps"
    )
    code += "\nimport specviz.ui.precisions, specviz.ui.precision_panel, specviz.ui.fidelity, specviz.plots"
    code += "\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_a_gallery_item_survives_its_files(sample_gallery):
    item = load_item("soup")
    assert item.info == list_items()["soup"]
    assert item.recordings.recordings[0] == sample_recording(
        48, 1, 0.75, prompt="A recipe for soup, please. <b>&</b> =1+1"
    )
    assert item.tokens[3] == TOKENS[3]
    (sample_gallery / "broken.json").write_text("{", "utf-8")
    assert "broken" not in list_items()
    values = json.loads((sample_gallery / "soup.json").read_text("utf-8"))
    (sample_gallery / "soup.json").write_text(json.dumps({"info": values["info"]}), "utf-8")
    with pytest.raises(SpecVizError, match="damaged"):
        load_item("soup")


def shown_sample():
    return Shown("s", "A title <b>", sample_recording(48), sample_cost(), TOKENS)


def test_draft_lengths_on_offer_are_packed_ahead_of_the_choice(monkeypatch):
    shown, expected = shown_sample(), shown_sample()
    assert shown.draft_lengths == [1, 2, 3, 4, 5, 6, 7, 8]  # the cost model covers no more
    shown.pack_ahead(5)
    assert list(shown._ahead)[:4] == [(5, "drop"), (5, "keep"), (4, "drop"), (6, "drop")]
    for packing in shown._ahead.values():
        packing.result(60)
    wanted = [(length, fate) for length in expected.draft_lengths for fate in ON_FAIL]
    expected = {key: expected.packed_rounds(*key) for key in wanted}
    monkeypatch.delattr("specviz.ui.shown.pack_rounds")  # from now on it would be missed
    assert {key: shown.packed_rounds(*key) for key in wanted} == expected
    with pytest.raises(NameError):
        shown.packed_rounds(9)


def test_downloaded_csv_is_the_trace_of_the_replay(tmp_path):
    packed = library.trace_as_zip(shown_sample(), 0.4, 5)
    zipfile.ZipFile(io.BytesIO(packed)).extractall(tmp_path / "trace")
    trace, tokens = read_trace_csv(tmp_path / "trace")
    assert trace_differences(trace, replay_recording(sample_recording(48), ConfidenceThreshold(0.4), 5)) == []
    assert tokens[trace.run.output_ids[0]] == TOKENS[trace.run.output_ids[0]]
    assert library.read_trace_upload({"trace.zip": packed})[0].run == trace.run


@pytest.mark.parametrize("files", [{"a.zip": b"PK nonsense"}, {"steps.csv": b"round\n1"}, {"run.json": b"{}"}])
def test_a_damaged_trace_upload_is_a_sentence(files):
    with pytest.raises(SpecVizError) as error:
        library.read_trace_upload(files)
    assert str(error.value).endswith(".")
    assert "/tmp" not in str(error.value)


def test_an_uploaded_set_is_checked_first(tmp_path):
    app = open_page("pages/data.py")
    app.file_uploader(key="upload-set").set_value(("x.parquet", b"no parquet", "application/octet-stream")).run()
    assert not app.exception
    assert "cannot be used" in app.error[0].value
    path = tmp_path / "set.parquet"
    write_recordings(sample_set([sample_recording(32, 7, prompt="mine")]), path)
    app.file_uploader(key="upload-set").set_value(("mine.parquet", path.read_bytes(), "application/octet-stream")).run()
    assert not app.exception
    assert any("Uploaded: mine.parquet" in option for option in app.selectbox(key="data-set").options)


def test_an_uploaded_set_that_cannot_be_replayed_is_refused(tmp_path):
    recording = sample_recording(32, 7, prompt="mine")
    drawn = replace(recording, settings={**recording.settings, "rule": "rejection"})
    write_recordings(sample_set([drawn]), tmp_path / "set.parquet")
    app = open_page("pages/data.py")
    content = (tmp_path / "set.parquet").read_bytes()
    app.file_uploader(key="upload-set").set_value(("mine.parquet", content, "application/octet-stream")).run()
    assert not app.exception and "cannot be used" in app.error[0].value
    assert any("under rejection" in text.value for text in app.text)


def test_saved_set_reads_back_equal(tmp_path):
    shown = shown_sample()
    (tmp_path / "set.parquet").write_bytes(library.set_as_parquet(library.ShownSet("x", (shown,))))
    back = read_recordings(tmp_path / "set.parquet")
    assert back.recordings[0] == shown.recording
    assert back.cost_model == json.loads(json.dumps(shown.cost.to_json()))


def test_a_recording_at_int8_says_that_a_real_run_may_differ():
    shown = shown_sample()
    said = {}
    for precision in ("bf16", "int8", "int8+t0", "made up"):
        pair = replace(shown.recording.pair, target_precision=precision)
        said[precision] = "may differ" in replace(shown, recording=replace(shown.recording, pair=pair)).about()
    assert said == {"bf16": False, "int8": True, "int8+t0": False, "made up": False}


def test_report_holds_no_markup_from_models():
    page = html_report(shown_sample(), 0.4, 5)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "A title &lt;b&gt;" in page
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)
    trace = shown_sample().trace(0.4, 5)
    saved = len(trace.run.output_ids) - len(trace.rounds["round"])
    assert f"<td>target passes saved</td><td>{saved}</td>" in page  # a count has no decimals
    places = [page.index(f'aria-label="{title}"') for title in ("Rounds in time", "Where the time goes")]
    assert places == sorted(places)  # in the order of the page


@pytest.mark.parametrize(
    ("token", "shown"),
    [(b"a\nb", "a↵\nb"), (b"\xf0\x9f", "⟨f0⟩⟨9f⟩"), ("\u202ex".encode(), "⟨202e⟩x"), (b"\x00", "⟨0⟩"), (b"\t", "⇥")],
)
def test_display_text(token, shown):
    assert token_texts.display_text(token) == shown
    assert tokens_from_json(json.loads(json.dumps(tokens_to_json({5: token})))) == {5: token}


class OutOfMemoryError(RuntimeError):
    """Named as torch's own."""


FULL_MEMORY = {
    "on the device": OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "on the computer": RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    "in Python": MemoryError(),
}


class FakePair:
    """Stands in for a loaded pair; waits until it is told to go on."""

    memory_bytes = 10

    def __init__(self):
        self.go_on = False
        self.measured = 0

    def record(self, request, on_round, stopped, progress):
        while not self.go_on and not stopped():
            time.sleep(0.005)
        if request.prompt == "bad":
            raise SpecVizError("The prompt is too long; shorten it.")
        if request.prompt in FULL_MEMORY:
            raise FULL_MEMORY[request.prompt]
        if request.prompt == "crash":
            raise RuntimeError("device lost")
        on_round({"drafted": [["a", "accepted"]], "own": ["b", "bonus"]})
        return sample_recording(16), TOKENS

    def sweep(self, request, stopped, progress):
        return [sample_recording(16, seed) for seed in range(len(request.prompts))], TOKENS, {"9": "Too long."}

    def race(self, request, stopped):
        return MeasuredRace([[0.5, 1]], [[0.25, 1]], ["a"], "a device", True)

    def kept_costs(self, recordings, say):
        return sample_cost() if self.measured else None

    def measure_costs(self, request, recordings, stopped, progress, say):
        self.measured += 1
        return sample_cost()


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def request(prompt="hello", target="t"):
    return RunRequest(PairChoice(target, "d"), prompt, 16, 8)


def test_jobs_run_one_after_the_other_and_know_their_place():
    pairs = []

    def load(choice, report):
        pairs.append(FakePair())
        return pairs[-1]

    shop = Workshop(load)
    first, second, third = shop.submit(request()), shop.submit(request()), shop.submit(request("bad"))
    wait_for(lambda: pairs)
    assert [shop.jobs_before(job) for job in (first, second, third)] == [0, 1, 2]
    assert shop.job(second.id) is second
    shop.stop(second)
    assert second.state == STOPPED
    assert shop.jobs_before(third) == 1
    pairs[0].go_on = True
    wait_for(lambda: first.over and third.over)
    assert first.state == FINISHED
    assert first.shown.cost is not None
    assert first.rounds
    assert (third.state, third.message) == (FAILED, "The prompt is too long; shorten it.")
    assert pairs[0].measured == len(pairs) == 1
    other = shop.submit(request(target="u"))
    wait_for(lambda: len(pairs) == 2)
    assert shop.memory_bytes() <= 10
    shop.stop(other)
    wait_for(lambda: other.over)
    assert other.state == STOPPED
    crash = shop.submit(request("crash", "u"))
    pairs[1].go_on = True
    wait_for(lambda: crash.over)
    assert crash.state == FAILED
    assert "device lost" in crash.message
    shop.stop(shop.submit(request("after a crash the pair is loaded again", "u")))
    pair = PairChoice("v", "d")
    sweep = shop.submit(SweepRequest(pair, (Prompt("1", "", "a"), Prompt("2", "", "b")), 16, 8))
    race = shop.submit(RaceRequest(pair, "a", 16, 0.5, 4))
    wait_for(lambda: race.over)
    assert len(sweep.members) == 2
    assert sweep.failures == {"9": "Too long."}
    assert sweep.members[0].cost is not None
    assert race.race.same_output
    assert np.all([job.id != crash.id for job in (first, second, third)])


@pytest.mark.parametrize("where", FULL_MEMORY)
def test_full_memory_is_a_sentence_with_a_way_out_and_the_pair_is_let_go(where):
    pair = FakePair()
    pair.go_on = True
    shop = Workshop(lambda choice, report: pair)
    job = shop.submit(request(where))
    wait_for(lambda: job.over)
    assert job.state == FAILED
    memory = "graphics memory" if where == "on the device" else "memory"
    assert job.message.startswith(f"The {memory} is full; choose a narrower precision, fewer tokens or a smaller pair")
    assert shop.memory_bytes() == 0


def test_points_measured_on_a_recording_are_on_its_panel_at_their_draft_length(monkeypatch):
    drawn = []
    monkeypatch.setattr("specviz.ui.live_panel.live_panel", lambda **given: drawn.append(given))
    app = open_page(PAGES[0], item="soup", gamma="3")
    recording = library.gallery_recording("soup").recording
    assert drawn[-1]["measured"] == []
    points = [MeasuredPoint(tau, gamma, Interval(1.2, 1.1, 1.3, 0.95), 2) for tau, gamma in ((0.4, 3), (0.6, 5))]
    app.session_state["points"] = {str(key): ([recording], point) for key, point in enumerate(points)}
    app.session_state["points"]["other"] = ([sample_recording(20)], points[0])
    app.run()
    assert drawn[-1]["measured"] == [{"tau": 0.4, "speedup": 1.2, "low": 1.1, "high": 1.3}]
