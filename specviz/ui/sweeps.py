"""Curves and grids of recording sets, worked out once per set; sweeps that record sets."""

import streamlit as st

from specviz.analysis import SpeedupCurve, SpeedupGrid, grid, speedup_curve
from specviz.analysis.prompts import Prompt, default_prompts, parse_prompts
from specviz.errors import SpecVizError
from specviz.trace.kept import kept_sets
from specviz.ui.choosing import links_to
from specviz.ui.library import KEPT, ShownSet
from specviz.ui.link_jobs import begin_sweep, current_sweep
from specviz.ui.own_prompt import RECORDED_DRAFT, choose_drawing
from specviz.ui.pairs import STAYS, choose_pair, is_named, remember_pair
from specviz.ui.requests import SweepRequest
from specviz.ui.watching import outcome, say_not_kept, watch
from specviz.ui.workshop import Job


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
    """Record a set of prompts, which is then on offer on every page. What is filled in stays for the next set."""
    job = current_sweep()
    busy = job is not None and not job.over
    if busy:
        watch(job.id, "sweep")
    elif job is not None:
        outcome(job)
        _say_recorded(job)
    own = st.file_uploader(
        "Prompts: one a line, or JSON lines with `prompt` or `turns`. Without a file: the 40 prompts of SpecViz.",
        type=["txt", "jsonl"],
        key="sweep-file",
    )
    choice, tokens = choose_pair("sweep")
    drawing = choose_drawing("sweep")
    most = st.number_input("Most prompts", 1, 1000, 8, key="sweep-most", persist_state=STAYS)
    if st.button("Record this set", key="sweep-run", disabled=busy) and is_named(choice):
        prompts = _prompts(own)[: int(most)]
        remember_pair(choice)
        begin_sweep(SweepRequest(choice, tuple(prompts), tokens, RECORDED_DRAFT, drawing))
        st.rerun()


def _say_recorded(job: Job) -> None:
    """Say what a finished job recorded, with links that open it."""
    number = len(job.members)
    if not number:
        return
    if job.not_kept:
        say_not_kept(job)
    elif job.kept not in kept_sets():
        st.info("The set that was recorded here is no longer in the project folder.")
        return
    st.success(f"Recorded {number} prompt{'s' * (number > 1)}. Open the set in:")
    links_to(KEPT + job.kept if job.kept else "sweep", ("Tuning", "Thresholds", "Policies", "Explore", "Data"))


def _prompts(upload) -> list[Prompt]:
    return default_prompts() if upload is None else parse_prompts(upload.getvalue(), upload.name)
