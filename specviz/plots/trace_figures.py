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
    STATUSES,
    TARGET,
    StatusLook,
    colour_with_alpha,
    describe_pair,
    new_figure,
    plain,
)
from specviz.trace import PairInfo, Trace

OUTCOMES = ("accepted", "rejected", "discarded", "rightly withheld", "wrongly withheld", "withheld, untested")
CORNERS = 4  # of a rectangle
LANE = 0.6  # of the distance between lanes that an outcome takes up
BINS = 50  # of confidences
BAR_WIDTH = 0.85  # rounds
MOST_MILLISECONDS = 2000  # of a whole run; a longer one is read in seconds
FOOT = -0.5  # tokens: bars stand on a line below the axis, out of sight


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
    figure = new_figure("Rounds in time", times.origin, about, f"time ({unit})", "")
    ends = np.cumsum(spans.T.ravel()).reshape(-1, 3).T
    rounds = trace.rounds
    details = np.stack([rounds[name] for name in ("round", "draft_steps", "proposed", "accepted", "emitted")], axis=-1)
    lanes = ("overhead", "target", "draft")  # from the bottom up
    for lane, colour, length, end in zip(
        ("draft", "target", "overhead"), (DRAFT, TARGET, OTHER), spans, ends, strict=True
    ):
        middle = lanes.index(lane)
        x, y = _teeth((end - length) / in_unit, end / in_unit, middle - 0.33, middle + 0.33)
        figure.add_scatter(
            x=x,
            y=y,
            mode="none",
            fill="toself",
            fillcolor=colour,
            fillpattern={
                "shape": PATTERNS[times.origin],
                "size": 4,
                "fgcolor": colour,
                "bgcolor": colour_with_alpha(colour, 0.65),
            },
            name=lane,
            hoveron="points",
            customdata=np.repeat(np.column_stack([details, length]).astype(np.float32), CORNERS, axis=0),
            hovertemplate="round %{customdata[0]}: %{customdata[5]:.2f} ms<br>%{customdata[1]} draft steps, "
            "%{customdata[2]} proposed<br>%{customdata[3]} accepted, %{customdata[4]} emitted<extra>"
            + lane
            + "</extra>",
        )
    figure.update_layout(
        showlegend=False,
        hovermode="closest",
        hoverdistance=-1,
        yaxis={"tickvals": list(range(len(lanes))), "ticktext": list(lanes), "zeroline": False},
    )
    return _with_margins(figure, left=74)


def run_lengths_figure(trace: Trace) -> go.Figure:
    """Tokens proposed and accepted in each round."""
    rounds = trace.rounds
    origin = trace.run.origin
    figure = new_figure("Proposed and accepted per round", origin, _about(trace), "round", "tokens")
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
    for what, look in looks.items():
        drawn = np.flatnonzero(rounds[what])
        number, tokens = rounds["round"][drawn], rounds[what][drawn]
        x, y = _teeth(number - BAR_WIDTH / 2, number + BAR_WIDTH / 2, FOOT, tokens)
        figure.add_scatter(
            **look,
            x=x,
            y=y,
            mode="lines",
            fill="toself",
            hoveron="points",
            customdata=np.repeat(np.column_stack([number, tokens]), CORNERS, axis=0),
            text=np.repeat(rounds["stop_reason"][drawn].astype(str), CORNERS),
        )
    figure.update_layout(
        hovermode="closest",
        hoverdistance=-1,
        xaxis={"range": [-0.5, len(rounds["round"]) - 0.5]},
        yaxis={"range": [0, 1.05 * max(1, int(rounds["proposed"].max()))]},
    )
    return _with_margins(figure, left=52, bottom=104)


