"""Fidelity: is the output still the target's own, and what does it gain if it need not be?"""

from difflib import SequenceMatcher

import numpy as np
import streamlit as st

from specviz.analysis.fidelity import first_divergence
from specviz.analysis.fidelity_report import FidelityReport, Output, why_they_part
from specviz.errors import SpecVizError
from specviz.plots import acceptance_picture_figure, trade_off_figure
from specviz.plots.fidelity import DRIFTS
from specviz.replay.rules import LOSSLESS
from specviz.trace.statuses import STATUSES
from specviz.ui import query
from specviz.ui.charts import chart
from specviz.ui.fidelity import BECAME, LONGEST_DRAFT, gallery_report, own_report, run_form
from specviz.ui.glossary import define
from specviz.ui.marked_text import chosen_place, marked_text, token_choice
from specviz.ui.messages import problem
from specviz.ui.terms import term_line
from specviz.ui.token_texts import display_from


@st.fragment
def trade_off(found: FidelityReport) -> None:
    st.subheader("What a little infidelity buys")
    st.caption(
        "Lossless rules stand at no drift. The others trade: each curve is one rule as its knob moves, from strict to "
        "generous. Move threshold and draft length and watch what the trade is worth."
    )
    left, middle, right = st.columns([2, 1.4, 2], gap="large", vertical_alignment="bottom")
    tau = left.slider(
        "Threshold τ", 0.0, 1.0, query.tau_from_link(), 0.01, help=define("threshold"), key="fidelity-tau"
    )
    gamma = middle.slider(
        "Draft length γ",
        1,
        LONGEST_DRAFT,
        query.max_draft_from_link(LONGEST_DRAFT),
        help=define("draft_length"),
        key="fidelity-gamma",
    )
    drift = right.selectbox(
        "Drift as", list(DRIFTS), format_func=DRIFTS.get, help=define("total_variation"), key="fidelity-drift"
    )
    query.put_into_link(tau=tau, gamma=gamma)
    points = found.trade_offs(tau, gamma)
    chart(trade_off_figure(points, found.pair, found.cost.pair.device, drift), "trade-off", 460)
    best = max(points, key=lambda point: point.speedup)
    faithful = max((point for point in points if point.rule.claim == LOSSLESS), key=lambda point: point.speedup)
    st.text(
        f"Fastest without any drift: {faithful.rule}, {faithful.speedup:.2f}×. Fastest of all: {best.rule}, "
        f"{best.speedup:.2f}×, at which a token is one that the target could as well have drawn itself with chance "
        f"{best.agreement:.1%}."
    )
    texts = found.drift.texts
    st.caption(
        f"Drift is computed from both models' full distributions at {sum(len(text.confidence) for text in texts)} "
        f"positions of {len(texts)} texts that the target wrote at temperature {found.sampling.temperature:g}; a token "
        f"of the target's own drifts by nothing. Rounds are expected values. {found.cost.origin} "
        "Lossy rules are taken at the target's contexts; their own texts lead elsewhere."
    )


def tests(found: FidelityReport) -> None:
    st.subheader("Three tests")
    shown = (
        (
            "Greedy decoding, token by token",
            "Real runs of this pair, beside plain decoding with the target alone.",
            found.greedy,
        ),
        (
            "Three tokens deep, on a small pair",
            f"The first three tokens of {found.samples:,} generations on a pair of 8 tokens whose distributions are "
            "known, τ = 0.3, γ = 3, against the exact joint distribution.",
            found.first_three,
        ),
        (
            "The first token, on this pair",
            f"The first token after the prompt below over {found.samples:,} seeds, drawn and judged from both models' "
            "distributions there (top-k at most 20), against the target's.",
            found.first_token,
        ),
    )
    for column, (title, about, told) in zip(st.columns(3, gap="large"), shown, strict=True):
        with column:
            st.markdown(f"**{title}**")
            st.caption(about)
            for test in told:
                st.text(f"{'✓' if test.passed else '✕'} {test.title} ({test.claim}): {test.verdict}")


