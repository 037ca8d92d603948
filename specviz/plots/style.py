"""The look that all figures share.

Hues are of middle lightness, so that they stand out from a light page as from a dark one. Colour never carries a
meaning alone: a status also has a glyph, where a number comes from is also a dash or a hatching.
"""

import html
import textwrap
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specviz.trace import PairInfo

DRAFT, TARGET, OTHER = "#8f6fce", "#2d8bc0", "#8a8781"
RULE = "rgba(128, 128, 128, 0.25)"
SERIES = (DRAFT, "#b5791c", "#c2517f", "#5b8f3c", TARGET, OTHER)  # lines side by side

MEASURED, REPLAYED, MODELLED = "measured", "replayed", "modelled"
DASHES = {MEASURED: "solid", REPLAYED: "dash", MODELLED: "dot"}
PATTERNS = {MEASURED: "", REPLAYED: "/", MODELLED: "."}  # of bars

OUTSIDE = "some contexts were not measured and are priced as the nearest"  # in a subtitle
# Characters in a line, so that it fits a phone; beside the title are the buttons that save and enlarge a figure.
TITLE_WIDTH, SUBTITLE_WIDTH = 36, 52
TITLE_LINE, SUBTITLE_LINE = 20, 17  # pixels


def plain(text: str) -> str:
    """`text` such that plotly shows it as it is; it takes some tags and entities of HTML for markup."""
    return html.escape(text, quote=False)


def colour_with_alpha(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"


def describe_pair(pair: PairInfo) -> str:
    """The models with their precisions, and the device."""
    models = (
        f"{pair.target or 'target'} ({pair.target_precision}) with {pair.draft or 'draft'} ({pair.draft_precision})"
    )
    return f"{models} on {pair.device or 'an unnamed device'}"


def prompts(number: int) -> str:
    return f"{number} prompt{'s' * (number != 1)}"


def new_figure(
    title: str, origin: str, about: list[str], x: str, y: str, data: Sequence[dict] = (), layout: Mapping | None = None
) -> go.Figure:
    """A figure in the common style.

    Args:
        origin: measured, replayed or modelled; opens the subtitle.
        about: further facts for the subtitle: models, device, number of prompts. Shown as plain text.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        data: what is drawn, as plotly's attributes with their `type`. One call with everything takes a fraction of
            the time that adding to a figure does, which counts where a figure follows a slider.
        layout: what differs from the common style.
    """
    titles = textwrap.wrap(title, TITLE_WIDTH, break_on_hyphens=False)
    lines = textwrap.wrap(
        " · ".join([origin.capitalize(), *dict.fromkeys(about)]), SUBTITLE_WIDTH, break_on_hyphens=False
    )
    axis = {"gridcolor": RULE, "zerolinecolor": RULE, "linecolor": RULE, "automargin": True}
    common = {
        "title": {
            "text": "<br>".join(map(plain, titles)),
            "subtitle": {"text": "<br>".join(map(plain, lines)), "font": {"size": 12}},
            "x": 0,
            "xref": "container",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 8, "l": 8},
        },
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "margin": {"l": 8, "r": 8, "t": 28 + TITLE_LINE * len(titles) + SUBTITLE_LINE * len(lines), "b": 8},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)"},
    }
    return go.Figure(list(data), merged(common, layout or {}))


def merged(under: Mapping, over: Mapping) -> dict:
    """`under` with what `over` says otherwise, mapping within mapping."""
    both = {**under, **over}
    for name in under.keys() & over.keys():
        if isinstance(under[name], Mapping) and isinstance(over[name], Mapping):
            both[name] = merged(under[name], over[name])
    return both
