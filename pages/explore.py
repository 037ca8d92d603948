"""Explore: one recording under a moving threshold."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import query
from specviz.ui.advice import show_recommendation
from specviz.ui.charts import trace_charts
from specviz.ui.choosing import choose_member, say_if_gone
from specviz.ui.costs import cost_caption
from specviz.ui.gallery import list_items
from specviz.ui.library import ShownSet, gallery_recording, own_sets
from specviz.ui.live_panel import drawn_setting, live_panel, settled
from specviz.ui.measuring import measured_points
from specviz.ui.messages import problem
from specviz.ui.own_prompt import finished_run, prompt_form, watch_run
from specviz.ui.shown import Shown

PANEL = "live-panel"
PANELS = "live-panels"  # key of the session: how often a button opened a setting
GALLERY, OWN, KEPT = "Gallery", "Your own prompt", "Your recordings"


def measured_marks(shown: Shown, max_draft: int, on_fail: str) -> list[dict]:
    """Points measured on this recording at this draft length and fate of the token that fails, as the panel takes
    them."""
    points = measured_points(ShownSet("", (shown,)))
    return [
        {"tau": p.threshold, "speedup": p.speedup.value, "low": p.speedup.low, "high": p.speedup.high}
        for p in points
        if (p.max_draft, p.on_fail) == (max_draft, on_fail)
    ]


def open_setting(tau: float, max_draft: int, on_fail: str) -> None:
    """Bring the panel to a setting: a panel of another key begins with what the link asks for."""
    query.put_into_link(tau=tau, gamma=max_draft, on_fail=on_fail)
    st.session_state.pop("first-tau", None)
    st.session_state[PANELS] = st.session_state.get(PANELS, 0) + 1


def panel_key() -> str:
    number = st.session_state.get(PANELS, 0)
    return f"{PANEL}-{number}" if number else PANEL


@st.fragment
def panel(shown: Shown) -> None:
    key = panel_key()
    first = st.session_state.setdefault("first-tau", query.tau_from_link())
    asked = query.max_draft_from_link(shown.longest_draft)
    tau, max_draft, on_fail = settled(key, first, asked, query.on_fail_from_link())
    max_draft = min(max_draft, shown.longest_draft)
    live_panel(
        key=key,
        item=shown.name,
        recording=shown.packed_recording(),
        rounds=shown.packed_rounds(max_draft, on_fail),
        tau=first,
        draft_lengths=shown.draft_lengths,
        about=shown.about(),
        measured=measured_marks(shown, max_draft, on_fail),
        tells_when_drawn=True,
    )
    drawn = drawn_setting(key)
    charted, fate = (max_draft, on_fail) if drawn is None else (min(drawn[0], shown.longest_draft), drawn[1])
    if (charted, fate) == (max_draft, on_fail):
        # else the panel is on its way with another setting, and writing the link delays it
        query.put_into_link(tau=tau, gamma=max_draft, on_fail=on_fail)
    if drawn is not None and shown.cost is not None:
        show_recommendation(ShownSet(shown.title, (shown,)), "explore", open_setting)
    st.subheader(f"The same run, at τ = {tau:.3f}, γ = {charted} and {fate}")
    if drawn is not None:
        trace_charts(shown, tau, charted, fate)
        shown.pack_ahead(max_draft, on_fail)


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
    query.put_shown_into_link(f"gallery:{name}")
    return gallery_recording(name)


def recorded() -> Shown | None:
    """A recording of a set that was recorded or uploaded here."""
    sets = own_sets()
    say_if_gone(list(sets))
    if not sets:
        st.info("There are none yet: record a prompt of your own here, a set on Thresholds, or load a file on Data.")
        return None
    left, right = st.columns([2, 3], gap="large")
    names = list(sets)
    name = left.selectbox(
        "Set",
        names,
        index=query.place_from_link(names),
        format_func=lambda name: sets[name].title,
        key="loaded-set",
    )
    query.put_shown_into_link(name)
    return choose_member(sets[name], f"loaded-{name}", right)


def first_source() -> str:
    """What the link asks to look at."""
    if query.set_from_link():
        return KEPT
    return OWN if query.run_from_link() and not query.item_from_link(list(list_items())) else GALLERY


st.title("What if the draft had to be more confident?")
st.caption(
    "A small draft model guesses ahead, a large target model checks the guesses in one pass. "
    "Drag the threshold and watch which guesses are made, and what that does to the speed."
)
source = st.segmented_control(
    "What to look at",
    [GALLERY, OWN, KEPT],
    default=first_source(),
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
    elif source == KEPT:
        shown = recorded()
    else:
        shown = gallery()
    if shown:
        panel(shown)
        cost_caption(shown.cost, shown.pair, "explore")
except SpecVizError as error:
    problem("This cannot be shown.", error)
