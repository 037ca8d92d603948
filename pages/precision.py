"""Precision: the same pair at full precision and quantised, side by side."""

import streamlit as st

from specviz.analysis.precisions import PrecisionComparison
from specviz.errors import SpecVizError
from specviz.plots.calibration_figures import reliability_figure
from specviz.ui import query
from specviz.ui.charts import chart
from specviz.ui.costs import cost_caption
from specviz.ui.messages import problem
from specviz.ui.precision_panel import pack_lines, precision_panel, settled
from specviz.ui.precisions import (
    FEWEST,
    MOST,
    about,
    cautions,
    differences,
    gallery_comparison,
    missing,
    own_comparison,
    reliabilities,
    run_form,
    tables,
    worst_place,
)
from specviz.ui.terms import term_line

PANEL = "precision-panel"
PANEL_TERMS = ("threshold", "draft_length", "speedup", "plain_decoding", "over_full_plain", "tokens_per_second")
PANEL_TERMS += ("acceptance_rate", "tokens_per_target_pass", "weights")


@st.fragment
def panel(comparison: PrecisionComparison, name: str, labels: list[str]) -> None:
    longest = comparison.longest_draft
    first = st.session_state.setdefault("first-precision-tau", query.tau_from_link())
    tau, max_draft = settled(PANEL, first, query.max_draft_from_link(longest))
    max_draft = min(max_draft, longest)
    precision_panel(
        key=PANEL,
        shown=f"{name}:{','.join(labels)}",
        lines=pack_lines(comparison, comparison.chosen(labels), max_draft),
        tau=first,
        max_draft=max_draft,
        longest_draft=longest,
        full=comparison.full_precision,
        about=about(comparison),
    )
    term_line(PANEL_TERMS, PANEL)
    query.put_into_link(tau=tau, gamma=max_draft)


def show(comparison: PrecisionComparison, name: str) -> None:
    every = [combination.label for combination in comparison.combinations]
    labels = st.multiselect(
        "Combinations, target:draft", every, default=every[:MOST], max_selections=MOST, key=f"combinations-{name}"
    )
    if len(labels) < min(FEWEST, len(every)):
        st.info("Choose at least two combinations to compare.")
        return
    panel(comparison, name, labels)
    combinations = comparison.chosen(labels)
    for sentence in (*cautions(combinations), *comparison.notes):
        st.text(sentence)
    st.subheader("Each at its best")
    tables(comparison, labels)
    cost_caption(comparison.baseline.cost, None, "precision")
    worst_place(comparison)
    st.subheader("Where the texts part")
    differences(comparison, combinations)
    st.subheader("How confident is the draft?")
    diagrams, pair = reliabilities(combinations)
    chart(reliability_figure(diagrams, pair, len(comparison.baseline.tokens)), "reliability", 440)


st.title("What does quantising change?")
st.caption(
    "A quantised target takes less memory and is sometimes faster alone, so the same draft buys less; "
    "a quantised draft is less often right and sure in another way. So the curves have other shapes, "
    "and the best threshold moves."
)
try:
    if sentence := missing():
        st.info(sentence)
    found = {"Your own": own_comparison(), "From the gallery": gallery_comparison()}
    names = [name for name, comparison in found.items() if comparison is not None]
    if len(names) > 1:
        name = st.segmented_control("Comparison", names, default=names[0], required=True, key="comparison")
    else:
        name = names[0] if names else None
    if name is None:
        st.info("No comparison is available. Measure one below; the command is `python -m specviz compare`.")
    else:
        show(found[name], name)
    st.subheader("Measure it here")
    run_form()
except SpecVizError as error:
    problem("This cannot be compared.", error)
