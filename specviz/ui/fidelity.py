"""What the Fidelity page shows: the gallery's report or this session's own, and the form that measures one."""

import streamlit as st

from specviz.analysis.fidelity_files import FACTS, read_fidelity
from specviz.analysis.fidelity_report import FidelityReport
from specviz.analysis.prompts import Prompt, default_prompts
from specviz.ui import query
from specviz.ui.gallery import gallery_folder
from specviz.ui.own_prompt import choose_sampling
from specviz.ui.pairs import STAYS, choose_pair, is_named, remember_pair
from specviz.ui.requests import FidelityRequest
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import workshop

JOB = "fidelity-job"
TEMPERATURE, TOKENS, FURTHER_PROMPTS = 0.8, 48, 3
LONGEST_DRAFT = 8
BECAME = {
    "accepted": "was drafted here and stood",
    "rejected": "was drafted here and rejected",
    "withheld": "was drafted here, but the draft was not confident enough to propose it",
    "correction": "is what the target drew here instead of the rejected token",
    "bonus": "is the target's own, after everything proposed was accepted",
    "plain": "is the target's own: nothing was proposed",
}


def own_report() -> FidelityReport | None:
    """What this session measured, if it has."""
    job = workshop().job(st.session_state.get(JOB))
    return job.fidelity if job is not None else None


def gallery_report() -> FidelityReport | None:
    """The one that comes with SpecViz, read once and again when its file changes; None where there is none.

    Raises:
        SpecVizError: it is damaged.
    """
    path = gallery_folder() / "fidelity" / FACTS
    return _read(str(path.parent), path.stat().st_mtime_ns) if path.exists() else None


@st.cache_resource(max_entries=4, show_spinner=False)
def _read(folder: str, changed: int) -> FidelityReport:
    return read_fidelity(folder)


def run_form() -> None:
    """Measure a report of the reader's own prompt and pair."""
    job = workshop().job(st.session_state.get(JOB))
    if job is not None and not job.over:
        watch(job.id, "fidelity")
        return
    if job is not None:
        outcome(job)
    prompt = st.text_area(
        "Your prompt", key="fidelity-text", height=100, placeholder="Explain tides to a child.", persist_state=STAYS
    )
    choice, tokens = choose_pair("fidelity", TOKENS)
    with st.expander("Sampling"):
        sampling, seed = choose_sampling("fidelity", TEMPERATURE)
    further = st.number_input(
        "Further prompts, from SpecViz's own set, for the chart and the greedy test",
        0,
        40,
        FURTHER_PROMPTS,
        key="fidelity-further",
        persist_state=STAYS,
    )
    if not st.button("Test it on this device", key="fidelity-run"):
        return
    if not prompt.strip():
        st.warning("The prompt is empty: write what the model is to answer or continue.")
    elif sampling.greedy:
        st.warning("At temperature 0 nothing is drawn, so rules cannot differ; choose a temperature above 0.")
    elif is_named(choice):
        remember_pair(choice)
        others = default_prompts()
        others = others[:: max(1, len(others) // max(1, int(further)))][: int(further)]
        tau, max_draft = query.tau_from_link(), query.max_draft_from_link(LONGEST_DRAFT)
        prompts = (Prompt("own", "", prompt), *others)
        request = FidelityRequest(choice, prompts, tokens, tau, max_draft, sampling, seed)
        st.session_state[JOB] = workshop().submit(request).id
        st.rerun()