@st.fragment
def side_by_side(found: FidelityReport, name: str) -> None:
    st.subheader("Two outputs, side by side")
    titles = [output.title for output in found.outputs]
    columns = st.columns(2, gap="large")
    chosen: list[Output] = []
    for place, (column, default) in enumerate(zip(columns, (0, 1), strict=True)):
        title = column.selectbox("Left" if place == 0 else "Right", titles, index=default, key=f"side-{place}-{name}")
        chosen.append(found.outputs[titles.index(title)])
    left, right = chosen
    shown = display_from(found.tokens)
    differs = [np.ones(len(output.output), bool) for output in chosen]
    for block in SequenceMatcher(None, left.output, right.output, autojunk=False).get_matching_blocks():
        differs[0][block.a : block.a + block.size] = False
        differs[1][block.b : block.b + block.size] = False
    for place, (column, output) in enumerate(zip(columns, chosen, strict=True)):
        with column:
            marked_text(f"side-text-{place}", list(map(shown, output.output)), differs[place].tolist())
    first = first_divergence(left.output, right.output)
    if first is None:
        st.text(f"Equal, token by token: {len(left.output)} tokens.")
    else:
        st.text(
            f"They part at token {first + 1}; {int(differs[1].sum())} of {len(right.output)} tokens on the right are "
            f"marked as different. {why_they_part(left, right)}"
        )
    st.text(f"Prompt: {found.prompt}")


@st.fragment
def one_token(found: FidelityReport, name: str) -> None:
    st.subheader("The acceptance of one token")
    st.caption(
        "A run under rejection, token by token as it was judged: accepted tokens underlined, rejected ones struck "
        "through ✕ before the target's correction ↺, withheld ones in dots, a bonus +. What the draft took "
        "after a rejection was never judged and is left out. Click a token: where p and q overlap, a drafted token "
        "is accepted; what q has too much of is rejected; the residual, what p has and q has not, is where the "
        "target draws from instead. Together they make exactly p."
    )
    shown = display_from(found.tokens)
    place = chosen_place("acceptance-token", len(found.trace))
    token_choice("acceptance-token", [(shown(token.token), token.status) for token in found.trace], place)
    statuses = {token.status for token in found.trace}
    term_line((name for name in STATUSES if name in statuses), "acceptance-token")
    token = found.trace[place]
    left, right = st.columns([2, 3], gap="large", vertical_alignment="bottom")
    rules = {str(rule): rule for rule in found.drift.rules}
    rule = left.selectbox("Rule", list(rules), help=define("rule"), key=f"acceptance-rule-{name}")
    ids, drawn = found.picture(rules[rule], token.position)
    with right:
        st.text(
            f"{shown(token.token)!r} {BECAME[token.status]} (output token {token.position + 1}). Under {rule} a token "
            f"drafted here is accepted with chance {drawn.acceptance_rate:.1%}, and what the text gets is off the "
            f"target by {drawn.total_variation:.4f} (total variation)."
        )
    labels = [shown(token) if token >= 0 else "all others" for token in ids.tolist()]
    chart(acceptance_picture_figure(drawn, labels, rule), "acceptance-picture", 620)
    st.text(f"Prompt: {found.prompt}")


st.title("Is it still the target's text?")
st.caption(
    "Speed is half of the trade. A rule is lossless if the text is distributed as the target's own, however badly the "
    "draft guesses; it is lossy if the draft may get away with something."
)
try:
    reports = {"Your own": own_report(), "From the gallery": gallery_report()}
    names = [name for name, report in reports.items() if report is not None]
    if len(names) > 1:
        name = st.segmented_control("Report", names, default=names[0], required=True, key="fidelity-report")
    else:
        name = names[0] if names else None
    if name is None:
        st.info("No report is available. Measure one below; the command is `python -m specviz fidelity`.")
    else:
        trade_off(reports[name])
        tests(reports[name])
        side_by_side(reports[name], name)
        one_token(reports[name], name)
except SpecVizError as error:
    problem("The figures of this page cannot be shown.", error)
st.subheader("Test your own prompt")
try:
    run_form()
except SpecVizError as error:
    problem("This cannot be tested.", error)
