"""Thresholds: the speedup over threshold and draft length, of one recording set or several."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.plots import acceptance_figure, heat_map_figure, speedup_figure
from specviz.ui import query
from specviz.ui.charts import chart
from specviz.ui.library import ShownSet, sets_on_offer
from specviz.ui.messages import problem
from specviz.ui.sweeps import curve_of, grid_of, measure_form, measured_points, sweep_form

BY_SET, BY_GAMMA = "Recording sets", "Draft lengths"
MOST_LINES = 5


def longest(offered) -> int:
    return min(shown.longest_draft for shown in offered.members)


def chosen_curves(offered) -> tuple[dict, ShownSet | None]:
    """What the reader compares, name for the legend to curve; and the set that the first curve is of."""
    compare = st.segmented_control("Compare", [BY_SET, BY_GAMMA], default=BY_SET, required=True, key="compare")
    names = [name for name in offered if offered[name].cost]
    if compare == BY_SET:
        left, right = st.columns([3, 2], gap="large")
        chosen = left.multiselect(
            "Recording sets",
            names,
            default=names[: min(3, len(names))],
            format_func=lambda name: offered[name].title,
            max_selections=MOST_LINES,
            key="compared-sets",
        )
        if not chosen:
            return {}, None
        most = min(longest(offered[name]) for name in chosen)
        max_draft = right.slider("Draft length γ", 1, most, query.max_draft_from_link(most), key="compared-gamma")
        query.put_into_link(gamma=max_draft)
        curves = {offered[name].title: curve_of(offered[name], max_draft) for name in chosen}
        return curves, offered[chosen[0]]
    left, right = st.columns([3, 2], gap="large")
    name = left.selectbox("Recording set", names, format_func=lambda name: offered[name].title, key="compared-set")
    lengths = list(range(1, longest(offered[name]) + 1))
    default = [length for length in (1, 3, 5, 8) if length in lengths]
    chosen = right.multiselect(
        "Draft lengths γ", lengths, default=default, max_selections=MOST_LINES, key="compared-gammas"
    )
    return {f"γ = {length}": curve_of(offered[name], length) for length in sorted(chosen)}, offered[name]


st.title("Which threshold pays?")
st.caption(
    "Every curve is an exact replay: between two of its steps nothing changes. Times come from measured passes. "
    "With several prompts the band says how much the choice of prompts matters."
)
offered = sets_on_offer()
if not any(one.cost for one in offered.values()):
    st.info("No recording set with a cost model is at hand: run a prompt on the Explore page or load a set under Data.")
    st.stop()
try:
    curves, first = chosen_curves(offered)
    if curves:
        tau = query.tau_from_link()
        points = measured_points(first)
        query.put_into_link(tau=tau)
        chart(speedup_figure(curves, points, threshold=tau), "speedup-figure", 460)
        measure_form(first, tau, next(iter(curves.values())).max_draft)
        for name, curve in curves.items():
            st.text(f"{name}: {' '.join(curve.verdict.sentences)}")
        chart(acceptance_figure(curves), "acceptance-figure", 420)

    st.subheader("Threshold and draft length together")
    with_cost = [name for name in offered if offered[name].cost]
    name = st.selectbox("Recording set", with_cost, format_func=lambda name: offered[name].title, key="grid-set")
    cells = grid_of(offered[name])
    chart(heat_map_figure(cells), "heat-map", 460)
    st.text(" ".join(cells.verdict.sentences))

    st.subheader("Record a set of prompts")
    sweep_form()
except SpecVizError as error:
    problem("These settings cannot be compared.", error)
