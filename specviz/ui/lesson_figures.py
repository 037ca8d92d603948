"""Figures that only the lessons draw."""

import numpy as np
import plotly.graph_objects as go

from specviz.analysis import CostModel, metrics
from specviz.analysis.iid import expected_tokens_per_pass
from specviz.plots.style import DASHES, DRAFT, MEASURED, MODELLED, OTHER, REPLAYED, TARGET, describe_pair, new_figure
from specviz.replay import RoundCounts, replay_grid
from specviz.ui.shown import Shown


def pass_times(cost: CostModel, pass_mode: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Widths of target passes and their median milliseconds at the shortest measured context.

    A plain step stands for the pass over one token where every pass of a round has one greater width.
    """
    times = cost.mode(pass_mode)
    widths, milliseconds = np.array(times.widths), times.target_pass.median[:, 0] * 1e3
    if widths[0] == 1:
        return widths, milliseconds
    return np.insert(widths, 0, 1), np.insert(milliseconds, 0, times.plain_step.median[0] * 1e3)


def pass_time_figure(cost: CostModel, pass_mode: str | None, tokens: int) -> go.Figure:
    """What one target pass takes over how many tokens, against as many single passes."""
    widths, milliseconds = pass_times(cost, pass_mode)
    one = float(cost.mode(pass_mode).plain_step.median[0] * 1e3)
    figure = new_figure(
        "One pass over several tokens", MEASURED, [describe_pair(cost.pair)], "tokens in a pass", "time (ms)"
    )
    figure.add_scatter(x=widths, y=milliseconds, name="one pass", mode="lines+markers", line={"color": TARGET})
    figure.add_scatter(
        x=widths, y=widths * one, name="as many passes of one token", mode="lines", line={"color": OTHER, "dash": "dot"}
    )
    figure.add_vline(x=tokens, line={"color": DRAFT, "width": 1.5})
    figure.update_yaxes(rangemode="tozero")
    return figure


def counts_by_draft_length(shown: Shown, tau: float, longest: int) -> RoundCounts:
    """Counts of one recording at one threshold, draft lengths 1 to `longest`."""
    found = replay_grid([shown.recording], [tau], np.arange(1, longest + 1)).counts
    return found.map(lambda values: values[0, 0])


def iid_figure(shown: Shown, longest: int) -> go.Figure:
    """Tokens per target pass against the draft length: the formula with the recording's own rate, and the recording."""
    lengths = np.arange(1, longest + 1)
    found = metrics(counts_by_draft_length(shown, 0.0, longest))
    rate = float(found.acceptance_rate_tested[0])
    figure = new_figure(
        "Tokens per pass, without a threshold",
        REPLAYED,
        [describe_pair(shown.recording.pair), f"formula with acceptance rate {rate:.2f}"],
        "draft length γ",
        "tokens per target pass",
    )
    figure.add_scatter(
        x=lengths,
        y=found.tokens_per_target_pass,
        name="this recording",
        mode="lines+markers",
        line={"color": DRAFT, "dash": DASHES[REPLAYED]},
    )
    figure.add_scatter(
        x=lengths,
        y=expected_tokens_per_pass(rate, lengths),
        name="i.i.d. formula",
        mode="lines",
        line={"color": OTHER, "dash": DASHES[MODELLED]},
    )
    figure.update_yaxes(rangemode="tozero")
    return figure


def draft_cost_figure(shown: Shown, tau: float, draft_cost: float, longest: int) -> go.Figure:
    """Speedup against the draft length if a draft step took `draft_cost` target passes, and nothing else any time."""
    lengths = np.arange(1, longest + 1)
    counts = counts_by_draft_length(shown, tau, longest)
    speedup = counts.emitted / (counts.rounds + draft_cost * counts.draft_steps)
    figure = new_figure(
        "Speedup if only passes took time",
        MODELLED,
        [f"draft step = {draft_cost:.2f} target passes", f"τ = {tau:.2f}"],
        "draft length γ",
        "speedup (×)",
    )
    figure.add_bar(x=lengths, y=speedup, marker={"color": [DRAFT if one > 1 else OTHER for one in speedup]})
    figure.add_hline(y=1, line={"color": OTHER, "dash": "dot"})
    figure.update_xaxes(dtick=1)
    return figure
