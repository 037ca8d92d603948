"""A text whose tokens are shaded by a number, with the number and more on hover, focus or touch."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import streamlit as st

FOLDER = Path(__file__).parent


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_shaded_text", **{kind: (FOLDER / f"text.{kind}").read_text("utf-8") for kind in ("html", "css", "js")}
    )


def shaded_text(
    key: str, tokens: list[str], shades: list[float], notes: list[str], breaks: list[int], colour: str, label: str
) -> None:
    """Show the tokens, each with its shade.

    Args:
        shades: 0 (none) to 1 (full), one a token.
        notes: what to say of each token.
        breaks: tokens at which a stretch begins; a thin mark stands before them.
        colour: of the shade, `#rrggbb`.
        label: what the shade means, for the legend.
    """
    data = {"tokens": tokens, "shades": shades, "notes": notes, "breaks": breaks, "colour": colour, "label": label}
    _component()(key=key, data=data)
