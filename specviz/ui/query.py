"""What a link carries: the gallery item, the threshold and the draft length. The page is the path."""

import math

import streamlit as st

DEFAULT_TAU = 0.4
DEFAULT_MAX_DRAFT = 5


def tau_from_link() -> float:
    """The threshold that the link asks for; a default where it asks for none or for nonsense."""
    try:
        tau = float(st.query_params.get("tau", DEFAULT_TAU))
    except ValueError:
        return DEFAULT_TAU
    return min(1.0, max(0.0, tau)) if math.isfinite(tau) else DEFAULT_TAU


def max_draft_from_link(longest: int) -> int:
    """The draft length that the link asks for, within 1 and `longest`."""
    try:
        asked = int(st.query_params.get("gamma", DEFAULT_MAX_DRAFT))
    except ValueError:
        asked = DEFAULT_MAX_DRAFT
    return min(longest, max(1, asked))


def item_from_link(names: list[str]) -> str | None:
    """The gallery item that the link names, if there is such an item."""
    name = st.query_params.get("item")
    return name if name in names else None


def put_into_link(**values: str | float | int) -> None:
    """Write into the address bar, without a rerun, what differs from what stands there."""
    for name, value in values.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if st.query_params.get(name) != text:
            st.query_params[name] = text
