"""Plain and speculative decoding of one prompt, side by side on one clock."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import streamlit as st

FOLDER = Path(__file__).parent
Moments = list[list[float]]  # [seconds since the first token's pass began, output tokens committed by then]


@cache
def _component() -> Callable:
    return st.components.v2.component(
        "specviz_race", **{kind: (FOLDER / f"race.{kind}").read_text("utf-8") for kind in ("html", "css", "js")}
    )


def race_view(key: str, race: str, tokens: list[str], plain: Moments, speculative: Moments, origin: str) -> None:
    """Show the race `race`.

    Args:
        tokens: the output's tokens as shown; both lanes produce the same.
        origin: where the times come from, such as "measured on …".
    """
    _component()(
        key=key,
        data={
            "key": race,
            "tokens": tokens,
            "lanes": [
                {"name": "Plain", "origin": origin, "moments": plain},
                {"name": "Speculative", "origin": origin, "moments": speculative},
            ],
        },
    )
