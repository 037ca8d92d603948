"""Figures about many settings: speedup curves, the heat map, acceptance against draft length."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from specviz.analysis.comparison import MeasuredPoint
from specviz.analysis.curves import SpeedupCurve, SpeedupGrid
from specviz.analysis.metrics import metrics
from specviz.plots.style import (
    DASHES,
    MODELLED,
    OUTSIDE,
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


def speedup_figure(
    curves: Mapping[str, SpeedupCurve],
    measured: Sequence[MeasuredPoint] = (),
    threshold: float | None = None,
) -> go.Figure:
    """Speedup against threshold, one line a curve with its band, and the points that were really run.

    Args:
        curves: name -> curve; names go into the legend.
        threshold: drawn as an upright line.
    """
    about = [describe_pair(curve.pair) for curve in curves.values()]
    about.append(_prompts_of_each(curves))
    about += [f"pass mode {curve.pass_mode}" for curve in curves.values()]
    if any(np.isfinite(curve.low).any() for curve in curves.values()):
        level = next(iter(curves.values())).level
        about.append(f"band: {level:.0%} interval over prompts and pass times")
    if any(curve.outside for curve in curves.values()):
        about.append(OUTSIDE)
    figure = new_figure("Speedup against threshold", MODELLED, about, "threshold τ", "speedup over plain decoding (×)")
    for number, (name, curve) in enumerate(curves.items()):
        _add_curve(figure, plain(name), curve, SERIES[number % len(SERIES)])
    _add_measured(figure, measured, prompts_axis="threshold")
    figure.add_hline(y=1, line={"color": RULE, "width": 2}, annotation_text="no speculation", annotation_opacity=0.7)
    if threshold is not None:
        figure.add_vline(x=threshold, line={"color": SERIES[0], "width": 1})
    figure.update_xaxes(range=[0, 1])
    return figure


def _prompts_of_each(curves: Mapping[str, SpeedupCurve]) -> str:
    """How many prompts; if the curves differ in that, one number each as they come in the legend."""
    numbers = [len(curve.plain_seconds) for curve in curves.values()]
    if len(set(numbers)) == 1:
        return prompts(numbers[0])
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]} prompts, in the legend's order"


def _add_curve(figure: go.Figure, name: str, curve: SpeedupCurve, colour: str) -> None:
    # A step function holds up to the next threshold, and the last value up to 1.
    shape = "hv" if curve.exact else "linear"
    end = [1.0] if curve.exact and curve.thresholds[-1] < 1 else []

    def extended(values):
        return np.concatenate([values, values[-1:] if end else []])

    x = np.concatenate([curve.thresholds, end])
    common = {"x": x, "mode": "lines", "legendgroup": name}
    if np.isfinite(curve.low).any():
        edge = {**common, "line": {"width": 0, "shape": shape}, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(y=extended(curve.low), name=f"{name}, low", **edge)
        fill = {"fill": "tonexty", "fillcolor": colour_with_alpha(colour, 0.18)}
        figure.add_scatter(y=extended(curve.high), name=f"{name}, high", **edge, **fill)
    figure.add_scatter(
        y=extended(curve.speedup),
        name=name,
        line={"color": colour, "dash": DASHES[MODELLED], "shape": shape, "width": 2},
        hovertemplate="τ = %{x:.4f}<br>%{y:.3f}×<extra>" + name + "</extra>",
        **common,
    )
    best = int(curve.speedup.argmax())
    figure.add_scatter(
        x=[curve.thresholds[best]],
        y=[curve.speedup[best]],
        mode="markers",
        name=f"best of {name}",
        legendgroup=name,
        showlegend=False,
        marker={"color": colour, "symbol": "star", "size": 12},
        hovertemplate="best: τ = %{x:.4f}<br>%{y:.3f}×<extra>" + name + "</extra>",
    )


def _add_measured(figure: go.Figure, points: Sequence[MeasuredPoint], prompts_axis: str) -> None:
    if not points:
        return
    speedups = [point.speedup for point in points]
    figure.add_scatter(
        x=[getattr(point, prompts_axis) for point in points],
        y=[speedup.value for speedup in speedups],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [speedup.high - speedup.value for speedup in speedups],
            "arrayminus": [speedup.value - speedup.low for speedup in speedups],
        },
        mode="markers+text",
        name="measured",
        text=[f"measured {speedup.value:.2f}×" for speedup in speedups],
        textposition=["middle left" if getattr(point, prompts_axis) > 0.5 else "middle right" for point in points],
        marker={"color": TARGET, "symbol": "square", "size": 13, "line": {"color": "#ffffff", "width": 1.5}},
        cliponaxis=False,  # a point at threshold 0 or 1 is shown whole
        customdata=[[point.max_draft, point.prompts] for point in points],
        hovertemplate="measured: %{y:.3f}×<br>τ = %{x:.3f}, γ = %{customdata[0]}<br>"
        "prompts: %{customdata[1]}<extra></extra>",
    )


def heat_map_figure(cells: SpeedupGrid) -> go.Figure:
    """Speedup over τ and draft length γ, the best cell marked; grey is 1×, blue is faster, orange slower."""
    number = len(cells.plain_seconds)
    about = [describe_pair(cells.pair), prompts(number), f"pass mode {cells.pass_mode}"]
    if cells.outside:
        about.append(OUTSIDE)
    figure = new_figure("Speedup over τ and draft length γ", MODELLED, about, "threshold τ", "draft length γ")
    interval = number > 1
    template = "τ = %{x:.3f}, γ = %{y}<br>%{z:.3f}×"
    if interval:
        template += f"<br>{cells.level:.0%} interval %{{customdata[0]:.3f}} to %{{customdata[1]:.3f}}"
    figure.add_heatmap(
        x=cells.thresholds,
        y=cells.max_drafts,
        z=cells.speedup.T,
        zmid=1,
        colorscale=[[0, "#D55E00"], [0.5, "#b9b4ab"], [1, "#0072B2"]],
        colorbar={"title": {"text": "speedup (×)"}, "thickness": 12, "outlinewidth": 0},
        customdata=np.stack([cells.low.T, cells.high.T], axis=-1) if interval else None,
        hovertemplate=template + "<extra></extra>",
        name="speedup",
    )
    best = cells.best
    figure.add_scatter(
        x=[best.threshold],
        y=[best.max_draft],
        mode="markers",
        marker={"symbol": "star", "size": 16, "color": "#F0E442", "line": {"color": "#4a4740", "width": 1.5}},
        name=f"best with {cells.on_fail}: τ = {best.threshold:.3f}, γ = {best.max_draft}, {best.speedup.value:.2f}×",
        hoverinfo="skip",
        showlegend=True,
    )
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False, dtick=1 if len(cells.max_drafts) <= 8 else 2)
    return figure


def acceptance_figure(curves: Mapping[str, SpeedupCurve]) -> go.Figure:
    """Acceptance rate against mean draft length: what a threshold buys and what it costs, one line a curve."""
    about = [describe_pair(curve.pair) for curve in curves.values()]
    about.append(_prompts_of_each(curves))
    figure = new_figure(
        "Acceptance rate against draft length", REPLAYED, about, "mean tokens proposed per round", "acceptance rate"
    )
    for number, (name, curve) in enumerate(curves.items()):
        found = metrics(curve.counts)
        colour = SERIES[number % len(SERIES)]
        common = {
            "legendgroup": plain(name),
            "hovertemplate": "τ = %{customdata:.3f}<br>%{x:.2f} proposed a round<br>%{y:.1%} accepted<extra></extra>",
        }
        figure.add_scatter(
            x=found.mean_draft_length,
            y=found.acceptance_rate,
            customdata=curve.thresholds,
            mode="lines",
            name=plain(name),
            line={"color": colour, "dash": DASHES[REPLAYED], "width": 2},
            **common,
        )
        tenths = [curve.at(threshold) for threshold in np.linspace(0, 1, 11)]
        figure.add_scatter(
            x=found.mean_draft_length[tenths],
            y=found.acceptance_rate[tenths],
            customdata=curve.thresholds[tenths],
            mode="markers",
            name=f"τ = 0, 0.1 … 1 of {plain(name)}",
            showlegend=False,
            marker={"color": colour, "size": 7, "symbol": number},
            **common,
        )
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    figure.update_xaxes(rangemode="tozero")
    return figure
