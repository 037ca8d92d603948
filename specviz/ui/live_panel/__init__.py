"""The live panel: one recording under a moving threshold.

Python packs what is true at every threshold (`specviz.ui.panel_data`); the scripts beside this file look it up and draw
it, frame by frame while the handle moves. When the handle is let go, the threshold comes back to Python.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import streamlit as st

from specviz.replay.policies import ON_FAIL
from specviz.ui.panel_data import STATUS_LETTERS, TARGET_LETTERS
from specviz.ui.status_style import status_css
from specviz.ui.terms import TERM_CSS, term_script

FOLDER = Path(__file__).parent
# Streamlit takes one script; these are its parts, in an order in which each finds what it needs.
SCRIPTS = ("dom", "lookup", "slider", "strip", "lane", "curve", "card", "playback", "panel")

PARTS = (
    "prompt",
    "readouts",
    "slider",
    "changes",
    "play",
    "gamma",
    "fate",
    "strip",
    "lane",
    "curve",
    "numbers",
    "classifier",
    "about",
)


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_live_panel",
        html=(FOLDER / "panel.html").read_text("utf-8"),
        css=status_css(".panel") + TERM_CSS + (FOLDER / "panel.css").read_text("utf-8"),
        js="\n".join(
            (f"const STATUS = {json.dumps(STATUS_LETTERS | TARGET_LETTERS)};", term_script())
            + tuple((FOLDER / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
        ),
    )


def settled(key: str, tau: float, max_draft: int, on_fail: str = "drop") -> tuple[float, int, str]:
    """The threshold, the draft length and the fate of the token that fails that the panel `key` last settled on, or
    these if it has not."""
    state = st.session_state.get(key) or {}
    tau, max_draft, on_fail = state.get("tau", tau), state.get("gamma", max_draft), state.get("fate", on_fail)
    return min(1.0, max(0.0, float(tau))), int(max_draft), on_fail if on_fail in ON_FAIL else ON_FAIL[0]


def drawn_setting(key: str) -> tuple[int, str] | None:
    """The draft length and the fate of the token that fails that the panel `key` told it has drawn; None before it is
    on screen. What follows the panel should wait for that: charts that come with it keep the browser busy, so that it
    is seen up to a second later."""
    drawn = (st.session_state.get(key) or {}).get("drawn")
    return None if drawn is None else (int(drawn[0]), str(drawn[1]))


def live_panel(
    *,
    key: str,
    item: str,
    recording: str,
    rounds: str,
    tau: float,
    draft_lengths: Sequence[int],
    about: str,
    measured: Sequence[dict] = (),
    parts: Sequence[str] = (),
    ghosts: bool = False,
    tells_when_drawn: bool = False,
) -> None:
    """Show the panel; `settled` gives the threshold, draft length and fate of the failing token it is at.

    Args:
        key: Streamlit's key of the component.
        item: names what is shown.
        recording: from `pack_recording`, as JSON text: made once, and read by the browser once.
        rounds: from `pack_rounds`, likewise.
        tau: the threshold to begin with; later the panel keeps its own, also from one item to the next. Give
            the same value in every run: whatever differs is sent and drawn again.
        draft_lengths: those on offer, rising.
        about: one or two sentences: where recording and times come from.
        measured: measured points as {"tau", "speedup"} and, where known, {"low", "high"}.
        parts: which of PARTS to show; all if none is named.
        ghosts: whether drafted tokens that did not make it are shown from the start.
        tells_when_drawn: whether the panel tells its `drawn_setting`.
    """
    _component()(
        key=key,
        data={
            "key": item,
            "tau": tau,
            "recording": recording,
            "rounds": rounds,
            "draftLengths": list(draft_lengths),
            "about": about,
            "measured": list(measured),
            "parts": list(parts),
            "ghosts": ghosts,
            "tellsWhenDrawn": tells_when_drawn,
        },
        on_tau_change=lambda: None,
        on_gamma_change=lambda: None,
        on_fate_change=lambda: None,
        on_drawn_change=lambda: None,
    )
