"""Thresholds: the speedup over threshold and draft length, of one recording set or several."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.plots import acceptance_figure, heat_map_figure, speedup_figure
from specviz.ui import query
from specviz.ui.advice import advice_of, choose_on_fail, show_recommendation
from specviz.ui.charts import chart
from specviz.ui.choosing import first_set, say_if_gone
from specviz.ui.costs import cost_caption
from specviz.ui.glossary import define
from specviz.ui.library import ShownSet, sets_on_offer
from specviz.ui.measuring import checks_of, measure_form, measured_points
from specviz.ui.messages import problem
from specviz.ui.sweeps import curve_of, grid_of, sweep_form

BY_SET, BY_GAMMA = "Recording sets", "Draft lengths"
MOST_LINES = 5


def longest(offered) -> int:
    return min(shown.longest_draft for shown in offered.members)


def open_setting(tau: float, max_draft: int, on_fail: str) -> None:
    """Bring the page to a setting."""
    query.put_into_link(tau=tau, gamma=max_draft, on_fail=on_fail)
    st.session_state["compare"] = BY_SET
    st.session_state["compared-gamma"] = max_draft
    st.session_state["on-fail"] = on_fail


def chosen_curves(offered, on_fail: str) -> tuple[dict, ShownSet | None]:
    """What the reader compares, name for the legend to curve; and the set that the first curve is of."""
    compare = st.segmented_control("Compare", [BY_SET, BY_GAMMA], default=BY_SET, required=True, key="compare")
    names = list(offered)
    linked = query.name_from_link(names)
    if compare == BY_SET:
        left, right = st.columns([3, 2], gap="large")
        priced = [name for name in names if offered[name].priced]
        chosen = left.multiselect(
            "Recording sets",
            names,
            default=[linked] if linked and linked == query.set_from_link() else priced[:3],
            format_func=lambda name: offered[name].title,
            max_selections=MOST_LINES,
            key="compared-sets",
        )
        if not chosen:
            return {}, None
        most = min(longest(offered[name]) for name in chosen)
        max_draft = right.slider(
            "Draft length γ",
            1,
            most,
            query.max_draft_from_link(most),
            help=define("draft_length"),
            key="compared-gamma",
        )
        query.put_into_link(gamma=max_draft)
        curves = {offered[name].title: curve_of(offered[name], max_draft, on_fail) for name in chosen}
        return curves, offered[chosen[0]]
    left, right = st.columns([3, 2], gap="large")
    name = left.selectbox(
        "Recording set",
        names,
        index=names.index(first_set(offered)),
        format_func=lambda name: offered[name].title,
        key="compared-set",
    )
    lengths = list(range(1, longest(offered[name]) + 1))
    default = [length for length in (1, 3, 5, 8) if length in lengths]
    chosen = right.multiselect(
        "Draft lengths γ",
        lengths,
        default=default,
        max_selections=MOST_LINES,
        help=define("draft_length"),
        key="compared-gammas",
    )
    return {f"γ = {length}": curve_of(offered[name], length, on_fail) for length in sorted(chosen)}, offered[name]


st.title("Which threshold pays?")
st.caption(
    "Every curve is an exact replay: between two of its steps nothing changes. Times come from measured passes. "
    "With several prompts the band says how much the choice of prompts matters."
)


def comparison(offered) -> None:
    """The curves of what the reader compares, and the grid of one set."""
    on_fail = choose_on_fail("on-fail")
    curves, first = chosen_curves(offered, on_fail)
    if curves:
        tau = query.tau_from_link()
        max_draft = next(iter(curves.values())).max_draft
        query.put_into_link(tau=tau)
        points = [p for p in measured_points(first) if (p.max_draft, p.on_fail) == (max_draft, on_fail)]
        chart(speedup_figure(curves, points, threshold=tau), "speedup-figure", 460)
        for name, curve in curves.items():
            st.text(f"{name}: {curve.sentence}")
        cost_caption(first.cost, first.members[0].pair, "thresholds")
        show_recommendation(first, "thresholds", open_setting)
        for one in checks_of(first):
            st.text(one.sentence)
        measure_form(first, tau, max_draft, on_fail)
        chart(acceptance_figure(curves), "acceptance-figure", 420)

    st.subheader("Threshold and draft length together")
    names = list(offered)
    name = st.selectbox(
        "Recording set",
        names,
        index=names.index(first_set(offered)),
        format_func=lambda name: offered[name].title,
        key="grid-set",
    )
    cells = grid_of(offered[name], on_fail)
    chart(heat_map_figure(cells), "heat-map", 460)
    st.text(cells.sentence)
    if first is None or offered[name].recordings != first.recordings:
        st.text(f"{offered[name].title}, of all settings: {advice_of(offered[name]).recommendation}")


offered = sets_on_offer()
try:
    if any(one.priced for one in offered.values()):
        say_if_gone(list(offered))
        comparison(offered)
    else:
        st.info(
            "There is no recording set whose passes were measured yet: record one below, run a prompt on the Explore "
            "page, or load a set on the Data page."
        )
except SpecVizError as error:
    problem("These settings cannot be compared.", error)

st.subheader("Record a set of prompts")
try:
    sweep_form()
except SpecVizError as error:
    problem("This set cannot be recorded.", error)
