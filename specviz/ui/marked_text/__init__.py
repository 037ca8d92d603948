"""A text in tokens: with marks where it differs from another, or with tokens to click."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import streamlit as st

from specviz.ui.status_style import status_css

FOLDER = Path(__file__).parent


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_marked_text",
        html=(FOLDER / "marked.html").read_text("utf-8"),
        css=(FOLDER / "marked.css").read_text("utf-8") + status_css(".marked"),
        js=(FOLDER / "marked.js").read_text("utf-8"),
    )


def marked_text(key: str, tokens: Sequence[str], differs: Sequence[bool]) -> None:
    """Show tokens; those that differ are marked."""
    data = [[token, "differs" if marked else ""] for token, marked in zip(tokens, differs, strict=True)]
    _component()(key=key, data={"tokens": data, "choose": False})


def chosen_place(key: str, number: int) -> int:
    """The token that the reader clicked last in `token_choice(key, …)`, the first to begin with."""
    place = (st.session_state.get(key) or {}).get("place", 0)
    return min(max(0, int(place)), number - 1)


def token_choice(key: str, tokens: Sequence[tuple[str, str]], place: int) -> None:
    """Show tokens, each with its status in a trace, as buttons, the one at `place` chosen."""
    data = {"tokens": [list(token) for token in tokens], "choose": True, "place": place}
    _component()(key=key, data=data, on_place_change=lambda: None)
