"""Every status, metric and symbol has its definition where it is shown, from the one glossary."""

import dataclasses
import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from specviz.analysis.metrics import Metrics
from specviz.trace.statuses import STATUSES
from specviz.ui.charts import words_of
from specviz.ui.glossary import define, glossary, terms_in, words_as_markdown
from specviz.ui.screenshots import settle

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.name for path in (ROOT / "pages").glob("*.py"))
# What columns and axes say besides words of the glossary: names of what is listed, and places.
NAMES = {"", "Place in the sentence", "Category of prompt", "text"}
# Widgets that choose what is looked at, or how much of it.
CHOICES = re.compile(
    "Recording|Set$|Compare|Prompt|Pair|Most (tokens|prompts)|Your prompt|Further prompts|Left|Right|Report|Comparison|"
    "Table|Single figures|What to look at|Split by|Group by|Target$|Draft$|Combinations|.* precision$"
)


def test_a_definition_is_one_to_three_sentences_with_no_word_of_another_meaning():
    for term in glossary().values():
        assert term.text[0].isupper() and term.text.endswith("."), term
        assert len(term.text) <= 260, term.key
        assert len(term.labels) == len(set(term.labels)), term.key
    labels = [label for term in glossary().values() for label in term.labels]
    assert len(labels) == len(set(labels))


def test_every_status_and_every_metric_is_defined():
    for name in STATUSES:
        assert glossary()[name].name == name
    for field in dataclasses.fields(Metrics):
        assert glossary()[field.name].formula


def test_the_longest_label_counts_and_only_as_a_whole_word():
    def keys(text):
        return [term.key for term in terms_in([text])]

    assert keys("speedup over plain decoding (×)") == ["speedup"]
    assert keys("mean tokens proposed per round") == ["proposed"]
    assert keys("Draft length γ") == ["draft_length"]
    assert keys("drafted, plainly") == []
    assert keys("draft, wasted 17%") == ["draft", "draft_steps_wasted"]


def test_the_words_in_the_readme_are_those_of_the_glossary():
    keys = ("threshold", "draft_length", "confidence", "round", *STATUSES, "failing_token", "acceptance_rate")
    keys += ("acceptance_rate_tested", "tokens_per_target_pass", "speedup")
    assert words_as_markdown(keys) in (ROOT / "README.md").read_text("utf-8")


def shown_terms(app) -> set[str]:
    """Definitions on a page, as the reader gets them."""
    found = " ".join(str(html.value) for html in app.get("html"))
    return {key for key, term in glossary().items() if term.text.replace("'", "&#x27;") in found}


@pytest.mark.parametrize("name", PAGES)
def test_every_word_of_a_page_has_its_definition_beside_it(monkeypatch, gallery, name):
    monkeypatch.setenv("SPECVIZ_GALLERY", str(gallery))
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    app.switch_page(f"pages/{name}").run()
    assert not app.exception
    defined = shown_terms(app)
    for element in app.get("plotly_chart"):
        figure = go.Figure(json.loads(element.proto.spec))
        assert {term.key for term in terms_in(words_of(figure))} <= defined, figure.layout.title.text
        for axis in (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text):
            assert not axis or terms_in([axis]), f"no word of {axis!r} is in the glossary"
    for frame in app.dataframe:
        for column in json.loads(frame.proto.columns).values():
            if column.get("label") and column["label"] not in NAMES:
                assert column.get("help"), f"column {column['label']!r} has no definition"
    for kind in ("slider", "number_input", "selectbox", "multiselect", "button_group"):
        for widget in app.get(kind):
            if not CHOICES.match(widget.proto.label):
                assert widget.proto.help, f"{kind} {widget.proto.label!r} has no definition"
    assert not app.metric or all(metric.proto.help for metric in app.metric)


@pytest.mark.browser
def test_a_focused_status_shows_its_definition(page, server):
    """By keyboard, by pointer and by touch; a page's terms as well as the live panel's."""
    page.goto(f"{server}/?item=ocean&tau=0.4&gamma=5")
    page.wait_for_selector(".panel[data-tau]")
    for name in STATUSES:
        term = page.locator(f".key .term.{name}")
        definition = term.locator(".definition")
        assert not definition.is_visible()
        term.focus()
        assert definition.is_visible() and define(name).startswith(glossary()[name].text)
        assert definition.inner_text().startswith(glossary()[name].text)
        box, width = definition.bounding_box(), page.viewport_size["width"]
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] >= 0
        described = term.get_attribute("aria-describedby")
        assert definition.get_attribute("id") == described
    page.locator(".numbers .term").first.hover()
    assert page.locator(".numbers .definition").first.is_visible()
    settle(page)
    line = page.locator("[data-testid=stHtml] .terms .term").first
    line.scroll_into_view_if_needed()
    line.focus()
    assert line.locator(".definition").is_visible()


@pytest.mark.browser
def test_escape_closes_a_definition_that_is_pointed_at_or_focused(page, server):
    """In the live panel as beside a chart; it opens again once the pointer or the focus has been elsewhere."""
    page.goto(f"{server}/?item=ocean&tau=0.4&gamma=5")
    page.wait_for_selector(".panel[data-tau]")
    settle(page)
    for term in (page.locator(".numbers .term").first, page.locator("[data-testid=stHtml] .terms .term").first):
        definition = term.locator(".definition")
        term.scroll_into_view_if_needed()
        for open_it, leave in (
            (term.focus, term.blur),
            (term.hover, lambda: page.mouse.move(5, 5)),
        ):
            open_it()
            assert definition.is_visible()
            page.keyboard.press("Escape")
            assert not definition.is_visible()
            leave()
            open_it()
            assert definition.is_visible()
            leave()
            assert not definition.is_visible()
