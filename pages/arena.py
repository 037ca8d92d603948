"""Policy arena: every stopping policy at its best knob, against the best that is possible."""

import streamlit as st

from specviz.analysis.arena_table import arena_table, curve_table, pair_table
from specviz.analysis.report import table_as_csv
from specviz.errors import SpecVizError
from specviz.plots.policy_figures import arena_figure, knob_figure, pairs_figure
from specviz.ui.advice import advice_of
from specviz.ui.charts import chart
from specviz.ui.choosing import choose_set
from specviz.ui.costs import cost_caption
from specviz.ui.glossary import define
from specviz.ui.judging import arena_of, longest_draft, policy_descriptions
from specviz.ui.messages import problem
from specviz.ui.tables import Column, show_table

st.title("When should the draft stop?")
st.caption(
    "Every stopping policy on the same recordings. Each chose its knob, and learnt what it learns, on one half of the "
    "prompts and is judged on the other, both ways round. Only “Threshold, drop” and llama.cpp withhold the token "
    "that fails; the others propose it and then stop. The optimal oracle knows the future: no policy can be faster."
)
left, right = st.columns([3, 2], gap="large")
offered = choose_set("arena-set", fewest=2, column=left)
if offered is None:
    st.stop()
most = longest_draft(offered)
max_draft = right.slider(
    "Longest draft of every policy", 1, most, min(16, most), help=define("draft_length"), key="arena-gamma"
)
try:
    result = arena_of(offered, max_draft)
    st.text(f"With the longest draft of every policy held at {max_draft}: {' '.join(result.sentences)}")
    st.text(f"Of all settings of a threshold: {advice_of(offered).recommendation}")
    st.page_link("pages/tuning.py", label="How that was chosen")
    chart(arena_figure(result), "arena-figure", 680)
    cost_caption(offered.cost, offered.members[0].pair, "arena")
    table = arena_table(result)
    show_table(
        table,
        {
            "policy": Column("Policy"),
            "chosen": Column("Knob"),
            "speedup": Column("Speedup", "held_out", "%.3f ×"),
            "low": Column("from", "interval", "%.3f"),
            "high": Column("to", "interval", "%.3f"),
            "chosen_speedup": Column("Where chosen", "in_sample", "%.3f ×"),
            "captured": Column("Of the oracle's gain", "captured", "percent"),
            "tokens_per_pass": Column("Tokens per target pass", "tokens_per_target_pass", "%.2f"),
            "waste": Column("Waste", "draft_steps_wasted", "percent"),
            "beats": Column("Surely beats", "surely_beats", "%d"),
        },
        "arena-table",
    )
    if result.left_out:
        st.text(f"Left out, since the texts of this set's tokens are not known: {', '.join(result.left_out)}.")
    files = {"This table": arena_table, "Every curve": curve_table, "Every pair": pair_table}
    for column, (label, make) in zip(st.columns(3), files.items(), strict=True):
        column.download_button(
            f"{label} as CSV",
            lambda make=make: table_as_csv(make(result)),
            f"{make.__name__}.csv",
            "text/csv",
            width="stretch",
            on_click="ignore",
            key=make.__name__,
        )

    st.subheader("How much the knob matters")
    tuned = [entry.label for entry in result.policies if entry.knob]
    label = st.selectbox("Policy", tuned, help=define("policy"), key="arena-policy")
    chart(knob_figure(result, label), "knob-figure", 380)

    st.subheader("Which differences are sure?")
    chart(pairs_figure(result), "pairs-figure", 620)
except SpecVizError as error:
    problem("These policies cannot be compared.", error)

with st.expander("What each policy does"):
    for name, words in policy_descriptions().items():
        st.text(f"{name}\n{words}")
