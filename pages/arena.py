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
from specviz.ui.judging import arena_of, longest_draft, policy_descriptions
from specviz.ui.messages import problem

SHOWN = ["policy", "chosen", "speedup", "low", "high", "chosen_speedup", "captured", "tokens_per_pass", "waste"]
SHOWN += ["beats"]

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
max_draft = right.slider("Longest draft of every policy", 1, most, min(16, most), key="arena-gamma")
try:
    result = arena_of(offered, max_draft)
    st.text(f"With the longest draft of every policy held at {max_draft}: {' '.join(result.sentences)}")
    st.text(f"Of all settings of a threshold: {advice_of(offered).recommendation}")
    st.page_link("pages/tuning.py", label="How that was chosen")
    chart(arena_figure(result), "arena-figure", 680)
    cost_caption(offered.cost, offered.members[0].pair, "arena")
    table = arena_table(result)
    st.dataframe(
        table[SHOWN],
        hide_index=True,
        height=35 * (len(table) + 1) + 3,
        column_config={
            "policy": "Policy",
            "chosen": st.column_config.TextColumn("Knob", help="What either half chose for the other"),
            "speedup": st.column_config.NumberColumn("Speedup", format="%.3f ×", help="On prompts that did not choose"),
            "low": st.column_config.NumberColumn("from", format="%.3f", help="95 % interval: prompts, pass times"),
            "high": st.column_config.NumberColumn("to", format="%.3f"),
            "chosen_speedup": st.column_config.NumberColumn(
                "Where chosen", format="%.3f ×", help="On the prompts that chose the knob: this flatters"
            ),
            "captured": st.column_config.NumberColumn(
                "Of the oracle's gain", format="percent", help="0 is plain decoding, 1 the optimal oracle"
            ),
            "tokens_per_pass": st.column_config.NumberColumn("Tokens per target pass", format="%.2f"),
            "waste": st.column_config.NumberColumn(
                "Waste", format="percent", help="Share of draft steps whose token was not accepted"
            ),
            "beats": st.column_config.NumberColumn(
                "Surely beats", help="Policies that are slower beyond the choice of prompts, after Holm's correction"
            ),
        },
        key="arena-table",
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
    label = st.selectbox("Policy", tuned, key="arena-policy")
    chart(knob_figure(result, label), "knob-figure", 380)

    st.subheader("Which differences are sure?")
    chart(pairs_figure(result), "pairs-figure", 620)
except SpecVizError as error:
    problem("These policies cannot be compared.", error)

with st.expander("What each policy does"):
    for name, words in policy_descriptions().items():
        st.text(f"{name}\n{words}")
