"""Several combinations of precisions under one moving threshold.

Python packs every curve at every thousandth of the threshold; the script looks it up and moves markers and numbers,
frame by frame while the handle moves. When the handle is let go, the threshold comes back to Python.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import streamlit as st

from specviz.analysis.metrics import metrics
from specviz.analysis.precisions import Combination, PrecisionComparison
from specviz.plots.style import SERIES

FOLDER = Path(__file__).parent
HELPERS = FOLDER.parent / "live_panel" / "dom.js"  # shared with the live panel; Streamlit takes one script
STEPS = 1000  # of the slider from 0 to 1


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_precision_panel",
        html=(FOLDER / "panel.html").read_text("utf-8"),
        css=(FOLDER / "panel.css").read_text("utf-8"),
        js="\n".join(path.read_text("utf-8") for path in (HELPERS, FOLDER / "panel.js")),
    )


def pack_lines(comparison: PrecisionComparison, combinations: Sequence[Combination], max_draft: int) -> list[dict]:
    """What the panel draws of each combination at one draft length; JSON-able.

    `speedup` (over its own plain decoding), `overFull` (over that of the full-precision target), `rate` (tokens per
    second), `acceptance` (null where nothing is proposed) and `perPass` (tokens per target pass) have one value for
    each threshold 0, 0.001 .. 1: the exact one, since the curve holds from each of its steps to the next.
    """
    lines = []
    thresholds = np.arange(STEPS + 1) / STEPS
    for place, combination in enumerate(combinations):
        curve = combination.curve(max_draft)
        at = np.maximum(np.searchsorted(curve.thresholds, thresholds, side="right") - 1, 0)
        found = metrics(curve.counts)
        columns = {
            "speedup": curve.speedup,
            "overFull": comparison.over_full(curve.seconds, combination),
            "rate": combination.tokens.sum() / curve.seconds.sum(axis=0),
            "acceptance": found.acceptance_rate,
            "perPass": found.tokens_per_target_pass,
        }
        lines.append(
            {
                "label": combination.label,
                "colour": SERIES[place % len(SERIES)],
                "mark": place,
                "plainRate": combination.plain_rate,
                "plainOverFull": combination.plain_rate / comparison.baseline.plain_rate,
                "megabytes": round(combination.memory_bytes / 1e6),
            }
            | {name: _rounded(values[at]) for name, values in columns.items()}
        )
    return lines


def _rounded(values: np.ndarray) -> list[float | None]:
    return [None if value != value else value for value in np.round(values, 4).tolist()]


def settled(key: str, tau: float, max_draft: int) -> tuple[float, int]:
    """The threshold and the draft length that the panel `key` last settled on, or these if it has not."""
    state = st.session_state.get(key) or {}
    return min(1.0, max(0.0, float(state.get("tau", tau)))), int(state.get("gamma", max_draft))


def precision_panel(
    *, key: str, shown: str, lines: list[dict], tau: float, max_draft: int, longest_draft: int, full: str, about: str
) -> None:
    """Show the panel; `settled` tells where its threshold and draft length stand.

    Args:
        shown: names what is shown.
        lines: from `pack_lines` at `max_draft`.
        tau: the threshold to begin with; later the panel keeps its own.
        full: precision of the full-precision baseline.
        about: where recordings and times come from.
    """
    _component()(
        key=key,
        data={
            "key": shown,
            "lines": lines,
            "tau": tau,
            "gamma": max_draft,
            "longestDraft": longest_draft,
            "full": full,
            "about": about,
        },
        on_tau_change=lambda: None,
        on_gamma_change=lambda: None,
    )
