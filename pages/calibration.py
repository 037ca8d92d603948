"""Calibration: is the draft's confidence the chance that its token is accepted?"""

import math
from dataclasses import replace

import streamlit as st

from specviz.analysis.draft_calibration import calibration_table, judged
from specviz.analysis.report import table_as_csv
from specviz.errors import SpecVizError
from specviz.plots.calibration_figures import (
    mapped_curves_figure,
    outcomes_figure,
    reliability_figure,
    signals_figure,
)
from specviz.ui import query
from specviz.ui.charts import chart
from specviz.ui.choosing import choose_set
from specviz.ui.costs import cost_caption
from specviz.ui.glossary import define
from specviz.ui.judging import calibrations_of, longest_draft, recalibration_of
from specviz.ui.messages import problem
from specviz.ui.tables import Column, show_table
from specviz.ui.terms import term_line

SPLITS = {"Depth in the draft": "depth", "Kind of position": "kind", "Precision": "precision"}
MOST_LINES = 5
SENTENCE_TERMS = ("confidence", "accepted", "calibration_error", "adaptive_error", "brier", "brier_parts")


@st.fragment
def acceptance(recordings, pair, whole) -> None:
    """Acceptance against confidence, and the threshold as a cut through it."""
    left, right = st.columns([3, 2], gap="large")
    tau = left.slider(
        "Threshold τ", 0.0, 1.0, query.tau_from_link(), 0.01, help=define("threshold"), key="calibration-tau"
    )
    bins = right.segmented_control(
        "Bins",
        ["Equal width", "Equal counts"],
        default="Equal width",
        required=True,
        help=define("bins"),
        key="calibration-bins",
    )
    query.put_into_link(tau=tau)
    tokens = judged(recordings)
    passing = tokens.confidence > tau
    right_ones, wrong = tokens.accepted & passing, ~tokens.accepted & passing
    rate = right_ones.sum() / passing.sum() if passing.any() else math.nan
    diagram = whole.diagram if bins == "Equal width" else whole.adaptive
    figure = reliability_figure({"this draft": diagram}, pair, whole.prompts, cut=(tau, rate))
    chart(figure, "reliability-figure", 460)
    chart(outcomes_figure(tokens, pair, tau), "outcomes-figure", 360)
    share = f"{rate:.1%} of them accepted" if passing.any() else "so nothing is proposed"
    st.text(
        f"τ = {tau:.2f} lets {passing.sum()} of {len(tokens)} tokens pass, {share}. It lets {wrong.sum()} pass that "
        f"the target rejects and holds back {(tokens.accepted & ~passing).sum()} that it would have accepted."
    )


st.title("Is the draft as sure as it should be?")
st.caption(
    "Judged at every position of the output: what the draft said first, how sure it was, and whether the target "
    "agrees. No threshold is involved; these are the odds that a threshold has to work with."
)
offered = choose_set("calibration-set", priced=False)
if offered is None:
    st.stop()
