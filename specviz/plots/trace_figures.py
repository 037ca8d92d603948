"""Figures about one generation: its rounds in time, run lengths, confidences, where the time goes."""

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go

from specviz.analysis.prediction import Prediction, RoundTimes
from specviz.plots.style import (
    DRAFT,
    MODELLED,
    OTHER,
    PATTERNS,
    TARGET,
    colour_with_alpha,
    describe_pair,
    merged,
    new_figure,
    plain,
)
from specviz.trace import PairInfo, Trace
from specviz.trace.statuses import STATUSES, Status

OUTCOMES = ("accepted", "rejected", "discarded", "rightly withheld", "wrongly withheld", "withheld, untested")
CORNERS = 4  # of a rectangle
ENDS = 2  # of a stroke
LANE = 0.6  # of the distance between lanes that an outcome takes up
BINS = 50  # of confidences
BAR_WIDTH = 0.85  # rounds
MOST_MILLISECONDS = 2000  # of a whole run; a longer one is read in seconds
FOOT = -0.5  # tokens: bars stand on a line below the axis, out of sight
FILLED = {"type": "scatter", "mode": "none", "fill": "toself", "hoveron": "points"}
BAR = {"type": "bar", "orientation": "h"}
HOVERS_EVERYWHERE = {"hovermode": "closest", "hoverdistance": -1}  # of the nearest, however far


def timeline_figure(trace: Trace, times: RoundTimes) -> go.Figure:
    """Rounds on the clock: each model's work as spans in its own lane.

    Args:
        times: of each round, from `measured_round_times` or `round_times`.
    """
    about = [describe_pair(times.pair), _extent(trace)]
    if times.origin == MODELLED:
        about.insert(0, f"rounds {trace.run.origin}, times from the cost model")
    spans = np.nan_to_num(np.stack([times.draft, times.verify, times.overhead])) * 1e3
    unit, in_unit = ("ms", 1) if spans.sum() <= MOST_MILLISECONDS else ("s", 1e3)
    ends = np.cumsum(spans.T.ravel()).reshape(-1, 3).T
    rounds = trace.rounds
    details = np.stack([rounds[name] for name in ("round", "draft_steps", "proposed", "accepted", "emitted")], axis=-1)
    lanes = ("overhead", "target", "draft")  # from the bottom up
    data = []
    for lane, colour, length, end in zip(
        ("draft", "target", "overhead"), (DRAFT, TARGET, OTHER), spans, ends, strict=True
    ):
        middle = lanes.index(lane)
        x, y = _teeth((end - length) / in_unit, end / in_unit, middle - 0.33, middle + 0.33)
        look = {
            "fillcolor": colour,
            "fillpattern": {
                "shape": PATTERNS[times.origin],
                "size": 4,
                "fgcolor": colour,
                "bgcolor": colour_with_alpha(colour, 0.65),
            },
            "name": lane,
            "customdata": np.repeat(np.column_stack([details, length]).astype(np.float32), CORNERS, axis=0),
            "hovertemplate": "round %{customdata[0]}: %{customdata[5]:.2f} ms<br>%{customdata[1]} draft steps, "
            "%{customdata[2]} proposed<br>%{customdata[3]} accepted, %{customdata[4]} emitted<extra>"
            + lane
            + "</extra>",
        }
        data.append({**FILLED, **look, "x": x, "y": y})
    layout = {
        **HOVERS_EVERYWHERE,
        "showlegend": False,
        "yaxis": {"tickvals": list(range(len(lanes))), "ticktext": list(lanes), "zeroline": False},
    }
    layout = merged(_margins(left=74), layout)
    return new_figure("Rounds in time", times.origin, about, f"time ({unit})", "", data, layout)


