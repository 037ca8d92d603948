"""Own prompts: the form, the run as it happens, and what came of it."""

import streamlit as st

from specviz.replay import Sampling
from specviz.replay.rules import RULES, Coupled, TargetSampleMatch
from specviz.replay.stop_strings import MOST_STRINGS
from specviz.trace.kept import name_of_run
from specviz.ui import query
from specviz.ui.choosing import links_to
from specviz.ui.costs import repriced
from specviz.ui.glossary import define
from specviz.ui.library import KEPT, KeptShownSet, own_sets
from specviz.ui.link_jobs import begin_run, current_run
from specviz.ui.pairs import STAYS, choose_pair, is_named, remember_pair
from specviz.ui.requests import Drawing, RunRequest
from specviz.ui.shown import Shown
from specviz.ui.watching import outcome, say_not_kept, watch

LINE_BREAKS = {"\n": "⏎ (line break)", "\n\n": "⏎⏎ (empty line)"}  # stop strings that cannot be typed
RECORDED_DRAFT = 16


def choose_drawing(key: str) -> Drawing:
    """Ask how tokens are drawn and what ends the text. On offer are the rules whose recordings replay exactly."""
    with st.expander("Sampling and stop strings"):
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
            persist_state=STAYS,
            help="Both are lossless. coupled: the draft draws with the target's noise. target_sample_match: the draft "
            "takes its likeliest token.",
        )
        stop = st.multiselect(
            "Stop strings",
            list(LINE_BREAKS),
            format_func=lambda string: LINE_BREAKS.get(string, string),
            accept_new_options=True,
            max_selections=MOST_STRINGS,
            placeholder="type one and press Enter",
            key=f"{key}-stop-strings",
            persist_state=STAYS,
            help="The text ends with the token that completes one of these. Left empty, those of the target's "
            "generation config count.",
        )
    return Drawing(sampling, None if sampling.greedy else RULES[rule](), seed, stop=tuple(stop) or None)


def choose_sampling(key: str, temperature: float = 0.0) -> tuple[Sampling, int]:
    """Ask for temperature, cuts, penalty and seed.

    Args:
        temperature: to begin with.
    """
    columns = st.columns(3, vertical_alignment="bottom")
    chosen = columns[0].number_input(
        "Temperature",
        0.0,
        2.0,
        temperature,
        0.1,
        help=define("temperature"),
        key=f"{key}-temperature",
        persist_state=STAYS,
    )
    top_k = columns[1].number_input(
        "Top-k (0: all)", 0, 1000, 0, 5, help=define("top_k"), key=f"{key}-top-k", persist_state=STAYS
    )
    top_p = columns[2].number_input(
        "Top-p", 0.0, 1.0, 1.0, 0.05, help=define("top_p"), key=f"{key}-top-p", persist_state=STAYS
    )
    columns = st.columns(3, vertical_alignment="bottom")
    min_p = columns[0].number_input(
        "Min-p", 0.0, 1.0, 0.0, 0.05, help=define("min_p"), key=f"{key}-min-p", persist_state=STAYS
    )
    penalty = columns[1].number_input(
        "Repetition penalty",
        0.5,
        2.0,
        None,
        0.05,
        key=f"{key}-penalty",
        placeholder="as the target asks",
        help=f"{define('repetition_penalty')} Left empty, what the target's generation config asks for counts.",
        persist_state=STAYS,
    )
    seed = columns[2].number_input("Seed", 0, 2**31 - 1, 0, help=define("seed"), key=f"{key}-seed", persist_state=STAYS)
    return Sampling(chosen, int(top_k), top_p, min_p, penalty), int(seed)


def prompt_form() -> None:
    """Ask for a prompt and record it."""
    if "own-text" not in st.session_state:
        st.session_state["own-text"] = _asked_before()  # a reloaded page finds its prompt again too
    prompt = st.text_area(
        "Your prompt", key="own-text", height=100, placeholder="Explain tides to a child.", persist_state=STAYS
    )
    choice, tokens = choose_pair("own")
    drawing = choose_drawing("own")
    if st.button("Run and record", type="primary", key="own-run"):
        if not prompt.strip():
            st.warning("The prompt is empty: write what the model should answer or continue.")
        elif is_named(choice):
            remember_pair(choice)
            begin_run(RunRequest(choice, prompt, tokens, RECORDED_DRAFT, drawing))


def _asked_before() -> str:
    """The prompt of the run in the link."""
    job, recorded = current_run(), _kept_run()
    if job is not None:
        return job.request.prompt
    return recorded.recordings[0].prompt if recorded else ""


def _kept_name() -> str:
    return KEPT + name_of_run(query.run_from_link() or "")


def _kept_run() -> KeptShownSet | None:
    """What the run in the link recorded, if the project folder has it."""
    return own_sets().get(_kept_name())


def finished_run() -> Shown | None:
    """What the run in the link recorded, if it has got that far and was not deleted since.

    Raises:
        SpecVizError: its file is damaged.
    """
    job, recorded = current_run(), _kept_run()
    if job is not None and not job.kept:
        return repriced(job.shown) if job.shown else None
    return recorded.members[0] if recorded else None


def watch_run() -> None:
    """Show how the run in the link is doing, and what became of its recording."""
    job = current_run()
    if job is not None and not job.over:
        watch(job.id, "own")
        return
    if job is not None:
        outcome(job)
        if job.not_kept:
            say_not_kept(job)
        if not job.kept:
            return
    if _kept_run() is not None:
        st.success("This recording is kept. It can be opened on other pages too:")
        links_to(_kept_name(), ("Thresholds", "Race", "Calibration", "Data"))
    elif query.run_from_link():
        st.info("The recording of that run is not in the project folder. Run the prompt again to see it.")
