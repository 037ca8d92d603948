"""The pages about stopping policies, calibration, context and tuning, on the gallery, without a model."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from sample_recordings import sample_recording, write_sample_gallery
from streamlit.testing.v1 import AppTest

from specviz.ui import choosing, judging
from specviz.ui.library import ShownSet
from specviz.ui.shown import Shown

ROOT = Path(__file__).parent.parent
PAGES = ["pages/arena.py", "pages/calibration.py", "pages/context.py", "pages/tuning.py"]


@pytest.fixture(params=["committed", "made up"])
def either_gallery(request, tmp_path, monkeypatch):
    """The gallery as it comes, and one with hostile tokens."""
    if request.param == "made up":
        write_sample_gallery(tmp_path, tokens=48)
        monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    st.cache_resource.clear()
    return request.param


def open_page(path):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=400)
    app.run()
    return app.switch_page(path).run()


def texts(app):
    return " ".join(text.value for text in app.text)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_the_gallery_at_once(path, either_gallery):
    app = open_page(path)
    assert not app.exception
    assert not app.error and not app.info
    assert app.title and app.dataframe and app.get("plotly_chart")
    assert "nan" not in texts(app)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_says_what_it_needs_without_a_gallery(path, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    st.cache_resource.clear()
    app = open_page(path)
    assert not app.exception
    assert "recording set" in app.info[0].value


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    write_sample_gallery(tmp_path, tokens=48)
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    st.cache_resource.clear()


def test_the_arena_answers_to_the_longest_draft(made_up):
    app = open_page(PAGES[0])
    before = app.dataframe[0].value["speedup"].tolist()
    app.slider(key="arena-gamma").set_value(2).run()
    assert not app.exception
    assert app.dataframe[0].value["speedup"].tolist() != before
    app.selectbox(key="arena-policy").set_value("AdaEDL").run()
    assert not app.exception


def test_the_calibration_page_answers_to_the_threshold_and_to_the_split(made_up):
    app = open_page(PAGES[1])
    before = texts(app)
    app.slider(key="calibration-tau").set_value(0.9).run()
    assert "τ = 0.90 lets" in texts(app) and texts(app) != before
    for split in ("Depth in the draft", "Precision"):
        app.segmented_control(key="split").set_value(split).run()
        assert not app.exception
        assert len(app.dataframe[0].value) > 1
    app.slider(key="calibration-tau").set_value(1.0).run()
    assert "so nothing is proposed" in texts(app)


def test_the_precision_split_counts_every_recording_once_and_knows_the_comparisons():
    """On the committed gallery: its own recordings, and those of its comparison of precisions."""
    st.cache_resource.clear()
    app = open_page(PAGES[1])
    app.segmented_control(key="split").set_value("Precision").run()
    assert not app.exception
    table = app.dataframe[0].value.set_index("part")
    comparison = judging.gallery_comparison()
    assert len(table) == 1 + len({one.label for one in comparison.combinations} | {"gallery"})
    of_gallery = table.loc[table.index.str.contains("fp32")]
    assert of_gallery["tokens"].tolist() == [table.loc["all", "tokens"]]


def test_a_set_without_a_cost_model_still_shows_its_texts(made_up, monkeypatch):
    bare = ShownSet("bare", (Shown("bare:0", "bare", sample_recording(48, 1), None, {}),))
    monkeypatch.setattr(choosing, "sets_on_offer", lambda: {"bare": bare})
    app = open_page(PAGES[2])
    assert not app.exception and not app.error
    assert app.dataframe[-1].value["γ"].isna().all()
    app.segmented_control(key="shade").set_value("target").run()
    assert not app.exception and not app.error


def test_what_was_accepted_by_chance_gets_a_sentence(made_up, monkeypatch):
    recording = sample_recording(48, 1)
    by_chance = replace(recording, settings={**recording.settings, "rule": "rejection"})
    cost = judging.sets_on_offer()["gallery"].cost
    members = tuple(Shown(f"chance:{place}", "chance", by_chance, cost, {}) for place in range(2))
    monkeypatch.setattr(choosing, "sets_on_offer", lambda: {"chance": ShownSet("chance", members)})
    for path in PAGES:
        app = open_page(path)
        assert not app.exception
        assert "accepts by chance" in texts(app)


def test_every_stateful_policy_says_on_the_page_what_is_reset():
    words = judging.policy_descriptions()
    for name in ("heuristic", "dynamic", "draft_verify", "adaedl", "learned", "context"):
        assert "Reset:" in words[name], name
    assert not any("Args:" in text for text in words.values())


def test_the_context_page_groups_in_every_way_and_shades_by_either_model(made_up):
    app = open_page(PAGES[2])
    for group in ("Place in the sentence", "Category of prompt"):
        app.segmented_control(key="group").set_value(group).run()
        assert not app.exception
    app.segmented_control(key="shade").set_value("target").run()
    app.selectbox(key="context-member").set_value(1).run()
    assert not app.exception


def test_the_tuning_page_recommends_and_gives_settings(either_gallery):
    app = open_page(PAGES[3])
    pays = either_gallery == "committed"
    assert ("Use threshold" in texts(app)) == pays and ("Do not speculate" in texts(app)) != pays
    assert [code.language for code in app.code] == (["python", "bash", "bash"] if pays else [])


def test_a_set_without_token_texts_still_works(made_up):
    members = tuple(
        Shown(f"bare:{seed}", "bare", sample_recording(48, seed), judging.sets_on_offer()["gallery"].cost, {})
        for seed in range(3)
    )
    offered = ShownSet("bare", members)
    assert judging.token_flags(offered) is None
    assert "By context" in judging.arena_of(offered, 4).left_out
    assert set(judging.calibrations_of(offered, "kind")) == {"all"}


def test_these_pages_reach_no_torch():

    code = "import sys\nimport specviz.ui.judging, specviz.ui.shaded_text, specviz.plots.policy_figures\n"
    code += "import specviz.plots.calibration_figures\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.browser
def test_the_shaded_text_stays_text_and_answers_to_arrow_keys(page, server):
    page.goto(server)
    page.get_by_role("link", name="Context").click()
    text = page.locator(".shaded .text")
    text.wait_for()
    shown = text.inner_text()
    for literal in ("<script>alert(1)</script>", '=cmd("x")', "**bold** [x](http://y)"):
        assert literal in shown
    assert page.locator(".shaded script, .shaded a, .shaded b").count() == 0
    text.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator(".shaded .tk.here[data-index='1']").wait_for()
    assert "entropy of the draft" in page.locator(".shaded .note").inner_text()
