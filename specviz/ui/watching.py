"""A job while it waits and runs: its place, its progress, and the button that stops it."""

import streamlit as st

from specviz.trace.statuses import STATUSES
from specviz.ui.live_run import live_run
from specviz.ui.requests import RunRequest
from specviz.ui.terms import term_line
from specviz.ui.workshop import FAILED, LOADING, MEASURING, RUNNING, STOPPED, WAITING, Job, workshop

LOOK_AGAIN_SECONDS = 1.0


@st.fragment(run_every=LOOK_AGAIN_SECONDS)
def watch(job_id: str, key: str) -> None:
    """Look at a job again and again; when it is over, or has something new to show, the page runs again."""
    job = workshop().job(job_id)
    if job is None or job.over:
        st.rerun()
    seen = f"{key}-seen"
    if job.shown is not None and st.session_state.get(seen) != job.shown.name:
        st.session_state[seen] = job.shown.name
        st.rerun()
    left, right = st.columns([5, 1], vertical_alignment="center")
    with left:
        if job.state == WAITING:
            ahead = workshop().jobs_before(job)
            turn = f"{ahead} {'run is' if ahead == 1 else 'runs are'} ahead of yours" if ahead else "yours is next"
            st.text(f"Waiting: {turn}.")
        else:
            _progress(job)
    # stopped before the page draws again, so that it says so at once
    right.button(
        "Stop", key=f"{key}-stop", width="stretch", disabled=job.stop_asked, on_click=workshop().stop, args=(job,)
    )
    if job.rounds and job.shown is None:
        live_run(f"{key}-live", job.id, job.rounds)
        term_line(STATUSES, f"{key}-live")


def _progress(job: Job) -> None:
    words, share = job.stage or "Working", job.done or 0
    if job.state == MEASURING:
        words = "Measuring the times of this pair's passes, once, for about a minute; the speedup follows"
    elif job.state == RUNNING and isinstance(job.request, RunRequest) and not job.done:
        share = _committed(job) / job.request.max_new_tokens
    elif job.total:
        share = (job.done or 0) / job.total
        words = f"{words}: {(job.done or 0) / 1e6:,.0f} of {job.total / 1e6:,.0f} MB"
    st.text("Stopping" if job.stop_asked else words)
    if share or job.state != LOADING:
        st.progress(min(1.0, max(0.0, share)))


def _committed(job: Job) -> int:
    return sum(
        (told["own"] is not None) + sum(status == "accepted" for _, status in told["drafted"])
        for told in list(job.rounds)
    )


def say_not_kept(job: Job) -> None:
    """Say that the project folder could not take what a job recorded, and why."""
    st.warning("This recording is not kept: it can be used in this session, and saved on the Data page.")
    st.text(job.not_kept)


def outcome(job: Job) -> None:
    """How a job that is over ended, if that needs saying."""
    if job.state == FAILED:
        st.error("The run failed.")
        st.text(job.message)
    elif job.state == STOPPED:
        kept = (job.shown, *job.members) if job.shown else job.members
        words = "Stopped. What was there by then is kept." if kept else "Stopped."
        if any(shown.cost is None for shown in kept):
            words += " The speedup is missing: the times of the pair's passes are measured after the next run."
        st.info(words)
    for sentence in job.notes:
        st.text(sentence)
    for name, sentence in job.failures.items():
        st.text(f"Prompt {name} was left out: {sentence}")
    memory = workshop().memory_bytes()
    if memory:
        st.caption(f"Weights in memory: {memory / 1e6:,.1f} MB, kept for the next run.")