def confidence_figure(trace: Trace, texts: Callable[[int], str] | None = None) -> go.Figure:
    """Every draft step by its confidence and what became of it, a lane an outcome; the discarded ones, of which long
    drafts have thousands, as a histogram.

    Args:
        texts: the text of a token id, for hovering; shown as plain text.
    """
    origin = trace.run.origin
    figure = new_figure("Confidence and what became of it", origin, _about(trace), "confidence", "")
    steps = trace.steps
    outcomes = _outcomes(steps)
    # Scatter within a lane by a fixed irrational step, so that points do not hide each other.
    jitter = np.float32((np.arange(len(outcomes)) * 0.6180339887 % 1 - 0.5) * LANE)
    for lane, name in enumerate(reversed(OUTCOMES)):
        rows = np.flatnonzero(outcomes == name)
        look = STATUSES["withheld" if "withheld" in name else name]
        if name == "discarded":
            _add_histogram(figure, steps["confidence"][rows], lane, look, f"{look.glyph} {name}: {len(rows)}")
            continue
        tokens = steps["token"][rows].tolist()
        known = {token: plain(repr(texts(token))) if texts else f"token {token}" for token in set(tokens)}
        x, y = steps["confidence"][rows], lane + jitter[rows]
        text = np.array([known[token] for token in tokens], str)
        details = np.stack([steps[name][rows].astype(np.float32) for name in ("confidence", "position", "round")], -1)
        marker = {
            "color": look.colour,
            "symbol": "star-diamond-open" if name == "wrongly withheld" else look.symbol,
            "size": 7,
            "opacity": 0.8,
            "line": {"color": look.colour, "width": 1.2},
        }
        figure.add_scatter(
            x=x,
            y=y,
            name=f"{look.glyph} {name}: {len(rows)}",
            mode="markers",
            marker=marker,
            text=text,
            customdata=details,
            hovertemplate="%{text}<br>confidence %{customdata[0]:.3f}<br>position %{customdata[1]}, "
            "round %{customdata[2]}<extra></extra>",
            showlegend=False,
        )
    ticks = [f"{STATUSES['withheld' if 'withheld' in name else name].glyph} {name}" for name in reversed(OUTCOMES)]
    room = [-0.6, len(OUTCOMES)]  # for the label of the threshold, over the highest lane
    figure.update_layout(
        xaxis={"range": [-0.02, 1.02]},
        yaxis={"tickvals": list(range(len(OUTCOMES))), "ticktext": ticks, "zeroline": False, "range": room},
    )
    threshold = trace.run.settings.get("policy", {}).get("threshold")
    if threshold is not None:
        figure.add_vline(x=threshold, line={"color": DRAFT, "width": 1.5}, annotation_text=f"τ = {threshold:.3f}")
    return _with_margins(figure, left=136)


def time_figure(prediction: Prediction, pair: PairInfo, origin: str = MODELLED) -> go.Figure:
    """Where the time goes: plain decoding against draft, wasted draft, verification and overhead.

    Args:
        prediction: of one generation or summed over several (scalars).
        pair: what was priced or run.
    """
    figure = new_figure(
        "Where the time goes", origin, [describe_pair(pair), f"{int(prediction.tokens)} tokens"], "time (s)", ""
    )
    parts = (
        ("draft", prediction.draft_seconds - prediction.wasted_seconds, DRAFT, ""),
        ("draft, wasted", prediction.wasted_seconds, DRAFT, "x"),
        ("verify", prediction.verify_seconds, TARGET, ""),
        ("overhead", prediction.overhead_seconds, OTHER, ""),
    )
    total = float(prediction.seconds)
    for name, seconds, colour, pattern in parts:
        share = float(seconds) / total if total else 0.0
        figure.add_bar(
            x=[float(seconds)],
            y=["speculative"],
            orientation="h",
            name=f"{name} {share:.0%}",
            marker={"color": colour, "pattern": {"shape": pattern, "size": 5}},
            hovertemplate=f"{name}: %{{x:.3f}} s ({share:.1%})<extra></extra>",
        )
    figure.add_bar(
        x=[float(prediction.plain_seconds)],
        y=["plain"],
        orientation="h",
        name="plain decoding",
        marker={"color": colour_with_alpha(TARGET, 0.5), "line": {"color": TARGET, "width": 1.5}},
        hovertemplate="plain decoding: %{x:.3f} s<extra></extra>",
    )
    figure.update_layout(barmode="stack", bargap=0.4)
    figure.update_yaxes(categoryorder="array", categoryarray=["plain", "speculative"])
    return _with_margins(figure, left=86, bottom=116)


def _with_margins(figure: go.Figure, left: int, bottom: int = 52) -> go.Figure:
    """Margins in pixels that hold the labels. Plotly finds them itself, but by drawing everything twice."""
    return figure.update_layout(
        margin={"l": left, "b": bottom},
        xaxis={"automargin": False},
        yaxis={"automargin": False, "title": {"standoff": 4}},
    )


def _teeth(left, right, bottom, top) -> tuple[np.ndarray, np.ndarray]:
    """Rectangles as the teeth of one comb, CORNERS points each: an outline drawn at once, which the many elements of
    as many bars or markers are not. Between teeth it runs along `bottom`, so neighbours should stand on one height."""
    left, right, bottom, top = np.broadcast_arrays(left, right, bottom, top)
    x, y = np.stack([left, left, right, right], axis=-1), np.stack([bottom, top, top, bottom], axis=-1)
    return x.ravel(), y.ravel()


def _add_histogram(figure: go.Figure, confidences: np.ndarray, lane: int, look: StatusLook, name: str) -> None:
    """How often each confidence occurred, as one outline that fills the lane where it is highest."""
    counts, edges = np.histogram(confidences, BINS, (0, 1))
    low, high = edges[:-1], edges[1:]
    x, y = _teeth(low, high, lane - LANE / 2, lane - LANE / 2 + LANE * counts / max(1, counts.max()))
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="none",
        fill="toself",
        fillcolor=look.colour,
        hoveron="points",
        customdata=np.repeat(np.column_stack([low, high, counts]), CORNERS, axis=0),
        hovertemplate="%{customdata[2]} discarded at confidence<br>%{customdata[0]:.3f} to %{customdata[1]:.3f}"
        "<extra></extra>",
        showlegend=False,
    )


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
