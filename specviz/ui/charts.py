"""Charts of one trace, below the live panel. They follow when the handle is let go."""

import plotly.graph_objects as go
import streamlit as st

from specviz.analysis import predict, round_times
from specviz.plots import confidence_figure, run_lengths_figure, time_figure, timeline_figure
from specviz.ui.shown import Shown
from specviz.ui.token_texts import display_from

CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "svg", "filename": "specviz"},
}
HEIGHT = 360


def chart(figure: go.Figure, key: str, height: int = HEIGHT) -> None:
    """One figure in the page's theme."""
    figure.update_layout(height=height)
    st.plotly_chart(figure, width="stretch", config=CONFIG, key=key)


def trace_figures(shown: Shown, tau: float, max_draft: int) -> dict[str, go.Figure]:
    """Every figure of one trace that can be drawn with what is known, by name."""
    trace = shown.trace(tau, max_draft)
    figures = {}
    if shown.cost is not None:
        times = round_times(trace, shown.cost, outside="clamp")
        figures["timeline"] = timeline_figure(trace, times)
        figures["time"] = time_figure(predict(trace, shown.cost, outside="clamp"), shown.recording.pair)
    figures["run-lengths"] = run_lengths_figure(trace)
    figures["confidence"] = confidence_figure(trace, display_from(shown.tokens))
    return figures


def trace_charts(shown: Shown, tau: float, max_draft: int) -> None:
    """The figures, two in a row where there is room."""
    st.subheader(f"The same run, at τ = {tau:.3f} and γ = {max_draft}")
    figures = trace_figures(shown, tau, max_draft)
    columns = st.columns(2, gap="large")
    for place, (name, figure) in enumerate(figures.items()):
        with columns[place % 2]:
            chart(figure, f"figure-{name}")
