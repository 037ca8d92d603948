"""Points measured for real: asked for on one page, used on every page of the session that shows the same recordings."""

import streamlit as st

from specviz.analysis.checks import Check, check
from specviz.analysis.comparison import MeasuredPoint
from specviz.models.defaults import PASS_MODE
from specviz.trace import Recording
from specviz.ui.library import ShownSet
from specviz.ui.requests import Drawing, MeasureRequest
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import workshop

MOST_MEASURED = 10  # prompts: a measurement runs for real; as `tune --measure`
JOB, OF_JOB = "measure-job", "measured-recordings"  # keys of the session: the latest job, and what it measures
POINTS = "points"  # key: id of a job -> (the recordings it measured, its point)


def measured_points(offered: ShownSet) -> list[MeasuredPoint]:
    """Points that this session measured on these recordings, the latest of each setting."""
    _take_finished_point()
    latest = {}
    for recordings, point in st.session_state.get(POINTS, {}).values():
        if _same(recordings, offered.recordings):
            latest[point.threshold, point.max_draft, point.on_fail] = point
    return list(latest.values())


def checks_of(offered: ShownSet) -> list[Check]:
    """The same beside what the set's cost model predicts for them."""
    return [check(point, offered.recordings, offered.cost) for point in measured_points(offered)]


def _same(recordings: list[Recording], others: list[Recording]) -> bool:
    return len(recordings) == len(others) and all(a is b or a == b for a, b in zip(recordings, others, strict=True))


def _take_finished_point() -> None:
    """Keep the point of a job that has ended. Whoever looks for points takes it, so that the page that is drawn when
    the job ends has it, wherever on the page it asks and whichever page it is."""
    job = workshop().job(st.session_state.get(JOB))
    if job is not None and job.point is not None:
        st.session_state.setdefault(POINTS, {}).setdefault(job.id, (st.session_state[OF_JOB], job.point))


def measure_form(offered: ShownSet, tau: float, max_draft: int, on_fail: str) -> None:
    """Offer to run one setting for real on the set's first prompts."""
    job = workshop().job(st.session_state.get(JOB))
    if job is not None and not job.over:
        watch(job.id, "measure")
        return
    if job is not None:
        outcome(job)
    pair, pass_mode = offered.members[0].pair, offered.recordings[0].settings.get("pass_mode")
    if pair is None:
        st.caption(
            "These settings cannot be measured for real: the file names models that the app's catalogue does not have. "
            "Run the prompts on the Explore page or below with those models, then measure."
        )
        return
    if pass_mode != PASS_MODE:
        st.caption(
            f"These settings cannot be measured for real: the set was recorded in pass mode {pass_mode}, and the app "
            f"runs pairs in pass mode {PASS_MODE}. Record the prompts here, then measure."
        )
        return
    measured = offered.members[:MOST_MEASURED]
    prompts = tuple(tuple(shown.recording.prompt_ids.tolist()) for shown in measured)
    longest = max(len(shown.recording.output_ids) for shown in measured)
    words = f"Measure τ = {tau:.3f}, γ = {max_draft}, {on_fail} for real, on {len(prompts)} prompt"
    if st.button(
        words + "s" * (len(prompts) > 1),
        key="measure-run",
        help="Loads the pair and runs each prompt plainly and speculatively, in turns.",
    ):
        drawing = Drawing.of(offered.recordings[0])
        request = MeasureRequest(pair, prompts, longest, tau, max_draft, drawing, on_fail)
        st.session_state[OF_JOB] = offered.recordings
        st.session_state[JOB] = workshop().submit(request).id
        st.rerun()
