"""Figures about stopping policies: the arena, its curves, its pairs; and a tuning."""

import numpy as np
import plotly.graph_objects as go

from specviz.analysis.arena import OPTIMAL_ORACLE, Arena, Entry
from specviz.analysis.arena_table import chosen_values
from specviz.analysis.tuning import FLAT, Tuning
from specviz.plots.speedups import heat_map_figure
from specviz.plots.style import (
    DASHES,
    DRAFT,
    MODELLED,
    OTHER,
    OUTSIDE,
    RULE,
    SERIES,
    TARGET,
    colour_with_alpha,
    describe_pair,
    new_figure,
    plain,
    prompts,
)


def _about(result: Arena) -> list[str]:
    about = [describe_pair(result.pair), prompts(len(result.plain_seconds)), f"pass mode {result.pass_mode}"]
    about.append(f"drafts of at most {result.max_draft}")
    if result.outside:
        about.append(OUTSIDE)
    return about


def arena_figure(result: Arena) -> go.Figure:
    """Speedup of every policy with its interval, the fastest on top; and what it had where its knob was chosen."""
    about = [*_about(result), f"lines: {result.level:.0%} interval over prompts and pass times"]
    figure = new_figure("Every policy at its best knob", MODELLED, about, "speedup over plain decoding (×)", "")
    entries = result.entries[::-1]
    names = [plain(entry.label) for entry in entries]

    def error(entry: Entry, side: str) -> float:
        reach = entry.speedup.high - entry.speedup.value if side == "high" else entry.speedup.value - entry.speedup.low
        return max(0.0, reach) if np.isfinite(reach) else 0.0

    figure.add_scatter(
        y=names,
        x=[entry.speedup.value for entry in entries],
        mode="markers",
        name="on prompts that did not choose the knob",
        marker={
            "color": [OTHER if entry.oracle else DRAFT for entry in entries],
            "symbol": ["diamond" if entry.oracle else "circle" for entry in entries],
            "size": 10,
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [error(entry, "high") for entry in entries],
            "arrayminus": [error(entry, "low") for entry in entries],
            "color": OTHER,
            "thickness": 1.4,
            "width": 3,
        },
        customdata=[[entry.captured.value, entry.tokens_per_pass, entry.waste] for entry in entries],
        hovertemplate="%{y}: %{x:.3f}×<br>%{customdata[0]:.0%} of the oracle's gain<br>%{customdata[1]:.2f} tokens per "
        "target pass<br>%{customdata[2]:.0%} of draft steps wasted<extra></extra>",
    )
    tuned = [entry for entry in entries if entry.knob]
    figure.add_scatter(
        y=[plain(entry.label) for entry in tuned],
        x=[entry.chosen_speedup for entry in tuned],
        mode="markers",
        name="on the prompts that chose it",
        marker={"symbol": "line-ns-open", "size": 12, "color": TARGET, "line": {"width": 2}},
        customdata=[chosen_values(entry) for entry in tuned],
        hovertemplate="%{y}: %{x:.3f}× where chosen<br>knob %{customdata}<extra></extra>",
    )
    figure.add_vline(x=1, line={"color": OTHER, "width": 1.5, "dash": "dot"})
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names)
    return figure


def knob_figure(result: Arena, label: str) -> go.Figure:
    """One policy's speedup over its knob, beside the optimal oracle and plain decoding."""
    entry = result.entry(label)
    figure = new_figure(
        f"{entry.label} over its knob", MODELLED, _about(result), plain(entry.knob), "speedup over plain decoding (×)"
    )
    figure.add_scatter(
        x=entry.values,
        y=entry.curve,
        mode="lines+markers",
        name=plain(entry.label),
        line={"color": DRAFT, "dash": DASHES[MODELLED], "width": 2},
        hovertemplate="%{x:g}: %{y:.3f}×<extra></extra>",
    )
    for place, value in enumerate(dict.fromkeys(entry.chosen)):
        words = {} if place else {"annotation_text": "chosen", "annotation_position": "bottom right"}
        figure.add_vline(x=value, line={"color": DRAFT, "width": 1}, **words)
    best = result.entry(OPTIMAL_ORACLE).speedup.value
    figure.add_hline(
        y=best, line={"color": OTHER, "width": 1.5}, annotation_text="optimal oracle", annotation_opacity=0.7
    )
    figure.add_hline(y=1, line={"color": RULE, "width": 2}, annotation_text="no speculation", annotation_opacity=0.7)
    return figure


