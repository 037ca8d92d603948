"""Figures about the draft's confidence: reliability, discrimination, acceptance by kind and place, entropies."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from specviz.analysis.curves import SpeedupCurve
from specviz.analysis.draft_calibration import Calibration, Judged, Reliability
from specviz.plots.speedups import speedup_figure
from specviz.plots.style import (
    DASHES,
    DRAFT,
    MODELLED,
    OTHER,
    REPLAYED,
    RULE,
    SERIES,
    TARGET,
    colour_with_alpha,
    describe_pair,
    new_figure,
    plain,
    prompts,
)
from specviz.trace import PairInfo
from specviz.trace.statuses import STATUSES

RECORDED = "recorded"
MOST_POINTS = 4000


def reliability_figure(
    diagrams: Mapping[str, Reliability],
    pair: PairInfo,
    number: int,
    title: str = "Acceptance against confidence",
    cut: tuple[float, float] | None = None,
) -> go.Figure:
    """Reliability diagrams: on the diagonal confidence is the chance of acceptance. Markers grow with the count.

    Args:
        cut: a threshold, and the share accepted of all that exceeds it (NaN for none), drawn over the diagrams.
    """
    about = [describe_pair(pair), prompts(number), "bars: 95 % interval of a rate, tokens taken as independent"]
    figure = new_figure(title, RECORDED, about, "confidence", "share accepted")
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", name="calibrated", line={"color": OTHER, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )  # fmt: skip
    for place, (name, diagram) in enumerate(diagrams.items()):
        colour = SERIES[place % len(SERIES)]
        most = max(1, diagram.count.max())
        figure.add_scatter(
            x=diagram.confidence,
            y=diagram.rate,
            mode="lines+markers",
            name=plain(name),
            line={"color": colour, "dash": DASHES[REPLAYED], "width": 1.5},
            marker={"size": 5 + 9 * np.sqrt(diagram.count / most), "color": colour, "opacity": 0.8, "symbol": place},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": diagram.high - diagram.rate,
                "arrayminus": diagram.rate - diagram.low,
                "thickness": 1,
                "width": 2,
            },
            customdata=np.stack([*diagram.edges.T, diagram.count], axis=-1),
            hovertemplate="%{customdata[0]:.2f} to %{customdata[1]:.2f}: %{customdata[2]} tokens<br>confidence %{x:.3f}"
            ", accepted %{y:.3f}<extra>" + plain(name) + "</extra>",
        )
    if cut is not None:
        _draw_cut(figure, *cut)
    figure.update_xaxes(range=[-0.02, 1.02])
    figure.update_yaxes(range=[-0.02, 1.02])
    return figure


def _draw_cut(figure: go.Figure, threshold: float, rate: float) -> None:
    """A threshold over an axis of confidences: a veil over what it holds back, and the share accepted of the rest."""
    figure.add_vrect(x0=0, x1=threshold, fillcolor="rgba(128, 128, 128, 0.3)", line_width=0, layer="above")
    figure.add_vline(x=threshold, line={"color": DRAFT, "width": 2}, annotation_text=f"τ = {threshold:.2f}")
    if np.isfinite(rate):
        figure.add_scatter(
            x=[threshold, 1],
            y=[rate, rate],
            mode="lines",
            name=f"all that passes: {rate:.3f}",
            line={"color": DRAFT, "width": 3},
            hovertemplate="accepted of all that passes: %{y:.3f}<extra></extra>",
        )


def outcomes_figure(tokens: Judged, pair: PairInfo, threshold: float) -> go.Figure:
    """How many tokens the target accepts and does not, by confidence, and the threshold between them."""
    edges = np.linspace(0, 1, 41)
    right = np.histogram(tokens.confidence[tokens.accepted], edges)[0]
    wrong = np.histogram(tokens.confidence[~tokens.accepted], edges)[0]
    figure = new_figure(
        "What the threshold lets pass",
        RECORDED,
        [describe_pair(pair), f"{len(tokens)} draft tokens"],
        "confidence",
        "draft tokens (accepted above)",
    )
    centres = (edges[:-1] + edges[1:]) / 2
    for name, counts, sign in (("accepted", right, 1), ("rejected", wrong, -1)):
        look = STATUSES[name]
        figure.add_bar(
            x=centres,
            y=sign * counts,
            name=f"{look.glyph} {name}",
            marker={"color": look.colour},
            customdata=counts,
            hovertemplate="confidence %{x:.3f}: %{customdata} " + name + "<extra></extra>",
        )
    _draw_cut(figure, threshold, np.nan)
    figure.add_hline(y=0, line={"color": RULE, "width": 1})
    figure.update_layout(barmode="relative", bargap=0.05)
    figure.update_xaxes(range=[0, 1])
    return figure


def signals_figure(found: Calibration, pair: PairInfo, kind: str = "roc") -> go.Figure:
    """ROC (`roc`) or precision-recall (`precision`) of "will be accepted" for each signal."""
    roc = kind == "roc"
    figure = new_figure(
        "Which signal predicts acceptance?" if roc else "Precision and recall of each signal",
        RECORDED,
        [describe_pair(pair), prompts(found.prompts), f"{found.tokens} draft tokens"],
        "rejected tokens let pass" if roc else "accepted let pass (recall)",
        "accepted tokens let pass" if roc else "share accepted (precision)",
    )
    for colour, dash, (name, curve) in zip(SERIES, ("solid", "dash", "dot"), found.signals.items(), strict=False):
        if curve is None:
            continue
        x, y = (curve.false_rate, curve.true_rate) if roc else (curve.recall, curve.precision)
        if len(x) > MOST_POINTS:
            kept = np.linspace(0, len(x) - 1, MOST_POINTS).astype(int)
            x, y = x[kept], y[kept]
        area = curve.area if roc else curve.average_precision
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            name=f"{name}: area {area:.3f}",
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate="%{x:.3f}, %{y:.3f}<extra>" + name + "</extra>",
        )
    if roc:
        figure.add_scatter(
            x=[0, 1], y=[0, 1], mode="lines", name="guessing", line={"color": OTHER, "width": 1}, hoverinfo="skip"
        )
    else:
        figure.add_hline(y=found.acceptance, line={"color": OTHER, "width": 1}, annotation_text="guessing")
    figure.update_xaxes(range=[0, 1])
    figure.update_yaxes(range=[0, 1.02])
    return figure


def mapped_curves_figure(curves: Mapping[str, SpeedupCurve], by_rank: bool) -> go.Figure:
    """Speedup under each map of the confidence, over the threshold or over the share of draft tokens that pass.

    Over the threshold the curves differ; over the share that passes a strictly rising map changes nothing.
    """
    if not by_rank:
        return speedup_figure(curves)
    first = next(iter(curves.values()))
    about = [describe_pair(first.pair), prompts(len(first.plain_seconds)), f"pass mode {first.pass_mode}"]
    figure = new_figure(
        "The same, over what passes", MODELLED, about, "tokens proposed per round", "speedup over plain decoding (×)"
    )
    figure.add_hline(y=1, line={"color": RULE, "width": 2}, annotation_text="no speculation", annotation_opacity=0.7)
    for colour, dash, (name, curve) in zip(SERIES, ("solid", "dash", "dot"), curves.items(), strict=False):
        figure.add_scatter(
            x=curve.counts.proposed / curve.counts.rounds,
            y=curve.speedup,
            mode="lines",
            name=plain(name),
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate="%{x:.2f} proposed per round<br>%{y:.3f}×<extra>" + plain(name) + "</extra>",
        )
    return figure


def groups_figure(table: pd.DataFrame, title: str, pair: PairInfo, number: int) -> go.Figure:
    """Acceptance and mean confidence of each group (rows of `specviz.analysis.context_report`)."""
    about = [describe_pair(pair), prompts(number), "bars: 95 % interval, positions taken as independent"]
    figure = new_figure(title, RECORDED, about, "", "share accepted")
    names = [plain(str(name)) for name in table["name"]]
    figure.add_bar(
        x=names,
        y=table["acceptance"],
        name="accepted",
        marker={"color": STATUSES["accepted"].colour, "opacity": 0.75},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": table["high"] - table["acceptance"],
            "arrayminus": table["acceptance"] - table["low"],
            "thickness": 1.2,
            "width": 3,
        },
        customdata=table["positions"],
        hovertemplate="%{x}: %{y:.2f} of %{customdata} positions<extra></extra>",
    )
    figure.add_scatter(
        x=names,
        y=table["confidence"],
        name="mean confidence",
        mode="markers",
        marker={"color": DRAFT, "symbol": "diamond", "size": 9},
        hovertemplate="%{x}: confidence %{y:.2f}<extra></extra>",
    )
    figure.update_yaxes(range=[0, 1.02])
    figure.update_xaxes(type="category", showgrid=False)
    return figure


def entropies_figure(table: pd.DataFrame, title: str, pair: PairInfo, number: int) -> go.Figure:
    """Mean entropy of both models for each group."""
    figure = new_figure(title, RECORDED, [describe_pair(pair), prompts(number)], "", "entropy (nats)")
    names = [plain(str(name)) for name in table["name"]]
    for name, colour, symbol in (("draft", DRAFT, "diamond"), ("target", TARGET, "square")):
        figure.add_scatter(
            x=names,
            y=table[f"{name}_entropy"],
            name=name,
            mode="markers+lines",
            line={"color": colour, "width": 1, "dash": DASHES[REPLAYED]},
            marker={"color": colour, "symbol": symbol, "size": 9},
            hovertemplate="%{x}: %{y:.2f} nats<extra>" + name + "</extra>",
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(type="category", showgrid=False)
    return figure


def stretches_figure(entropies: Mapping[str, np.ndarray], spans: Sequence, pair: PairInfo) -> go.Figure:
    """Both models' entropy along the text, predictable stretches shaded."""
    figure = new_figure(
        "Entropy along the text",
        RECORDED,
        [describe_pair(pair), "shaded: predictable stretches"],
        "output token",
        "nats",
    )
    for name, values in entropies.items():
        figure.add_scatter(
            x=np.arange(len(values)),
            y=values,
            mode="lines",
            name=name,
            line={"color": DRAFT if name == "draft" else TARGET, "width": 1.4, "shape": "hvh"},
        )
    for span in spans:
        if span.predictable:
            figure.add_vrect(
                x0=span.start - 0.5,
                x1=span.end - 0.5,
                fillcolor=colour_with_alpha(STATUSES["accepted"].colour, 0.14),
                line_width=0,
            )
    figure.update_yaxes(rangemode="tozero")
    return figure
