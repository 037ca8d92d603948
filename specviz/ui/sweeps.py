"""Curves and grids of recording sets, worked out once per set; sweeps that record sets."""

import streamlit as st

from specviz.analysis import SpeedupCurve, SpeedupGrid, grid, speedup_curve
from specviz.analysis.prompts import Prompt, default_prompts, parse_prompts
from specviz.errors import SpecVizError
from specviz.ui.library import ShownSet
from specviz.ui.own_prompt import RECORDED_DRAFT, choose_drawing, choose_pair
from specviz.ui.requests import SweepRequest
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import workshop


def curve_of(offered: ShownSet, max_draft: int, on_fail: str = "drop") -> SpeedupCurve:
    """The exact speedup curve of a set at one draft length and fate of the token that fails.

    Raises:
        SpecVizError: the set has no cost model, or does not cover this draft length.
    """
    return _curve(offered, _names(offered), max_draft, on_fail)


def grid_of(offered: ShownSet, on_fail: str = "drop") -> SpeedupGrid:
    """Speedups of a set over thresholds and draft lengths, at one fate of the token that fails."""
    return _grid(offered, _names(offered), on_fail)


def _names(offered: ShownSet) -> tuple[str, ...]:
    return tuple(shown.name for shown in offered.members)


def _cost(offered: ShownSet):
    if offered.cost is None:
        raise SpecVizError(f"“{offered.title}” has no cost model, so it has no speedups; choose another set.")
    return offered.cost


@st.cache_resource(max_entries=64, show_spinner=False)
def _curve(_offered: ShownSet, names: tuple[str, ...], max_draft: int, on_fail: str) -> SpeedupCurve:
    return speedup_curve(_offered.recordings, _cost(_offered), max_draft, on_fail=on_fail)


@st.cache_resource(max_entries=16, show_spinner=False)
def _grid(_offered: ShownSet, names: tuple[str, ...], on_fail: str) -> SpeedupGrid:
    return grid(_offered.recordings, _cost(_offered), on_fail=on_fail)


def sweep_form() -> None:
    """Record a set of prompts; the set is then on offer on every page of this session."""
    job = workshop().job(st.session_state.get("sweep-job"))
    if job is not None and not job.over:
        watch(job.id, "sweep")
        return
    if job is not None:
        outcome(job)
    own = st.file_uploader(
        "Prompts: one a line, or JSON lines with `prompt` or `turns`. Without a file: the 40 prompts of SpecViz.",
        type=["txt", "jsonl"],
        key="sweep-file",
    )
    choice, tokens = choose_pair("sweep")
    drawing = choose_drawing("sweep")
    most = st.number_input("Most prompts", 1, 1000, 8, key="sweep-most")
    if st.button("Record this set", key="sweep-run"):
        prompts = _prompts(own)[: int(most)]
        if not (choice.target and choice.draft):
            st.warning("Name both models: a target and its draft.")
            return
        request = SweepRequest(choice, tuple(prompts), tokens, RECORDED_DRAFT, drawing)
        st.session_state["sweep-job"] = workshop().submit(request).id
        st.rerun()


def _prompts(upload) -> list[Prompt]:
    if upload is None:
        return default_prompts()
    try:
        return parse_prompts(upload.getvalue().decode("utf-8-sig"), "This file")
    except UnicodeDecodeError as error:
        raise SpecVizError(f"This file is not UTF-8 text (byte {error.start}); save it as UTF-8.") from error