def pairs_figure(result: Arena) -> go.Figure:
    """How sure each difference is: p of the sign-flip test for every two policies, fastest first."""
    labels = [entry.label for entry in result.policies]
    values = np.full((len(labels), len(labels)), np.nan)
    words = [[""] * len(labels) for _ in labels]
    for (faster, slower), chance in result.tests.items():
        row, column = labels.index(slower), labels.index(faster)
        sure = (faster, slower) in result.sure
        for place in ((row, column), (column, row)):
            values[place] = chance
            words[place[0]][place[1]] = "●" if sure else ""
    figure = new_figure(
        "More than the choice of prompts?",
        MODELLED,
        [*_about(result), "p of a sign-flip test over prompts", "● significant after Holm's correction at 5 %"],
        "",
        "",
    )
    names = [plain(label) for label in labels]
    figure.add_heatmap(
        x=names,
        y=names,
        z=values,
        zmin=0,
        zmax=1,
        colorscale=[[0, TARGET], [0.05, colour_with_alpha(TARGET, 0.55)], [0.3, "rgba(128,128,128,0.12)"], [1, RULE]],
        colorbar={"title": {"text": "p"}, "thickness": 12, "outlinewidth": 0},
        text=words,
        texttemplate="%{text}",
        hovertemplate="%{y} and %{x}<br>p = %{z:.3f}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    figure.update_xaxes(showgrid=False, tickangle=-45)
    figure.update_yaxes(showgrid=False, autorange="reversed")
    return figure


def tuning_figures(tuning: Tuning) -> list[go.Figure]:
    """Speedup over the threshold at each choice's draft length with its flat top, then the grid of the best choice."""
    about = [describe_pair(tuning.pair), prompts(tuning.prompts), f"pass mode {tuning.pass_mode}"]
    about.append(f"thick: within {FLAT:.0%} of the best")
    figure = new_figure(
        "Where the top is, and how flat", MODELLED, about, "threshold τ", "speedup over plain decoding (×)"
    )
    fates = {"drop": "withheld", "keep": "proposed"}
    for colour, symbol, choice in zip(SERIES, ("star", "diamond"), (tuning.drop, tuning.keep), strict=False):
        cells = choice.cells
        column = int(np.flatnonzero(cells.max_drafts == choice.max_draft)[0])
        curve, name = cells.speedup[:, column], f"failing token {fates[choice.name]}, γ = {choice.max_draft}"
        inside = (cells.thresholds >= choice.flat[0]) & (cells.thresholds <= choice.flat[1])
        common = {"legendgroup": name, "hovertemplate": "τ = %{x:.2f}<br>%{y:.3f}×<extra>" + name + "</extra>"}
        line = {"color": colour, "dash": DASHES[MODELLED], "width": 2}
        figure.add_scatter(x=cells.thresholds, y=curve, mode="lines", name=name, line=line, **common)
        figure.add_scatter(
            x=cells.thresholds[inside],
            y=curve[inside],
            mode="lines",
            line={"color": colour_with_alpha(colour, 0.4), "width": 9},
            name="flat top",
            showlegend=False,
            **common,
        )
        figure.add_scatter(
            x=[choice.threshold],
            y=[choice.speedup.value],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 12},
            name="best",
            showlegend=False,
            **common,
        )
    fixed = tuning.fixed.speedup.value
    name = f"no threshold, γ = {tuning.fixed.max_draft}"  # in the legend: on the line, `keep` would end in the words
    figure.add_scatter(
        x=[0, 1],
        y=[fixed, fixed],
        mode="lines",
        name=name,
        line={"color": OTHER, "dash": DASHES[MODELLED], "width": 1.5},
        hovertemplate="%{y:.3f}×<extra>" + name + "</extra>",
    )
    figure.add_hline(y=1, line={"color": RULE, "width": 2}, annotation_text="no speculation", annotation_opacity=0.7)
    figure.update_xaxes(range=[0, 1])
    best = tuning.best if tuning.best.name != "fixed" else tuning.drop
    return [figure, heat_map_figure(best.cells)]
