"""Two outputs of the same prompt, one under the other, with the place where they part."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import streamlit as st

FOLDER = Path(__file__).parent


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_text_difference",
        **{kind: (FOLDER / f"difference.{kind}").read_text("utf-8") for kind in ("html", "css", "js")},
    )


def text_difference(key: str, texts: list[dict]) -> None:
    """Show texts, each {"name", "same": [token text], "parting": token text or None, "after": [token text], "note"}."""
    _component()(key=key, data={"texts": texts})