def run_lengths_figure(trace: Trace) -> go.Figure:
    """Tokens proposed and accepted in each round."""
    rounds = trace.rounds
    accepted = STATUSES["accepted"]
    looks = {
        "proposed": {
            "name": "proposed",
            "fillcolor": colour_with_alpha(DRAFT, 0.15),
            "line": {"color": DRAFT, "width": 1.5},
            "hovertemplate": "round %{customdata[0]}: %{customdata[1]} proposed<br>"
            "drafting ended by %{text}<extra></extra>",
        },
        "accepted": {
            "name": f"{accepted.glyph} accepted",
            "fillcolor": accepted.colour,
            "line": {"color": accepted.colour, "width": 1.5},
            "hovertemplate": "round %{customdata[0]}: %{customdata[1]} accepted<extra></extra>",
        },
    }
    data = []
    for what, look in looks.items():
        drawn = np.flatnonzero(rounds[what])
        number, tokens = rounds["round"][drawn], rounds[what][drawn]
        x, y = _teeth(number - BAR_WIDTH / 2, number + BAR_WIDTH / 2, FOOT, tokens)
        details = {
            "customdata": np.repeat(np.column_stack([number, tokens]), CORNERS, axis=0),
            "text": np.repeat(rounds["stop_reason"][drawn].astype(str), CORNERS),
        }
        data.append({**FILLED, **look, **details, "mode": "lines", "x": x, "y": y})
    layout = {
        **HOVERS_EVERYWHERE,
        "xaxis": {"range": [-0.5, len(rounds["round"]) - 0.5]},
        "yaxis": {"range": [0, 1.05 * max(1, int(rounds["proposed"].max()))]},
    }
    layout = merged(_margins(left=52, bottom=84), layout)
    title = "Proposed and accepted per round"
    return new_figure(title, trace.run.origin, _about(trace), "round", "tokens", data, layout)


def confidence_figure(trace: Trace, texts: Callable[[int], str] | None = None) -> go.Figure:
    """Every draft step by its confidence and what became of it: a stroke in the lane of its outcome; the discarded
    ones, of which long drafts have thousands, as a histogram.

    Args:
        texts: the text of a token id, for hovering; shown as plain text.
    """
    steps = trace.steps
    outcomes = _outcomes(steps)
    lanes = OUTCOMES[::-1]  # from the bottom up
    data, ticks = [], []
    for lane, name in enumerate(lanes):
        look = STATUSES["withheld" if "withheld" in name else name]
        rows = np.flatnonzero(outcomes == name)
        ticks.append(f"{look.glyph} {name}")
        drawn = _histogram(steps, rows, lane, look) if name == "discarded" else _strokes(steps, rows, lane, look, texts)
        data.append({**drawn, "name": f"{look.glyph} {name}: {len(rows)}"})
    layout = {
        "showlegend": False,
        "xaxis": {"range": [-0.02, 1.02]},
        "yaxis": {
            "tickvals": list(range(len(lanes))),
            "ticktext": ticks,
            "zeroline": False,
            "range": [-0.6, len(lanes)],  # with room for the label of the threshold, over the highest lane
        },
    }
    threshold = trace.run.settings.get("policy", {}).get("threshold")
    if threshold is not None:
        layout |= _threshold_line(threshold)
    layout = merged(_margins(left=136), layout)
    title = "Confidence and what became of it"
    return new_figure(title, trace.run.origin, _about(trace), "confidence", "", data, layout)


def time_figure(prediction: Prediction, pair: PairInfo, origin: str = MODELLED) -> go.Figure:
    """Where the time goes: plain decoding against draft, wasted draft, verification and overhead.

    Args:
        prediction: of one generation or summed over several (scalars).
        pair: what was priced or run.
    """
    parts = (
        ("draft", prediction.draft_seconds - prediction.wasted_seconds, DRAFT, ""),
        ("draft, wasted", prediction.wasted_seconds, DRAFT, "x"),
        ("verify", prediction.verify_seconds, TARGET, ""),
        ("overhead", prediction.overhead_seconds, OTHER, ""),
    )
    total = float(prediction.seconds)
    data = []
    for name, seconds, colour, pattern in parts:
        share = float(seconds) / total if total else 0.0
        look = {
            "name": f"{name} {share:.0%}",
            "marker": {"color": colour, "pattern": {"shape": pattern, "size": 5}},
            "hovertemplate": f"{name}: %{{x:.3f}} s ({share:.1%})<extra></extra>",
        }
        data.append({**BAR, **look, "x": [float(seconds)], "y": ["speculative"]})
    look = {
        "name": "plain decoding",
        "marker": {"color": colour_with_alpha(TARGET, 0.5), "line": {"color": TARGET, "width": 1.5}},
        "hovertemplate": "plain decoding: %{x:.3f} s<extra></extra>",
    }
    data.append({**BAR, **look, "x": [float(prediction.plain_seconds)], "y": ["plain"]})
    layout = {
        "barmode": "stack",
        "bargap": 0.4,
        "yaxis": {"categoryorder": "array", "categoryarray": ["plain", "speculative"]},
    }
    layout = merged(_margins(left=86), {**layout, "xaxis": {"automargin": True}})  # its legend has several rows
    about = [describe_pair(pair), f"{int(prediction.tokens)} tokens"]
    return new_figure("Where the time goes", origin, about, "time (s)", "", data, layout)


