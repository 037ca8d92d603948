"""The current view as one HTML file that works offline."""

from html import escape

import numpy as np

from specviz.analysis import metrics, predict
from specviz.analysis.tuning_report import FATES, made_at
from specviz.plots.offline import charts_html
from specviz.trace.statuses import EMITTED_STATUSES
from specviz.ui.charts import COLUMNS, trace_figures
from specviz.ui.shown import Shown
from specviz.ui.status_style import status_css
from specviz.ui.token_texts import display_text

STYLE = (
    status_css("body", "#1d1b18")
    + """
body { font: 16px/1.55 "Source Sans 3", system-ui, sans-serif; color: #1d1b18; background: #fdfcfa; margin: 0 auto;
  max-width: 980px; padding: 40px 24px 80px; font-variant-numeric: tabular-nums; }
h1 { font-weight: 500; font-size: 26px; margin: 0 0 4px; } .soft { color: #65625c; font-size: 14px; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 18px; line-height: 1.9; margin: 28px 0; }
table { border-collapse: collapse; margin-bottom: 36px; } td { padding: 3px 28px 3px 0; border-top: 1px solid #e3dfd8; }
td:last-child { text-align: right; padding-right: 0; }
"""
)


def html_report(shown: Shown, tau: float, max_draft: int, on_fail: str = "drop") -> str:
    """Text, numbers and figures of one setting. Text from models and prompts is escaped."""
    trace = shown.trace(tau, max_draft, on_fail)
    numbers = {
        name.replace("_", " "): f"{value:d}" if isinstance(value, np.integer) else f"{value:.3f}"
        for name, value in vars(metrics(trace)).items()
    }
    if shown.cost is not None:
        numbers = {"speedup (modelled)": f"{float(predict(trace, shown.cost).speedup):.3f}", **numbers}
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{value}</td></tr>" for name, value in numbers.items())
    text = "".join(
        f'<span class="{status}">{escape(display_text(shown.tokens.get(token, b"?")))}</span>'
        for token, status in zip(trace.steps["token"].tolist(), trace.steps["status"].tolist(), strict=True)
        if status in EMITTED_STATUSES
    )
    drawn = dict(trace_figures(shown, tau, max_draft, on_fail))
    charts = charts_html(drawn[name] for name in COLUMNS if name in drawn)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>SpecViz report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{escape(shown.title)}</h1>"
        f'<p class="soft">Threshold {tau:.3f}, draft length {max_draft}, {FATES[on_fail]}. '
        f"{escape(shown.about())} {made_at()}</p>"
        f'<p class="soft">Prompt: <bdi>{escape(shown.recording.prompt)}</bdi></p>'
        f'<p class="text" dir="auto">{text}</p><table>{rows}</table>{charts}</body></html>'
    )
