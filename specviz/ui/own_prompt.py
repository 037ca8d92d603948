"""Own prompts: the form, the run as it happens, and what came of it."""

import streamlit as st

from specviz.models.catalogue import PAIRS
from specviz.replay import Sampling
from specviz.replay.rules import RULES, Coupled, TargetSampleMatch
from specviz.ui import query
from specviz.ui.costs import repriced
from specviz.ui.requests import Drawing, PairChoice, RunRequest
from specviz.ui.shown import Shown
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import Job, workshop

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8", "int8+t0", "nf4", "nf4+double", "fp4")
OTHER = "other"
RECORDED_DRAFT = 16


def choose_pair(key: str, most_tokens: int = 128) -> tuple[PairChoice, int]:
    """Ask for a pair, its precisions and the most tokens to generate, `most_tokens` to begin with."""
    titles = {pair.name: pair.title for pair in PAIRS} | {OTHER: "Another pair…"}
    columns = st.columns([3, 2, 2, 2], vertical_alignment="bottom")
    name = columns[0].selectbox("Pair", list(titles), format_func=titles.get, key=f"{key}-pair")
    target_precision = columns[1].selectbox("Target precision", PRECISIONS, key=f"{key}-target-precision")
    draft_precision = columns[2].selectbox("Draft precision", PRECISIONS, key=f"{key}-draft-precision")
    tokens = columns[3].number_input("Most tokens", 1, 1024, most_tokens, 16, key=f"{key}-tokens")
    if name == OTHER:
        either = st.columns(2)
        help_text = "A folder, a .gguf file, or a model's name on the hub. Target and draft must share a tokenizer."
        target = either[0].text_input("Target", key=f"{key}-target", help=help_text)
        draft = either[1].text_input("Draft", key=f"{key}-draft")
    else:
        pair = next(pair for pair in PAIRS if pair.name == name)
        target, draft = pair.target.source, pair.draft.source
        if pair.note:
            st.caption(pair.note)
    return PairChoice(target.strip(), draft.strip(), target_precision, draft_precision), int(tokens)


def choose_drawing(key: str) -> Drawing:
    """Ask how tokens are drawn. On offer are the rules under which a recording replays exactly."""
    with st.expander("Sampling"):
        st.caption(
            "At temperature 0 the likeliest token is taken. Above, both models draw with noise that belongs to seed "
            "and position, so that the text is a fair draw from the target and still the same for every threshold."
        )
        sampling, seed = choose_sampling(key)
        rule = st.selectbox(
            "Acceptance rule",
            [Coupled.name, TargetSampleMatch.name],
            disabled=sampling.greedy,
            key=f"{key}-rule",
            help="Both are lossless. coupled: the draft draws with the target's noise. target_sample_match: the draft "
            "takes its likeliest token.",
        )
    return Drawing(sampling, None if sampling.greedy else RULES[rule](), seed)


def choose_sampling(key: str, temperature: float = 0.0) -> tuple[Sampling, int]:
    """Ask for temperature, cuts, penalty and seed.

    Args:
        temperature: to begin with.
    """
    columns = st.columns(3, vertical_alignment="bottom")
    chosen = columns[0].number_input("Temperature", 0.0, 2.0, temperature, 0.1, key=f"{key}-temperature")
    top_k = columns[1].number_input("Top-k (0: all)", 0, 1000, 0, 5, key=f"{key}-top-k")
    top_p = columns[2].number_input("Top-p", 0.0, 1.0, 1.0, 0.05, key=f"{key}-top-p")
    columns = st.columns(3, vertical_alignment="bottom")
    min_p = columns[0].number_input("Min-p", 0.0, 1.0, 0.0, 0.05, key=f"{key}-min-p")
    penalty = columns[1].number_input("Repetition penalty", 0.5, 2.0, 1.0, 0.05, key=f"{key}-penalty")
    seed = columns[2].number_input("Seed", 0, 2**31 - 1, 0, key=f"{key}-seed")
    return Sampling(chosen, int(top_k), top_p, min_p, penalty), int(seed)


def prompt_form() -> None:
    """Ask for a prompt and hand it in."""
    job = current_job()
    if "own-text" not in st.session_state and job and isinstance(job.request, RunRequest):
        st.session_state["own-text"] = job.request.prompt  # a reloaded page finds its prompt again too
    prompt = st.text_area("Your prompt", key="own-text", height=100, placeholder="Explain tides to a child.")
    choice, tokens = choose_pair("own")
    drawing = choose_drawing("own")
    if st.button("Run and record", type="primary", key="own-run"):
        if not prompt.strip():
            st.warning("The prompt is empty: write what the model shall answer or continue.")
        elif not (choice.target and choice.draft):
            st.warning("Name both models: a target and its draft.")
        else:
            job = workshop().submit(RunRequest(choice, prompt, tokens, RECORDED_DRAFT, drawing))
            query.put_shown_into_link("run")
            query.put_into_link(run=job.id)


def current_job() -> Job | None:
    """The run that the link names, if it is still kept."""
    return workshop().job(query.run_from_link())


def finished_run() -> Shown | None:
    """What the run in the link recorded, if it has got that far."""
    job = current_job()
    return repriced(job.shown) if job and job.shown else None


def watch_run() -> None:
    """Show how the run in the link is doing."""
    if not query.run_from_link():
        return
    job = current_job()
    if job is None:
        st.info("That run has ended and is not kept any more. Hand the prompt in again to see it.")
    elif job.over:
        outcome(job)
    else:
        watch(job.id, "own")
