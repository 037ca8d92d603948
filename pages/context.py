"""Context: where a text is easy to foresee, and where it is not."""

import pandas as pd
import streamlit as st

from specviz.analysis import context_report
from specviz.analysis.context_report import SHORTEST
from specviz.errors import SpecVizError
from specviz.plots.calibration_figures import entropies_figure, groups_figure, stretches_figure
from specviz.plots.style import DRAFT, TARGET
from specviz.ui.charts import chart
from specviz.ui.choosing import choose_set
from specviz.ui.costs import cost_caption
from specviz.ui.glossary import define
from specviz.ui.judging import stretches_of, token_flags
from specviz.ui.messages import problem
from specviz.ui.shaded_text import shaded_text
from specviz.ui.tables import Column, show_table
from specviz.ui.token_texts import display_from

FULL_SHADE = 4.0  # nats


@st.fragment
def one_text(shown) -> None:
    """A recording's text shaded by entropy, and its stretches."""
    recording, texts = shown.recording, display_from(shown.tokens)
    model = st.segmented_control(
        "Shade by the entropy of",
        ["draft", "target"],
        default="draft",
        required=True,
        help=define("entropy"),
        key="shade",
    )
    tokens = [texts(token) for token in recording.output_ids.tolist()]
    drafted = [texts(token) for token in recording.draft_token.tolist()]
    found = stretches_of(shown, shown.longest_draft)
    entropy = getattr(recording, f"{model}_entropy")
    notes = [
        f"{said!r}: entropy of the draft {mine:.2f}, of the target {theirs:.2f} nats; the draft says "
        f"{guess!r} with confidence {sure:.2f}, {'right' if guess_id == said_id else 'wrong'}."
        for said, guess, mine, theirs, sure, guess_id, said_id in zip(
            tokens,
            drafted,
            recording.draft_entropy,
            recording.target_entropy,
            recording.draft_confidence,
            recording.draft_token,
            recording.output_ids,
            strict=True,
        )
    ]
    shaded_text(
        "shaded",
        tokens,
        [round(min(1.0, float(value) / FULL_SHADE), 3) for value in entropy],
        notes,
        [stretch.start for stretch in found[1:]],
        DRAFT if model == "draft" else TARGET,
        f"entropy of the {model}, 0 to {FULL_SHADE:.0f} nats and more; a mark stands where a stretch begins",
    )
    entropies = {name: getattr(recording, f"{name}_entropy") for name in ("draft", "target")}
    chart(stretches_figure(entropies, found, recording.pair), "stretches-figure", 340)
    rows = [
        {
            "tokens": f"{stretch.start} to {stretch.end - 1}",
            "kind": "even" if len(found) == 1 else "predictable" if stretch.predictable else "uncertain",
            "accepted": stretch.acceptance,
            "γ": stretch.draft_length,
            "text": "".join(tokens[stretch.start : stretch.end])[:160],
        }
        for stretch in found
        if stretch.tokens >= SHORTEST
    ]
    show_table(
        pd.DataFrame(rows),
        {
            "tokens": Column("Tokens"),
            "kind": Column("Kind", "stretch"),
            "accepted": Column("Accepted", "accepted", "percent"),
            "γ": Column("Best draft length", "draft_length"),
            "text": Column("Text", "stretch"),
        },
        "stretches",
    )
    lengths = (
        "The draft length is the fixed one with the most tokens per second over rounds starting there."
        if shown.cost
        else "Without a cost model no draft length can be told to suit them."
    )
    st.caption(
        f"Stretches of at least {SHORTEST} tokens, found as the likeliest way to switch between a higher and a lower "
        f"acceptance rate. {lengths}"
    )


st.title("Where is the text easy to foresee?")
st.caption(
    "Kinds of position are told from the text before and from what the draft is about to say, never from what the "
    "target says: a stopping policy could use them. A position that fits several counts under the first."
)
offered = choose_set("context-set", priced=False)
if offered is None:
    st.stop()
recordings, pair = offered.recordings, offered.recordings[0].pair
number, flags = len(recordings), token_flags(offered)
try:
    groups = {}
    if flags is None:
        st.text("The texts of this set's tokens are not known, so kinds and sentences are not either.")
    else:
        groups["Kind of position"] = context_report.by_kind(recordings, flags)
        groups["Place in the sentence"] = context_report.by_place(recordings, flags)
    groups["Category of prompt"] = context_report.by_category(recordings)
    which = st.segmented_control("Group by", list(groups), default=next(iter(groups)), required=True, key="group")
    table = groups[which]
    left, right = st.columns(2, gap="large")
    with left:
        chart(groups_figure(table, "Acceptance and confidence", pair, number), "groups-figure", 440)
    with right:
        chart(entropies_figure(table, "Entropy of either model", pair, number), "entropies-figure", 440)
    show_table(
        table,
        {
            "name": Column(which),
            "positions": Column("Positions"),
            "acceptance": Column("Accepted", "accepted", "percent"),
            "low": Column("from", "interval", "percent"),
            "high": Column("to", "interval", "percent"),
            "confidence": Column("Mean confidence", "confidence", "%.3f"),
            "draft_entropy": Column("Entropy of the draft (nats)", "entropy", "%.2f"),
            "target_entropy": Column("Entropy of the target (nats)", "entropy", "%.2f"),
        },
        "groups",
    )

    st.subheader("One text")
    place = st.selectbox(
        "Recording",
        range(number),
        format_func=lambda place: offered.members[place].title[:80],
        key="context-member",
    )
    one_text(offered.members[place])
    cost_caption(offered.cost, offered.members[place].pair, "context")
except SpecVizError as error:
    problem("This set cannot be shown by context.", error)
