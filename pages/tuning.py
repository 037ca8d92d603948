"""Tuning: which threshold and draft length to use, and how to say so to other programs."""

import streamlit as st

from specviz.analysis.ready_settings import ready_settings
from specviz.analysis.report import table_as_csv
from specviz.analysis.tuning import tuning_table
from specviz.analysis.tuning_report import FATES, tuning_html
from specviz.errors import SpecVizError
from specviz.plots.policy_figures import tuning_figures
from specviz.ui.advice import advice_of
from specviz.ui.charts import chart
from specviz.ui.choosing import choose_set
from specviz.ui.costs import cost_caption
from specviz.ui.measuring import measure_form
from specviz.ui.messages import problem

SHOWN = ["choice", "threshold", "max_draft", "speedup", "held_out", "held_out_low", "held_out_high", "regret"]
SHOWN += ["flat_from", "flat_to"]


def report(advice) -> str:
    """The whole page as one HTML file that works offline."""
    pictures = [
        figure.to_html(full_html=False, include_plotlyjs=place == 0, config={"displaylogo": False})
        for place, figure in enumerate(tuning_figures(advice.tuning))
    ]
    return tuning_html(advice, pictures)


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
    st.dataframe(
        table[SHOWN].assign(choice=[FATES[name] for name in table["choice"]]),
        hide_index=True,
        column_config={
            "choice": "Choice",
            "threshold": st.column_config.NumberColumn("τ", format="%.2f"),
            "max_draft": "γ",
            "speedup": st.column_config.NumberColumn("Speedup", format="%.3f ×", help="On the prompts that chose it"),
            "held_out": st.column_config.NumberColumn(
                "On new prompts", format="%.3f ×", help="Cross-validated: each prompt at the choice of other prompts"
            ),
            "held_out_low": st.column_config.NumberColumn("from", format="%.3f", help="95 % interval over prompts"),
            "held_out_high": st.column_config.NumberColumn("to", format="%.3f"),
            "regret": st.column_config.NumberColumn(
                "Regret", format="percent", help="Slower by this than the best setting in hindsight"
            ),
            "flat_from": st.column_config.NumberColumn("flat from τ", format="%.2f", help="Within 1 % of the best"),
            "flat_to": st.column_config.NumberColumn("to τ", format="%.2f"),
        },
        key="tuning-table",
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
