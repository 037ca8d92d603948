"""Own prompts: the form, the run as it happens, and what came of it."""

import streamlit as st

from specviz.models.catalogue import PAIRS
from specviz.ui.live_run import live_run
from specviz.ui.requests import PairChoice, RunRequest
from specviz.ui.shown import Shown
from specviz.ui.workshop import (
    FAILED,
    LOADING,
    MEASURING,
    RUNNING,
    STOPPED,
    WAITING,
    Job,
    workshop,
)

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8", "nf4", "fp4")
OTHER = "other"
RECORDED_DRAFT = 16
LOOK_AGAIN_SECONDS = 1.0


def prompt_form() -> None:
    """Ask for a prompt and hand it in."""
    titles = {pair.name: pair.title for pair in PAIRS} | {OTHER: "Another pair…"}
    prompt = st.text_area("Your prompt", key="own-text", height=100, placeholder="Explain tides to a child.")
    columns = st.columns([3, 2, 2, 2], vertical_alignment="bottom")
    name = columns[0].selectbox("Pair", list(titles), format_func=titles.get, key="own-pair")
    target_precision = columns[1].selectbox("Target precision", PRECISIONS, key="own-target-precision")
    draft_precision = columns[2].selectbox("Draft precision", PRECISIONS, key="own-draft-precision")
    tokens = columns[3].number_input("Most tokens", 1, 1024, 128, 16, key="own-tokens")
    if name == OTHER:
        either = st.columns(2)
        help_text = "A folder, a .gguf file, or a model's name on the hub. Target and draft must share a tokenizer."
        target = either[0].text_input("Target", key="own-target", help=help_text)
        draft = either[1].text_input("Draft", key="own-draft")
    else:
        pair = next(pair for pair in PAIRS if pair.name == name)
        target, draft = pair.target.source, pair.draft.source
        if pair.note:
            st.caption(pair.note)
    if st.button("Run and record", type="primary", key="own-run"):
        if not prompt.strip():
            st.warning("The prompt is empty: write what the model shall answer or continue.")
        elif not (target.strip() and draft.strip()):
            st.warning("Name both models: a target and its draft.")
        else:
            choice = PairChoice(target.strip(), draft.strip(), target_precision, draft_precision)
            job = workshop().submit(RunRequest(choice, prompt, int(tokens), RECORDED_DRAFT))
            st.query_params["run"] = job.id


def current_job() -> Job | None:
    """The run that the address names, if it is still kept."""
    return workshop().job(st.query_params.get("run"))


def finished_run() -> Shown | None:
    """What the run in the address recorded, if it has got that far."""
    job = current_job()
    return job.shown if job else None


def watch_run() -> None:
    """Show how the run in the address is doing, and look again by itself until it is over."""
    if not st.query_params.get("run"):
        return
    job = current_job()
    if job is None:
        st.info("That run has ended and is not kept any more. Hand the prompt in again to see it.")
    elif job.over:
        _outcome(job)
    else:
        _watch(job.id)


@st.fragment(run_every=LOOK_AGAIN_SECONDS)
def _watch(job_id: str) -> None:
    job = workshop().job(job_id)
    if job is None or job.over:
        st.rerun()
    if job.shown is not None and st.session_state.get("seen-run") != job.shown.name:
        st.session_state["seen-run"] = job.shown.name
        st.rerun()
    left, right = st.columns([5, 1], vertical_alignment="center")
    with left:
        if job.state == WAITING:
            ahead = workshop().jobs_before(job)
            turn = f"{ahead} {'run is' if ahead == 1 else 'runs are'} ahead of yours" if ahead else "yours is next"
            st.text(f"Waiting: {turn}.")
        else:
            _progress(job)
    if right.button("Stop", key="own-stop", width="stretch"):
        workshop().stop(job)
    if job.rounds and job.shown is None:
        live_run("live-run", job.id, job.rounds)


def _progress(job: Job) -> None:
    words = job.stage or "Working"
    if job.state == MEASURING:
        words = f"{words}: the times of this pair's passes, once. The speedup follows."
    if job.state == RUNNING and not job.done:
        share = len_of(job) / job.request.max_new_tokens
    elif job.total:
        share = (job.done or 0) / job.total
        words = f"{words}: {(job.done or 0) / 1e6:,.0f} of {job.total / 1e6:,.0f} MB"
    else:
        share = job.done or 0
    st.text(words)
    if share or job.state != LOADING:
        st.progress(min(1.0, max(0.0, share)))


def len_of(job: Job) -> int:
    """Tokens committed so far."""
    return sum(
        (told["own"] is not None) + sum(status == "accepted" for _, status in told["drafted"])
        for told in list(job.rounds)
    )


def _outcome(job: Job) -> None:
    if job.state == FAILED:
        st.error("The run failed.")
        st.text(job.message)
    elif job.state == STOPPED:
        st.info("Stopped. What was there by then is shown below." if job.shown else "Stopped.")
    memory = workshop().memory_bytes()
    if memory:
        st.caption(f"Weights in memory: {memory / 1e6:,.0f} MB, kept for the next run.")
