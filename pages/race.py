"""Race: plain and speculative decoding of one prompt on one clock."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import query
from specviz.ui.advice import choose_on_fail
from specviz.ui.choosing import choose_recording
from specviz.ui.costs import cost_caption
from specviz.ui.glossary import define
from specviz.ui.messages import problem
from specviz.ui.race_view import race_view
from specviz.ui.races import measured_race, modelled_race
from specviz.ui.terms import term_line
from specviz.ui.token_texts import display_from

st.title("The same text, twice")
st.caption("Left: the target alone, one token a pass. Right: the draft guesses, the target checks. Press start.")
left, middle, right = st.columns([2, 2, 1.4], gap="large")
shown = choose_recording("race", columns=(left, left))
if shown is None:
    st.stop()
tau = middle.slider(
    "Threshold τ", 0.0, 1.0, query.tau_from_link(), 0.001, format="%.3f", help=define("threshold"), key="race-tau"
)
max_draft = right.slider(
    "Draft length γ",
    1,
    shown.longest_draft,
    query.max_draft_from_link(shown.longest_draft),
    help=define("draft_length"),
    key="race-gamma",
)
on_fail = choose_on_fail("race-on-fail")
query.put_into_link(tau=tau, gamma=max_draft)
try:
    measured = measured_race(shown, tau, max_draft, on_fail)
    if measured:
        plain, speculative, tokens = measured.plain, measured.speculative, measured.tokens
        race = f"measured:{id(measured)}"
        origin = f"Measured: one run each on {measured.device}."
        if not measured.same_output:
            st.text("The two runs parted at a near-tie of the target, so the texts differ after it.")
    else:
        plain, speculative = modelled_race(shown, tau, max_draft, on_fail)
        race = f"{shown.name}:{tau}:{max_draft}:{on_fail}"
        text = display_from(shown.tokens)
        tokens = [text(token) for token in shown.recording.output_ids.tolist()]
        origin = f"Modelled: replayed rounds. {shown.cost.origin}"
    race_view("race", race, tokens, plain, speculative, origin)
    term_line(("plain_decoding", "draft", "target", "time"), "race")
    cost_caption(shown.cost, shown.pair, "race")
except SpecVizError as error:
    problem("This race cannot be run.", error)
