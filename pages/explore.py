"""Explore: one recording under a moving threshold."""

import streamlit as st

from specviz.ui import query
from specviz.ui.charts import trace_charts
from specviz.ui.gallery import list_items
from specviz.ui.library import gallery_recording
from specviz.ui.live_panel import live_panel, settled

PANEL = "live-panel"

items = list_items()
st.title("What if the draft had to be surer?")
st.caption(
    "A small draft model guesses ahead, a large target model checks the guesses in one pass. "
    "Drag the threshold and watch which guesses are made, and what that does to the speed."
)

choice = st.pills(
    "Recording",
    list(items),
    format_func=lambda name: f"{items[name].title}{'' if items[name].known else ' ◦'}",
    default=query.item_from_link(list(items)) or next(iter(items), None),
    required=True,
    key="item",
    help="◦ marks kinds of text that the draft was not trained on. No prompt here was in its training.",
)


@st.fragment
def panel(name: str) -> None:
    shown = gallery_recording(name)
    first = st.session_state.setdefault("first-tau", query.tau_from_link())
    tau, max_draft = settled(PANEL, first, query.max_draft_from_link(shown.longest_draft))
    max_draft = min(max_draft, shown.longest_draft)
    live_panel(
        key=PANEL,
        item=shown.name,
        recording=shown.packed_recording(),
        rounds=shown.packed_rounds(max_draft),
        tau=first,
        longest_draft=shown.longest_draft,
        about=shown.about(),
        measured=shown.measured,
    )
    query.put_into_link(item=name, tau=tau, gamma=max_draft)
    trace_charts(shown, tau, max_draft)


if choice:
    st.caption(items[choice].note)
    panel(choice)