def _margins(left: int, bottom: int = 52) -> dict:
    """Margins in pixels that hold the labels. Plotly finds them itself, but by drawing everything twice."""
    return {
        "margin": {"l": left, "b": bottom},
        "xaxis": {"automargin": False},
        "yaxis": {"automargin": False, "title": {"standoff": 4}},
    }


def _teeth(left, right, bottom, top) -> tuple[np.ndarray, np.ndarray]:
    """Rectangles as the teeth of one comb, CORNERS points each: an outline drawn at once, which the many elements of
    as many bars or markers are not. Between teeth it runs along `bottom`, so neighbours should stand on one height."""
    left, right, bottom, top = np.broadcast_arrays(left, right, bottom, top)
    x, y = np.stack([left, left, right, right], axis=-1), np.stack([bottom, top, top, bottom], axis=-1)
    return x.astype(np.float32).ravel(), y.astype(np.float32).ravel()


def _strokes(steps: dict, rows: np.ndarray, lane: int, look: Status, texts: Callable[[int], str] | None) -> dict:
    """One upright stroke per draft step, all of them one line along the foot of the lane: an element for each step
    would take the browser longer than the rest of the figure."""
    rows = rows[np.argsort(steps["confidence"][rows], kind="stable")]
    tokens = steps["token"][rows].tolist()
    known = {token: plain(repr(texts(token))) if texts else f"token {token}" for token in set(tokens)}
    # Neighbours differ in height, by a fixed irrational step, so that they do not hide each other.
    tops = 0.4 + 0.6 * (np.arange(len(rows)) * 0.6180339887 % 1)
    ends = np.stack([np.zeros(len(rows)), tops], axis=-1)
    details = np.stack([steps[name][rows].astype(np.float32) for name in ("confidence", "position", "round")], axis=-1)
    return {
        "type": "scatter",
        "x": np.repeat(steps["confidence"][rows], ENDS),
        "y": (lane + LANE * (ends - 0.5)).astype(np.float32).ravel(),
        "mode": "lines",
        "line": {"color": look.colour, "width": 1.5, "shape": "vh"},
        "text": np.repeat(np.array([known[token] for token in tokens], str), ENDS),
        "customdata": np.repeat(details, ENDS, axis=0),
        "hovertemplate": "%{text}<br>confidence %{customdata[0]:.3f}<br>position %{customdata[1]}, "
        "round %{customdata[2]}<extra></extra>",
    }


def _histogram(steps: dict, rows: np.ndarray, lane: int, look: Status) -> dict:
    """How often each confidence occurred, as one outline that fills the lane where it is highest."""
    counts, edges = np.histogram(steps["confidence"][rows], BINS, (0, 1))
    low, high = edges[:-1], edges[1:]
    x, y = _teeth(low, high, lane - LANE / 2, lane - LANE / 2 + LANE * counts / max(1, counts.max()))
    return {
        **FILLED,
        "x": x,
        "y": y,
        "fillcolor": look.colour,
        "customdata": np.repeat(np.column_stack([low, high, counts]), CORNERS, axis=0),
        "hovertemplate": "%{customdata[2]} discarded at confidence<br>%{customdata[0]:.3f} to %{customdata[1]:.3f}"
        "<extra></extra>",
    }


def _threshold_line(threshold: float) -> dict:
    """A labelled line from the bottom to the top of the figure."""
    across = {"xref": "x", "yref": "y domain"}
    line = {**across, "type": "line", "x0": threshold, "x1": threshold, "y0": 0, "y1": 1}
    label = {**across, "x": threshold, "y": 1, "xanchor": "left", "yanchor": "top", "showarrow": False}
    return {
        "shapes": [{**line, "line": {"color": DRAFT, "width": 1.5}}],
        "annotations": [{**label, "text": f"τ = {threshold:.3f}"}],
    }


def _outcomes(steps) -> np.ndarray:
    """The outcome of every draft step, "" for the target's."""
    withheld = steps["status"] == "withheld"
    known, agrees = steps["target_token"] >= 0, steps["target_token"] == steps["token"]
    judged = np.where(known, np.where(agrees, "wrongly withheld", "rightly withheld"), "withheld, untested")
    return np.where(withheld, judged, np.where(steps["source"] == "draft", steps["status"], ""))


def _about(trace: Trace) -> list[str]:
    return [describe_pair(trace.run.pair), _extent(trace)]


def _extent(trace: Trace) -> str:
    return f"1 prompt, {len(trace.run.output_ids)} tokens"
