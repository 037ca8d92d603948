"""Charts of one trace, below the live panel. They follow when the handle is let go."""

import html
from collections.abc import Iterator

import plotly.graph_objects as go
import streamlit as st

from specviz.analysis import predict, round_times
from specviz.plots import confidence_figure, run_lengths_figure, time_figure, timeline_figure
from specviz.ui.glossary import terms_in
from specviz.ui.shown import Shown
from specviz.ui.terms import term_line
from specviz.ui.token_texts import display_from

# Dragging zooms and a double click undoes it; the other buttons would cover the title on a phone.
CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": [
        *("zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d")
    ],
}
HEIGHT = 360
IMAGE_FORMATS = ("SVG", "PNG")
IMAGE_FORMAT = "image-format"  # key of the session's choice
COLUMNS = {"timeline": 0, "time": 1, "run-lengths": 0, "confidence": 1}  # where each figure of a trace stands
LATEST = "latest-figures"  # key of the session's latest figures of a trace, with what they are of


def chart(figure: go.Figure, key: str, height: int = HEIGHT) -> None:
    """One figure in the page's theme, and its words with their definitions; the camera above it saves it in the format
    that the session chose."""
    figure.update_layout(height=height)
    image = {"format": st.session_state.get(IMAGE_FORMAT, IMAGE_FORMATS[0]).lower(), "filename": "specviz", "scale": 2}
    config = CONFIG | {"toImageButtonOptions": image}
    st.plotly_chart(figure, width="stretch", config=config, key=key, alt=_alternative(figure))
    term_line((term.key for term in terms_in(words_of(figure))), key)


def words_of(figure: go.Figure) -> list[str]:
    """What is written in a figure besides numbers: titles of its axes, names in its legend and of its lanes, title."""
    layout = figure.layout
    axes = [axis.title.text or "" for axis in (layout.xaxis, layout.yaxis)]
    names = [trace.name or "" for trace in figure.data]
    return [*axes, *names, *map(str, layout.yaxis.ticktext or ()), (layout.title.text or "").replace("<br>", " ")]


def _alternative(figure: go.Figure) -> str:
    """What the figure is, for those who do not see it: its title, its subtitle and what is drawn."""
    title = figure.layout.title
    names = dict.fromkeys(trace.name for trace in figure.data if trace.name)
    parts = [title.text, title.subtitle.text or "", ", ".join(names)]
    return html.unescape(". ".join(part.replace("<br>", " ") for part in parts if part))


def trace_figures(shown: Shown, tau: float, max_draft: int, on_fail: str = "drop") -> Iterator[tuple[str, go.Figure]]:
    """Every figure of one trace that can be drawn with what is known, with its name, each as soon as it is made: first
    the one that is made fastest, so that the browser begins early."""
    trace = shown.trace(tau, max_draft, on_fail)
    if shown.cost is not None:
        yield "time", time_figure(predict(trace, shown.cost), shown.recording.pair)
        yield "timeline", timeline_figure(trace, round_times(trace, shown.cost))
    yield "run-lengths", run_lengths_figure(trace)
    yield "confidence", confidence_figure(trace, display_from(shown.tokens))


def trace_charts(shown: Shown, tau: float, max_draft: int, on_fail: str = "drop") -> None:
    """The figures, two in a row where there is room; the browser draws one while the next is made.

    Kept until others are asked for: where a new draft length is chosen the same charts are sent once more before the
    panel has drawn it, and making them anew would take the browser's processor.
    """
    asked = (shown.name, tau, max_draft, on_fail)
    of, latest = st.session_state.get(LATEST, (None, []))
    figures = latest if of == asked else trace_figures(shown, tau, max_draft, on_fail)
    columns = st.columns(2, gap="large")
    drawn = []
    for name, figure in figures:
        with columns[COLUMNS[name]]:
            chart(figure, f"figure-{name}")
        drawn.append((name, figure))
    st.session_state[LATEST] = (asked, drawn)
