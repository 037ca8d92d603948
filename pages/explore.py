"""Explore: one recording under a moving threshold."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import query
from specviz.ui.charts import trace_charts
from specviz.ui.gallery import list_items
from specviz.ui.library import ShownSet, gallery_recording, own_sets
from specviz.ui.live_panel import drawn_draft_length, live_panel, settled
from specviz.ui.messages import problem
from specviz.ui.own_prompt import finished_run, prompt_form, watch_run
from specviz.ui.shown import Shown
from specviz.ui.sweeps import measured_points

PANEL = "live-panel"
GALLERY, OWN, LOADED = "Gallery", "Your own prompt", "Loaded sets"


def measured_marks(shown: Shown, max_draft: int) -> list[dict]:
    """Points measured on this recording at this draft length, as the panel takes them."""
    points = [point for point in measured_points(ShownSet("", (shown,))) if point.max_draft == max_draft]
    return [
        {"tau": p.threshold, "speedup": p.speedup.value, "low": p.speedup.low, "high": p.speedup.high} for p in points
    ]


@st.fragment
def panel(shown: Shown) -> None:
    first = st.session_state.setdefault("first-tau", query.tau_from_link())
    tau, max_draft = settled(PANEL, first, query.max_draft_from_link(shown.longest_draft))
    max_draft = min(max_draft, shown.longest_draft)
    live_panel(
        key=PANEL,
        item=shown.name,
        recording=shown.packed_recording(),
        rounds=shown.packed_rounds(max_draft),
        tau=first,
        draft_lengths=shown.draft_lengths,
        about=shown.about(),
        measured=measured_marks(shown, max_draft),
        tells_when_drawn=True,
    )
    drawn = drawn_draft_length(PANEL)
    charted = max_draft if drawn is None else min(int(drawn), shown.longest_draft)
    if charted == max_draft:  # else the panel is on its way with another draft length, and writing the link delays it
        query.put_into_link(tau=tau, gamma=max_draft)
    st.subheader(f"The same run, at τ = {tau:.3f} and γ = {charted}")
    if drawn is not None:
        trace_charts(shown, tau, charted)
        shown.pack_ahead(max_draft)


def gallery() -> Shown | None:
    items = list_items()
    if not items:
        st.info("The gallery is empty. Record a prompt of your own, or load a recording on the Data page.")
        return None
    name = st.pills(
        "Recording",
        list(items),
        format_func=lambda name: f"{items[name].title}{'' if items[name].known else ' ◦'}",
        default=query.item_from_link(list(items)) or next(iter(items)),
        required=True,
        key="item",
        help="◦ marks kinds of text that the draft foresees less well. It was trained on none of these prompts.",
    )
    info = items[name]
    kind = "a kind of text the draft foresees well" if info.known else "a kind of text the draft foresees less well"
    st.caption(f"{info.kind.capitalize()}: {kind}. {info.note}")
    query.put_into_link(item=name)
    return gallery_recording(name)


def loaded() -> Shown | None:
    """A recording of a set that this session recorded or uploaded."""
    sets = own_sets()
    if not sets:
        st.info("Load a recording set on the Data page, or record one on the Thresholds page.")
        return None
    left, right = st.columns([2, 3], gap="large")
    name = left.selectbox("Set", list(sets), format_func=lambda name: sets[name].title, key="loaded-set")
    members = sets[name].members
    place = right.selectbox(
        "Recording", range(len(members)), format_func=lambda place: members[place].title[:80], key=f"loaded-{name}"
    )
    return members[place]


st.title("What if the draft had to be surer?")
st.caption(
    "A small draft model guesses ahead, a large target model checks the guesses in one pass. "
    "Drag the threshold and watch which guesses are made, and what that does to the speed."
)
source = st.segmented_control(
    "What to look at",
    [GALLERY, OWN, LOADED],
    default=OWN if query.run_from_link() and not query.item_from_link(list(list_items())) else GALLERY,
    required=True,
    key="source",
    label_visibility="collapsed",
)
try:
    if source == OWN:
        prompt_form()
        watch_run()
        shown = finished_run()
        if query.run_from_link():
            query.put_shown_into_link("run")
    elif source == LOADED:
        shown = loaded()
        query.put_shown_into_link("loaded")
    else:
        shown = gallery()
    if shown:
        panel(shown)
except SpecVizError as error:
    problem("This cannot be shown.", error)
