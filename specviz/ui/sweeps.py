"""Curves and grids of recording sets, worked out once per set."""

import streamlit as st

from specviz.analysis import SpeedupCurve, SpeedupGrid, grid, speedup_curve
from specviz.errors import SpecVizError
from specviz.ui.library import ShownSet


def curve_of(offered: ShownSet, max_draft: int) -> SpeedupCurve:
    """The exact speedup curve of a set at one draft length.

    Raises:
        SpecVizError: the set has no cost model, or does not cover this draft length.
    """
    return _curve(offered, tuple(shown.name for shown in offered.members), max_draft)


def grid_of(offered: ShownSet) -> SpeedupGrid:
    """Speedups of a set over thresholds and draft lengths."""
    return _grid(offered, tuple(shown.name for shown in offered.members))


def _cost(offered: ShownSet):
    if offered.cost is None:
        raise SpecVizError(f"“{offered.title}” has no cost model, so it has no speedups; choose another set.")
    return offered.cost


def _pass_mode(offered: ShownSet) -> str | None:
    return offered.recordings[0].settings.get("pass_mode")


@st.cache_resource(max_entries=64, show_spinner=False)
def _curve(_offered: ShownSet, names: tuple[str, ...], max_draft: int) -> SpeedupCurve:
    mode = _pass_mode(_offered)
    return speedup_curve(_offered.recordings, _cost(_offered), max_draft, pass_mode=mode, outside="clamp")


@st.cache_resource(max_entries=16, show_spinner=False)
def _grid(_offered: ShownSet, names: tuple[str, ...]) -> SpeedupGrid:
    return grid(_offered.recordings, _cost(_offered), pass_mode=_pass_mode(_offered), outside="clamp")
