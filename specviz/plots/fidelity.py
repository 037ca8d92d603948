"""Figures about fidelity: speedup against drift, and the acceptance of one token."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from specviz.analysis.fidelity import AcceptancePicture, TradeOff
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
)
from specviz.replay.rules import LOSSLESS
from specviz.trace import PairInfo

DRIFTS = {
    "total_variation": "total variation from the target, per token",
    "kl": "KL from the target, nats per token",
    "perplexity": "perplexity under the target",
}
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "star", "hexagon")


def trade_off_figure(
    points: Sequence[TradeOff], pair: PairInfo, times_from: str, drift: str = "total_variation"
) -> go.Figure:
    """Speedup against drift, a curve a rule as its knob moves; lossless rules are single points at no drift.

    Args:
        pair: whose distributions were compared.
        times_from: the device on which passes were timed.
        drift: a key of DRIFTS.
    """
    figure = new_figure(
        "Speedup against drift",
        MODELLED,
        [describe_pair(pair), f"times from {times_from}", "expected over texts of the target"],
        DRIFTS[drift],
        "speedup over plain decoding (×)",
    )
    names = list(dict.fromkeys(point.rule.name for point in points))
    for number, name in enumerate(names):
        chosen = [point for point in points if point.rule.name == name]
        claim = chosen[0].rule.claim
        colour = SERIES[number % len(SERIES)]
        figure.add_scatter(
            x=[getattr(point, drift) for point in chosen],
            y=[point.speedup for point in chosen],
            mode="markers" if len(chosen) == 1 else "lines+markers",
            name=f"{name} ({claim})",
            line={"color": colour, "dash": DASHES[MODELLED], "width": 2},
            marker={
                "color": colour,
                "symbol": SYMBOLS[number % len(SYMBOLS)] + ("" if claim == LOSSLESS else "-open"),
                "size": 11 if claim == LOSSLESS else 8,
                "line": {"width": 2, "color": colour},
            },
            customdata=[
                [str(point.rule), point.acceptance_rate, point.agreement, point.perplexity, point.kl]
                for point in chosen
            ],
            hovertemplate="%{customdata[0]}: %{y:.3f}×<br>accepted %{customdata[1]:.1%} of proposed<br>"
            "agreement %{customdata[2]:.1%}<br>perplexity %{customdata[3]:.2f}, KL %{customdata[4]:.4f}"
            "<extra></extra>",
        )
    figure.add_hline(y=1, line={"color": RULE, "width": 2}, annotation_text="no speculation", annotation_opacity=0.7)
    return figure


def acceptance_picture_figure(picture: AcceptancePicture, tokens: Sequence[str], rule: str) -> go.Figure:
    """How one drafted token is judged: p and q, their overlap, the residual, and what the text gets.

    Args:
        tokens: texts of the tokens of the picture, likeliest to the target first; shown as plain text.
        rule: the rule's name, for the title.
    """
    figure = new_figure(
        f"One token under {rule}", REPLAYED, ["the likeliest tokens, all others together"], "probability", ""
    )
    labels = [f"{place + 1}. {plain(repr(token))}" for place, token in enumerate(tokens)]
    bars = (
        ("target p", picture.p, {"color": colour_with_alpha(TARGET, 0.85)}),
        ("draft q", picture.q, {"color": colour_with_alpha(DRAFT, 0.85)}),
        ("overlap min(p, q)", picture.overlap, {"color": "#009E73", "pattern": {"shape": "/", "size": 5}}),
        ("residual (p − q)⁺", picture.residual, {"color": "#E69F00", "pattern": {"shape": "x", "size": 5}}),
    )
    for name, values, marker in bars:
        figure.add_bar(
            x=values,
            y=labels,
            orientation="h",
            name=name,
            marker=marker,
            customdata=np.stack([picture.accept, picture.effective], -1),
            hovertemplate=f"{name}: %{{x:.4f}}<br>accepted with chance %{{customdata[0]:.3f}} if drafted<br>"
            "the text gets it with %{customdata[1]:.4f}<extra></extra>",
        )
    figure.add_scatter(
        x=picture.effective,
        y=labels,
        mode="markers",
        name="what the text gets",
        marker={"color": OTHER, "symbol": "line-ns", "size": 16, "line": {"width": 3, "color": OTHER}},
        hovertemplate="the text gets it with %{x:.4f}<extra></extra>",
    )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure
