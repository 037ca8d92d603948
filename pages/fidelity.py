"""Fidelity: is the output still the target's own, and what does it gain if it need not be?"""

from difflib import SequenceMatcher

import numpy as np
import streamlit as st

from specviz.analysis.fidelity import acceptance_picture, first_divergence, trade_offs
from specviz.errors import SpecVizError
from specviz.plots import acceptance_picture_figure, trade_off_figure
from specviz.plots.fidelity import DRIFTS
from specviz.replay.rules import LOSSLESS, TargetSampleMatch
from specviz.ui import fidelity_data, query
from specviz.ui.charts import chart
from specviz.ui.fidelity_data import FidelityData, Text
from specviz.ui.marked_text import chosen_place, marked_text, token_choice
from specviz.ui.messages import problem
from specviz.ui.token_texts import display_from

LONGEST_DRAFT = 8
TESTS = {
    "greedy": (
        "Greedy decoding, token by token",
        "Real runs on the built-in pair, beside plain decoding with the target alone.",
    ),
    "toys": (
        "Three tokens deep, on a small pair",
        "The first three tokens of 50,000 generations on a pair of 8 tokens whose distributions are known, τ = 0.3, "
        "γ = 3, against the exact joint distribution.",
    ),
    "first_token": (
        "The first token, on the built-in pair",
        "The first token after the prompt below over 50,000 seeds, drawn and judged from both models' distributions "
        "there (top-k 20), against the target's.",
    ),
}


@st.cache_resource(show_spinner=False)
def data() -> FidelityData:
    return fidelity_data.load()


@st.fragment
def trade_off(found: FidelityData) -> None:
    st.subheader("What a little infidelity buys")
    st.caption(
        "Lossless rules stand at no drift. The others trade: each curve is one rule as its knob moves, from strict to "
        "generous. Move threshold and draft length and watch what the trade is worth."
    )
    left, middle, right = st.columns([2, 1.4, 2], gap="large", vertical_alignment="bottom")
    tau = left.slider("Threshold τ", 0.0, 1.0, query.tau_from_link(), 0.01, key="fidelity-tau")
    gamma = middle.slider(
        "Draft length γ", 1, LONGEST_DRAFT, query.max_draft_from_link(LONGEST_DRAFT), key="fidelity-gamma"
    )
    drift = right.selectbox("Drift as", list(DRIFTS), format_func=DRIFTS.get, key="fidelity-drift")
    query.put_into_link(tau=tau, gamma=gamma)
    points = trade_offs(found.drift, found.cost, tau, gamma, pass_mode=found.pass_mode)
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
        f"positions of {len(texts)} texts that the target wrote at temperature {found.temperature:g}; a token of "
        "the target's own drifts by nothing. Rounds are expected values, times come from passes measured on "
        f"{found.cost.pair.device}. Lossy rules are taken at the target's contexts; their own texts lead elsewhere."
    )


def tests(found: FidelityData) -> None:
    st.subheader("Three tests")
    for column, (name, (title, about)) in zip(st.columns(3, gap="large"), TESTS.items(), strict=True):
        with column:
            st.markdown(f"**{title}**")
            st.caption(about)
            for test in found.tests[name]:
                claim = f" ({test['claim']})" if "claim" in test else ""
                st.text(f"{'✓' if test['passed'] else '✕'} {test['title']}{claim}: {test['verdict']}")


@st.fragment
def side_by_side(found: FidelityData) -> None:
    st.subheader("Two outputs, side by side")
    titles = [text.title for text in found.texts]
    columns = st.columns(2, gap="large")
    chosen: list[Text] = []
    for place, (column, default) in enumerate(zip(columns, (0, 1), strict=True)):
        title = column.selectbox("Left" if place == 0 else "Right", titles, index=default, key=f"side-{place}")
        chosen.append(found.texts[titles.index(title)])
    left, right = chosen
    shown = display_from(found.tokens)
    differs = [np.ones(len(text.output), bool) for text in chosen]
    for block in SequenceMatcher(None, left.output, right.output, autojunk=False).get_matching_blocks():
        differs[0][block.a : block.a + block.size] = False
        differs[1][block.b : block.b + block.size] = False
    for place, (column, text) in enumerate(zip(columns, chosen, strict=True)):
        with column:
            marked_text(f"side-text-{place}", list(map(shown, text.output)), differs[place].tolist())
    first = first_divergence(left.output, right.output)
    if first is None:
        st.text(f"Equal, token by token: {len(left.output)} tokens.")
    else:
        st.text(
            f"They part at token {first + 1}; {int(differs[1].sum())} of {len(right.output)} tokens on the right are "
            f"marked as different. {_why_they_part(left, right)}"
        )
    st.text(f"Prompt: {found.prompt}")


def _why_they_part(left: Text, right: Text) -> str:
    if left.greedy != right.greedy:
        return "One takes the likeliest token, the other draws."
    if left.greedy or {left.rule, right.rule} <= {None, "coupled"}:
        return "Both should be equal: they part where two tokens nearly tie and rounding decides."
    return (
        "Two draws from one distribution part as well, so a difference alone proves nothing: that is what the tests "
        "above are for."
    )


@st.fragment
def one_token(found: FidelityData) -> None:
    st.subheader("The acceptance of one token")
    st.caption(
        "Where p and q overlap, a drafted token stands. What q has too much of is rejected; the residual, what p has "
        "and q has not, is where the target draws from instead. Together they make exactly p. Click a token."
    )
    shown = display_from(found.tokens)
    pictures = found.pictures
    place = chosen_place("acceptance-token", len(pictures))
    token_choice("acceptance-token", [shown(picture.emitted) for picture in pictures], place)
    left, right = st.columns([2, 3], gap="large", vertical_alignment="bottom")
    rules = {str(rule): rule for rule in found.drift.rules if not isinstance(rule, TargetSampleMatch)}
    name = left.selectbox("Rule", list(rules), key="acceptance-rule")
    picture = pictures[place]
    order = np.argsort(picture.p)[::-1]
    ids, p, q = np.array(picture.ids)[order], np.array(picture.p)[order], np.array(picture.q)[order]
    # what the picture leaves out counts as one more token, so that both sum to 1
    p, q = (np.append(values, max(0.0, 1 - values.sum())) for values in (p, q))
    drawn = acceptance_picture(rules[name], p, q)
    with right:
        st.text(
            f"Drafted here, a token stands with chance {drawn.acceptance_rate:.1%}. What the text gets is off the "
            f"target by {drawn.total_variation:.4f} (total variation)."
        )
    labels = [*map(shown, ids.tolist()), "all others"]
    chart(acceptance_picture_figure(drawn, labels, name), "acceptance-picture", 620)


st.title("Is it still the target's text?")
st.caption(
    "Speed is half of the trade. A rule is lossless if the text is distributed as the target's own, however badly the "
    "draft guesses; it is lossy if the draft may get away with something."
)
try:
    found = data()
    trade_off(found)
    tests(found)
    side_by_side(found)
    one_token(found)
except SpecVizError as error:
    problem("The figures of this page cannot be shown.", error)
