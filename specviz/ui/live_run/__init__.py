"""A run while it happens: its rounds appear as they are committed."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import streamlit as st

from specviz.ui.status_style import status_css

FOLDER = Path(__file__).parent


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_live_run",
        html=(FOLDER / "run.html").read_text("utf-8"),
        css=(FOLDER / "run.css").read_text("utf-8") + status_css(".run"),
        js=(FOLDER / "run.js").read_text("utf-8"),
    )


def live_run(key: str, run: str, rounds: list[dict]) -> None:
    """Show the rounds so far, each {"drafted": [[text, status]], "own": [text, status] or None}; `run` names it."""
    _component()(key=key, data={"key": run, "rounds": list(rounds)})
