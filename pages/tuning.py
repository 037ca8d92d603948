"""Tuning: which threshold and draft length to use, and how to say so to other programs."""

import streamlit as st

from specviz.analysis.ready_settings import ready_settings
from specviz.analysis.report import table_as_csv
from specviz.analysis.tuning import tuning_table
from specviz.analysis.tuning_report import FATES, tuning_html
from specviz.errors import SpecVizError
from specviz.plots.offline import charts_html
from specviz.plots.policy_figures import tuning_figures
from specviz.ui.advice import advice_of
from specviz.ui.charts import chart
from specviz.ui.choosing import choose_set
from specviz.ui.costs import cost_caption
from specviz.ui.measuring import measure_form
from specviz.ui.messages import problem
from specviz.ui.tables import Column, show_table


def report(advice) -> str:
    """The whole page as one HTML file that works offline."""
    return tuning_html(advice, charts_html(tuning_figures(advice.tuning)))


st.title("Which setting should I use?")
st.caption(
    "Threshold, draft length and what happens to the token that fails are chosen together, and judged on prompts that "
    "did not choose them. This is the recommendation of every page. The recording set "
    "should be like what you will run: record your own prompts under Thresholds, or with `python -m specviz record`."
)
offered = choose_set("tuning-set")
if offered is None:
    st.stop()
try:
    advice = advice_of(offered)
    tuning, best = advice.tuning, advice.choice
    st.markdown("#### Recommendation")
    st.text(advice.recommendation)
    st.text(" ".join(advice.sentences))
    cost_caption(offered.cost, offered.members[0].pair, "tuning")
    measure_form(offered, best.threshold, best.max_draft, best.on_fail)
    first, second = tuning_figures(tuning)
    chart(first, "tuning-curves", 440)
    table = tuning_table(tuning)
    show_table(
        table.assign(choice=[FATES[name] for name in table["choice"]]),
        {
            "choice": Column("Choice"),
            "threshold": Column("τ", "threshold", "%.2f"),
            "max_draft": Column("γ", "draft_length"),
            "speedup": Column("Speedup", "in_sample", "%.3f ×"),
            "held_out": Column("On new prompts", "held_out", "%.3f ×"),
            "held_out_low": Column("from", "interval", "%.3f"),
            "held_out_high": Column("to", "interval", "%.3f"),
            "regret": Column("Regret", "regret", "percent"),
            "flat_from": Column("flat from τ", "flat", "%.2f"),
            "flat_to": Column("to τ", "flat", "%.2f"),
        },
        "tuning-table",
    )
    chart(second, "tuning-grid", 440)

    ready_to_paste = ready_settings(advice)
    if ready_to_paste:
        st.subheader("Ready to paste")
    for ready in ready_to_paste:
        st.markdown(f"**{ready.program}**")
        if ready.text:
            st.code(ready.text, language=ready.language, wrap_lines=True)
        st.caption(ready.note)
    buttons = st.columns(2)
    buttons[0].download_button(
        "Report (HTML, works offline)",
        lambda: report(advice),
        "specviz-tuning.html",
        "text/html",
        width="stretch",
        on_click="ignore",
    )
    buttons[1].download_button(
        "Table (CSV)",
        lambda: table_as_csv(table),
        "specviz-tuning.csv",
        "text/csv",
        width="stretch",
        on_click="ignore",
    )
except SpecVizError as error:
    problem("This set cannot be tuned for.", error)
