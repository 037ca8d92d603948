"""Figures about a pair at several precisions."""

from collections.abc import Sequence

import plotly.graph_objects as go

from specviz.analysis.precisions import Combination, PrecisionComparison, draft_reliability
from specviz.plots.style import MEASURED, OTHER, SERIES, new_figure, plain, prompts


def reliability_figure(comparison: PrecisionComparison, combinations: Sequence[Combination]) -> go.Figure:
    """How often the draft is right at each confidence, one line a combination; on the diagonal it is calibrated."""
    pair = combinations[0].recordings.pair
    about = [
        f"{pair.target} with {pair.draft} on {pair.device}",
        prompts(len(combinations[0].tokens)),
        "ten bins of equal width; larger markers hold more positions",
    ]
    figure = new_figure("Is the draft as often right as it is sure?", MEASURED, about, "confidence", "share right")
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": OTHER, "dash": "dot"}, name="calibrated", hoverinfo="skip"
    )
    for combination in combinations:
        number = comparison.combinations.index(combination)
        found = draft_reliability(combination.recordings.recordings)
        figure.add_scatter(
            x=found.confidence,
            y=found.agreement,
            customdata=found.counts,
            mode="lines+markers",
            name=f"{plain(combination.label)} (mean gap {found.gap:.3f})",
            line={"color": SERIES[number % len(SERIES)], "width": 2},
            marker={"symbol": number, "size": 5 + 14 * (found.counts / found.counts.max()) ** 0.5},
            hovertemplate="%{x:.2f} sure, %{y:.0%} right<br>%{customdata} positions<extra></extra>",
        )
    figure.update_xaxes(range=[0, 1.02])
    figure.update_yaxes(range=[0, 1.04], tickformat=".0%")
    return figure