recordings, pair = offered.recordings, offered.recordings[0].pair
try:
    whole = calibrations_of(offered, "depth")["all"]
    acceptance(recordings, pair, whole)
    direction = (
        "more confident than it may be" if whole.confidence > whole.acceptance else "less confident than it could be"
    )
    interval = f" ({whole.error.low:.3f} to {whole.error.high:.3f} over prompts)" if whole.prompts > 1 else ""
    parts = whole.brier
    st.text(
        f"On average the draft is {direction}: mean confidence {whole.confidence:.3f}, accepted "
        f"{whole.acceptance:.3f}. Expected calibration error {whole.error.value:.3f}{interval}, adaptive "
        f"{whole.adaptive_error:.3f}. Brier score {parts.score:.3f} = unreliability {parts.unreliability:.3f} − "
        f"resolution {parts.resolution:.3f} + uncertainty {parts.uncertainty:.3f} + within bins {parts.within:.3f}."
    )

    term_line(SENTENCE_TERMS, "calibration-sentence")

    st.subheader("Confidence, entropy or margin?")
    left, right = st.columns(2, gap="large")
    with left:
        chart(signals_figure(whole, pair), "roc-figure", 420)
    with right:
        chart(signals_figure(whole, pair, "precision"), "precision-figure", 420)

    st.subheader("Is it the same everywhere?")
    split = st.segmented_control("Split by", list(SPLITS), default="Kind of position", required=True, key="split")
    found = calibrations_of(offered, SPLITS[split])
    named = {name: part for name, part in found.items() if name != "all"}
    largest = sorted(named, key=lambda name: -named[name].tokens)[:MOST_LINES]
    if largest:
        shown = {name: named[name].adaptive for name in named if name in largest}
        about, number = pair, whole.prompts
        if split == "Precision":
            about = replace(pair, target_precision="several precisions", draft_precision="several precisions")
            number = sum(part.prompts for part in named.values())
        title = f"By {SPLITS[split]}, bins of equal counts"
        chart(reliability_figure(shown, about, number, title), "split-figure", 460)
    else:
        st.text("The texts of this set's tokens are not known, so their kinds are not either.")
    table = calibration_table(found)
    show_table(
        table,
        {
            "part": Column(split),
            "tokens": Column("Tokens"),
            "acceptance": Column("Accepted", "accepted", "percent"),
            "confidence": Column("Mean confidence", "confidence", "%.3f"),
            "ece": Column("Calibration error", "calibration_error", "%.3f"),
            "adaptive_ece": Column("Adaptive", "adaptive_error", "%.3f"),
            "brier": Column("Brier score", "brier", "%.3f"),
            "roc_confidence": Column("Area, confidence", "roc_area", "%.3f"),
            "roc_entropy": Column("Area, entropy", "roc_area", "%.3f"),
            "roc_margin": Column("Area, margin", "roc_area", "%.3f"),
        },
        "calibration-table",
    )
    if split == "Precision":
        st.caption(
            "Everything recorded with these two models: the sets on offer and the comparisons of the Precision page, "
            "which may hold other prompts."
        )
    st.download_button(
        "This table as CSV", lambda: table_as_csv(table), "calibration.csv", "text/csv", on_click="ignore", key="csv"
    )

    st.subheader("Does calibrating help?")
    if offered.cost is None or len(recordings) < 2:
        st.text("This needs a set of at least two prompts with a cost model.")
    else:
        learnt, curves = recalibration_of(offered, min(8, longest_draft(offered)))
        shown = {name: part.diagram for name, part in learnt.shown.items()}
        title = f"Learnt on {len(learnt.learnt_on)} prompts, shown on the other {len(learnt.shown_on)}"
        chart(reliability_figure(shown, pair, len(learnt.shown_on), title), "recalibrated-figure", 460)
        st.text(
            "Calibration error on the prompts that taught nothing: "
            + ", ".join(f"{name} {part.error.value:.3f}" for name, part in learnt.shown.items())
            + f". Temperature {learnt.temperature:.2f}: it scales the log-odds of this token against all others, since "
            "a recording keeps no logits."
        )
        left, right = st.columns(2, gap="large")
        with left:
            chart(mapped_curves_figure(curves, by_rank=False), "mapped-over-tau", 420)
        with right:
            chart(mapped_curves_figure(curves, by_rank=True), "mapped-over-proposed", 420)
        cost_caption(offered.cost, offered.members[0].pair, "calibration")
        best = {name: (curve.thresholds[curve.speedup.argmax()], curve.speedup.max()) for name, curve in curves.items()}
        st.text(
            f"With γ = {min(8, longest_draft(offered))} and drop held fixed, best threshold and speedup: "
            + "; ".join(f"{name} τ = {tau:.3f}, {speedup:.3f}×" for name, (tau, speedup) in best.items())
            + ", on the same prompts. A map that keeps the order moves the best threshold but not the best speedup, "
            "since the same tokens pass; isotonic steps merge thresholds and can only lose some. Calibrating pays "
            "where confidences are multiplied or weighed against costs, as the cumulative and cost-aware policies do."
        )
except SpecVizError as error:
    problem("This set cannot be judged.", error)
