"""What the app keeps: after recording, after a reload, on every page; and the pair that forms remember."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from sample_recordings import sample_cost, sample_recording, sample_set, sample_words, write_sample_gallery
from streamlit.testing.v1 import AppTest

from specviz.errors import SpecVizError
from specviz.models.catalogue import PAIRS
from specviz.trace import RecordingSet, kept, read_recordings, write_recordings
from specviz.ui import library, pairs
from specviz.ui.requests import CostRequest, PairChoice
from specviz.ui.workshop import Workshop

ROOT = Path(__file__).parent.parent
TOKENS = {token: word.encode() for token, word in enumerate(sample_words())}
CHOICE = PairChoice("/models/target", "/models/draft", "fp32", "auto")
SET_PAGES = ("thresholds", "arena", "tuning", "calibration", "context", "race", "data")
CHOSEN = {"arena": "arena-set", "tuning": "tuning-set", "calibration": "calibration-set", "context": "context-set"}
CHOSEN |= {"race": "race-set", "data": "data-set", "thresholds": "grid-set", "explore": "loaded-set"}


class FakePair:
    """Stands in for a loaded pair; records at once."""

    memory_bytes = 10
    busy = False

    def record(self, request, on_round, stopped, progress):
        return sample_recording(24, prompt=request.prompt), TOKENS

    def sweep(self, request, stopped, progress):
        return [sample_recording(24, seed, prompt=one.text) for seed, one in enumerate(request.prompts)], TOKENS, {}

    def kept_costs(self, recordings, say):
        return None

    def measure_costs(self, request, recordings, stopped, progress, say):
        if self.busy:
            raise SpecVizError("The machine was busy; measure again.")
        return sample_cost()


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    """A made-up gallery, and a workshop whose pairs are fakes; its requests are kept in `asked`."""
    write_sample_gallery(tmp_path / "gallery", tokens=24)
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path / "gallery"))
    st.cache_resource.clear()
    shop = Workshop(lambda choice, report: FakePair())
    monkeypatch.setattr("specviz.ui.workshop.Workshop", lambda *given, **named: shop)
    yield shop
    st.cache_resource.clear()


def open_page(page="explore", **query):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    return app if page == "explore" else app.switch_page(f"pages/{page}.py").run()


def wait_for(app, condition):
    deadline = time.monotonic() + 20
    while not condition(app):
        assert time.monotonic() < deadline and not app.exception
        time.sleep(0.05)
        app.run()


def keep(prompts=1, title="Tides", origin=kept.RUN, tokens=24, priced=True, **given):
    recordings = sample_set([sample_recording(tokens, seed, prompt=f"{title} {seed}") for seed in range(prompts)])
    if not priced:
        recordings = replace(recordings, cost_model=None)
    return kept.keep(recordings.with_tokens(TOKENS), kept.new_name(), title=title, origin=origin, **given)


def record_a_set(app, number=3):
    app.selectbox(key="sweep-pair").set_value("other").run()
    app.text_input(key="sweep-target").set_value(CHOICE.target).run()
    app.text_input(key="sweep-draft").set_value(CHOICE.draft).run()
    app.selectbox(key="sweep-target-precision").set_value("fp32").run()
    app.number_input(key="sweep-most").set_value(number).run()
    app.number_input(key="sweep-tokens").set_value(24).run()
    app.button(key="sweep-run").click().run()
    wait_for(app, lambda app: app.success)


def said(app):
    return " ".join(one.value for kind in (app.text, app.info, app.success, app.warning, app.error) for one in kind)


def asked(app, name):
    """What the address says of this."""
    value = app.query_params[name]
    return value if isinstance(value, str) else value[0]


def links(app):
    """Labels and queries of the page links."""
    found = app.get("page_link")
    return {link.label: link.proto.query_string for link in found}


@pytest.mark.parametrize("page", ["thresholds", "data"])
def test_a_recorded_set_is_announced_kept_and_opened_on_other_pages_and_the_form_stays(page):
    app = open_page(page)
    record_a_set(app)
    (entry,) = kept.kept_sets().values()
    assert entry.contents.prompts == 3 and entry.contents.priced and entry.origin == kept.SET
    assert any("Recorded 3 prompts" in one.value for one in app.success)
    for title in ("Tuning", "Thresholds", "Policies"):
        assert links(app)[title] == f"set={entry.name}"
    assert app.selectbox(key="sweep-pair").value == "other"
    assert app.text_input(key="sweep-target").value == CHOICE.target
    assert app.selectbox(key="sweep-target-precision").value == "fp32"
    assert (app.number_input(key="sweep-most").value, app.number_input(key="sweep-tokens").value) == (3, 24)
    app.switch_page("pages/tuning.py").run()
    app.switch_page(f"pages/{page}.py").run()
    assert app.number_input(key="sweep-most").value == 3
    assert app.text_input(key="sweep-draft").value == CHOICE.draft
    # A reload finds the job of the link and its set again.
    again = open_page("thresholds", sweep=asked(app, "sweep"))
    assert any("Recorded 3 prompts" in one.value for one in again.success)


def test_a_set_outlives_the_server(shop):
    app = open_page("thresholds")
    record_a_set(app)
    (entry,) = kept.kept_sets().values()
    shop._jobs.clear()
    st.cache_resource.clear()
    for page in SET_PAGES:
        app = open_page(page, set=entry.name)
        assert not app.exception and not app.error, said(app)
        chosen = app.selectbox(key=CHOSEN[page])
        assert chosen.value == f"kept:{entry.name}"
        assert any("Your set: 3 prompts" in option for option in chosen.options)
    app = open_page(set=entry.name)
    assert app.segmented_control(key="source").value == "Your recordings"
    assert app.selectbox(key="loaded-set").value == f"kept:{entry.name}"
    assert not app.exception and not app.error


def test_the_times_of_a_busy_machine_do_not_cost_the_set(monkeypatch):
    monkeypatch.setattr(FakePair, "busy", True)
    app = open_page("thresholds")
    app.number_input(key="sweep-most").set_value(2).run()
    app.button(key="sweep-run").click().run()
    wait_for(app, lambda app: app.success)
    assert "The machine was busy" in said(app) and "Recorded 2 prompts" in said(app)
    (entry,) = kept.kept_sets().values()
    assert entry.contents.prompts == 2 and not entry.contents.priced


def test_a_run_is_kept_and_found_again_by_its_link_after_a_restart(shop):
    app = open_page()
    app.segmented_control(key="source").set_value("Your own prompt").run()
    app.text_area(key="own-text").set_value("Why are there tides?").run()
    app.button(key="own-run").click().run()
    wait_for(app, lambda app: app.success)
    (entry,) = kept.kept_sets().values()
    assert (entry.title, entry.origin, entry.contents.priced) == ("Why are there tides?", kept.RUN, True)
    assert entry.sources["target"] == PAIRS[0].target.source
    run = asked(app, "run")
    shop._jobs.clear()
    app = open_page(run=run)
    assert app.text_area(key="own-text").value == "Why are there tides?"
    assert any("The same run" in head.value for head in app.subheader)
    app.switch_page("pages/race.py").run()
    assert app.selectbox(key="race-set").value == f"kept:{entry.name}"
    kept.delete(entry.name)
    app = open_page(run=run)
    assert "not in the project folder" in said(app)


@pytest.mark.parametrize("page", SET_PAGES)
def test_a_single_run_can_be_chosen_on_every_page(page):
    entry = keep()
    app = open_page(page)
    app.selectbox(key=CHOSEN[page]).set_value(f"kept:{entry.name}").run()
    assert not app.exception and not app.error
    if page == "arena":
        assert "holds one prompt, and this page needs at least 2" in said(app)
        assert links(app)["Thresholds"] == f"set={entry.name}"
    else:
        assert not app.info


@pytest.mark.parametrize("page", ["tuning", "arena", "race"])
def test_a_set_without_times_is_offered_and_says_what_is_missing(page):
    entry = keep(2, priced=False)
    app = open_page(page, set=entry.name)
    assert not app.exception and not app.error
    assert app.selectbox(key=CHOSEN[page]).value == f"kept:{entry.name}"
    assert "has no speedups" in said(app)


def test_the_times_of_a_kept_set_are_measured_later_and_stay_with_it(monkeypatch, shop):
    sources = {"target": CHOICE.target, "draft": CHOICE.draft, "target_precision": "fp32", "draft_precision": "auto"}
    entry = keep(2, priced=False, sources=sources)
    other = keep(2, "Other", priced=False, sources=sources | {"target": "/models/another"})
    app = open_page("tuning", set=entry.name)
    app.button(key="missing-measure-costs").click().run()
    wait_for(app, lambda app: any("Recommendation" in one.value for one in app.markdown))
    assert not app.error
    after = kept.kept_sets()
    assert after[entry.name].contents.priced and after[entry.name].title == "Tides"
    assert after[entry.name].sources == sources
    assert not after[other.name].contents.priced
    # Measured again, the new times are those of the next session too.
    newer = replace(sample_cost(), measured_at="2100-01-01T00:00:00+00:00")
    monkeypatch.setattr(FakePair, "measure_costs", lambda self, *given: newer)
    job = shop.submit(CostRequest(CHOICE, "invariant", (10, 60), 8))
    wait_for(app, lambda app: job.over)
    assert kept.read_kept(entry.name).cost_model["measured_at"] == newer.measured_at


def test_thresholds_can_record_when_nothing_can_be_shown(tmp_path):
    for file in (tmp_path / "gallery").iterdir():
        file.unlink()
    app = open_page("thresholds")
    assert "no recording set" in said(app)
    app.number_input(key="sweep-most").set_value(2).run()
    app.button(key="sweep-run").click().run()
    wait_for(app, lambda app: app.success)
    assert len(kept.kept_sets()) == 1


@pytest.mark.parametrize("page", ["thresholds", "tuning", "race", "data", "explore"])
def test_a_set_that_was_deleted_elsewhere_disappears_with_a_sentence(page):
    entry, other = keep(2, "Gone"), keep(2, "Here")
    app = open_page(page, set=entry.name)
    assert app.selectbox(key=CHOSEN[page]).value == f"kept:{entry.name}"
    kept.delete(entry.name)
    app.run()
    assert not app.exception and not app.error
    assert "no longer in the project folder" in said(app)
    assert app.selectbox(key=CHOSEN[page]).value != f"kept:{entry.name}"
    app.run()
    assert "no longer in the project folder" not in said(app)
    assert other.name in kept.kept_sets()


@pytest.mark.parametrize("page", ["tuning", "calibration", "context", "race", "data", "explore", "thresholds"])
def test_a_set_that_is_damaged_within_is_a_sentence(page):
    entry = keep(2)
    content = bytearray(entry.path.read_bytes())
    content[200] ^= 255
    entry.path.write_bytes(content)
    app = open_page(page, set=entry.name)
    assert not app.exception
    assert "The file of this set is damaged" in said(app)


def test_sets_of_one_title_can_be_told_by_their_dates():
    for _ in range(3):
        keep()
    titles = [one.title for one in library.own_sets().values()]
    assert len(set(titles)) == 3 and all(title.startswith("Your run: Tides · 20") for title in titles)


def test_pages_read_no_recordings_that_are_not_shown(monkeypatch):
    for number in range(3):
        keep(2, f"Set {number}")
    read = []
    monkeypatch.setattr(kept, "read_kept", lambda name, real=kept.read_kept: read.append(name) or real(name))
    open_page("race", item="soup")
    assert read == []


# --- the Data page --------------------------------------------------------------------------------------------------


def test_the_list_has_every_fact_newest_first_and_says_when_it_is_empty(project):
    app = open_page("data")
    assert "Nothing is kept yet" in said(app) and str(project) in said(app)
    keep(3, "Older", kept.SET)
    entry = keep(1, "<b>Newer</b> =1+1", kept.UPLOAD)
    app = open_page("data")
    words = said(app)
    assert words.index("<b>Newer</b> =1+1") < words.index("Older")
    for fact in ("recorded set · 3 prompts · 72 tokens", "made-up target with made-up draft · bf16", "kB", "2 files"):
        assert fact in words
    assert app.button(key=f"delete-{entry.name}") and app.get("menu_button")


def test_rename_and_delete_ask_first():
    """What follows in the dialogs is tested in a browser: here a dialog does not outlive the run that opened it."""
    entry = keep(title="Before")
    app = open_page("data")
    app.button(key=f"rename-{entry.name}").click().run()
    assert app.text_input(key="new-title").value == "Before"
    app.button(key=f"delete-{entry.name}").click().run()
    assert app.button(key="delete-confirmed") and not app.exception
    assert list(kept.kept_sets()) == [entry.name]


def test_open_in_opens_the_set_there():
    entry = keep(2)
    app = open_page("data")
    menu = next(one for one in app.get("menu_button") if one.key == f"open-{entry.name}")
    menu.click("Tuning").run()
    assert not app.exception
    assert asked(app, "set") == entry.name


def test_a_foreign_file_is_listed_and_can_only_be_deleted():
    keep()
    (kept.recordings_folder() / "notes.txt").write_text("mine")
    app = open_page("data")
    assert kept.NOT_A_SET in said(app)
    assert len(app.get("menu_button")) == 1
    keys = [button.key for button in app.button]
    assert "delete-notes.txt" in keys and "rename-notes.txt" not in keys


def test_a_long_list_begins_with_the_newest():
    for number in range(10):
        keep(title=f"Number {number}")
    app = open_page("data")
    assert sum(button.key.startswith("delete-") for button in app.button) == 8
    app.button(key="kept-more").click().run()
    assert sum(button.key.startswith("delete-") for button in app.button) == 10


def upload(app, content, name="mine.parquet"):
    app.file_uploader(key="upload-set").set_value((name, content, "application/octet-stream")).run()
    return app


def test_an_upload_is_kept_once_without_the_sources_it_names(tmp_path):
    recording = sample_recording(24, prompt="mine")
    pair = replace(recording.pair, target="/etc/evil", draft="/etc/evil")
    write_recordings(RecordingSet([replace(recording, pair=pair)], sample_cost().to_json(), TOKENS), tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    app = upload(open_page("data"), content, "../../mine.parquet")
    assert any("Loaded and kept" in one.value for one in app.success)
    upload(open_page("data"), content, "again.parquet")
    (entry,) = kept.kept_sets().values()
    assert (entry.title, entry.origin, entry.sources) == ("../../mine.parquet", kept.UPLOAD, None)
    assert app.selectbox(key="data-set").value == f"kept:{entry.name}"
    (shown,) = library.own_sets()[f"kept:{entry.name}"].members
    assert shown.pair is None
    app.switch_page("pages/race.py").run()
    assert not [button for button in app.button if button.key == "race-run"]


def test_what_cannot_be_kept_is_used_in_the_session_and_says_why(project, tmp_path):
    project.write_text("no folder")
    write_recordings(sample_set().with_tokens(TOKENS), tmp_path / "a")
    app = upload(open_page("data"), (tmp_path / "a").read_bytes())
    assert "for this session only" in said(app) and "cannot be kept in" in said(app)
    assert "Uploaded: mine.parquet" in " ".join(app.selectbox(key="data-set").options)
    app.switch_page("pages/thresholds.py").run()
    record_a_set(app)
    assert "This recording is not kept" in said(app)
    app.switch_page("pages/tuning.py").run()
    assert any("Your set of 3 prompts" in option for option in app.selectbox(key="tuning-set").options)
    app.switch_page("pages/data.py").run()
    assert "A recording is not kept: save it now" in said(app)
    assert not app.exception


def test_an_upload_without_token_texts_takes_them_from_other_sets_of_its_target(tmp_path):
    keep()
    write_recordings(sample_set([sample_recording(24, 9)]), tmp_path / "a")
    upload(open_page("data"), (tmp_path / "a").read_bytes())
    entry = next(one for one in kept.kept_sets().values() if one.origin == kept.UPLOAD)
    assert set(read_recordings(entry.path).tokens) >= set(read_recordings(entry.path).recordings[0].output_ids.tolist())


# --- the pair -------------------------------------------------------------------------------------------------------


def test_the_pair_is_named_once_for_every_form_and_for_the_next_session(project):
    app = open_page("thresholds")
    record_a_set(app, 2)
    assert json.loads((project / "last_pair.json").read_text()) == {
        "target": CHOICE.target,
        "draft": CHOICE.draft,
        "target_precision": "fp32",
        "draft_precision": "auto",
    }
    for session in (app, None):
        for page, form in (("explore", "own"), ("fidelity", "fidelity"), ("precision", "compare"), ("data", "sweep")):
            if session is None:
                app = open_page(page)
            else:
                app.switch_page(f"pages/{page}.py").run()
            if page == "explore":
                app.segmented_control(key="source").set_value("Your own prompt").run()
            assert not app.exception
            assert app.selectbox(key=f"{form}-pair").value == "other"
            assert app.text_input(key=f"{form}-target").value == CHOICE.target
            assert app.text_input(key=f"{form}-draft").value == CHOICE.draft


def test_a_pair_that_is_typed_but_not_run_stays_in_the_session_alone(project):
    app = open_page("thresholds")
    app.selectbox(key="sweep-pair").set_value("other").run()
    app.text_input(key="sweep-target").set_value("/models/target").run()
    app.switch_page("pages/fidelity.py").run()
    assert app.text_input(key="fidelity-target").value == "/models/target"
    app.selectbox(key="fidelity-pair").set_value("builtin").run()
    app.switch_page("pages/thresholds.py").run()
    assert app.selectbox(key="sweep-pair").value == "builtin"
    app.selectbox(key="sweep-pair").set_value("other").run()
    assert app.text_input(key="sweep-target").value == "/models/target"
    assert not (project / "last_pair.json").exists()
    assert open_page("thresholds").selectbox(key="sweep-pair").value == "builtin"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"target": 1}', "[" * 100_000]
    + [
        json.dumps({"target": target, "draft": "d", "target_precision": precision, "draft_precision": "auto"})
        for target, precision in (("", "auto"), (["x"], "auto"), ("t", "int3"), ("t", []))
    ],
)
def test_a_damaged_memory_of_the_pair_is_the_built_in_one(project, content):
    project.mkdir()
    (project / pairs.FILE).write_text(content)
    app = open_page("thresholds")
    assert not app.exception and not app.error
    assert app.selectbox(key="sweep-pair").value == "builtin"


def test_a_form_without_models_asks_for_them():
    app = open_page("thresholds")
    app.selectbox(key="sweep-pair").set_value("other").run()
    app.button(key="sweep-run").click().run()
    assert "Name both models" in app.warning[0].value
    assert kept.kept_sets() == {}
