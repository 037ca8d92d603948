"""A tuning as one HTML file that works offline."""

from datetime import UTC, datetime
from html import escape

from specviz.analysis.ready_settings import ready_settings
from specviz.analysis.tuning import Choice
from specviz.analysis.verdict import Advice

STYLE = """
body { font: 16px/1.55 "Source Sans 3", system-ui, sans-serif; color: #1d1b18; background: #fdfcfa; margin: 0 auto;
  max-width: 980px; padding: 40px 24px 80px; font-variant-numeric: tabular-nums; }
h1 { font-weight: 500; font-size: 26px; margin: 0 0 4px; } h2 { font-weight: 500; font-size: 19px; margin: 36px 0 4px; }
.soft { color: #65625c; font-size: 14px; } .first { font-size: 19px; max-width: 60ch; }
table { border-collapse: collapse; margin: 20px 0; } th, td { padding: 4px 24px 4px 0; border-top: 1px solid #e3dfd8;
  text-align: right; font-weight: 400; } th { border: 0; color: #65625c; font-size: 14px; }
.wide { overflow-x: auto; } .hint { display: none; margin: 0; }
@media (max-width: 720px) { .hint { display: block; } td:not(:first-child), th { white-space: nowrap; } }
th:first-child, td:first-child { text-align: left; }
pre { background: #f3f0ea; padding: 12px 16px; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 14px; }
"""
FATES = {
    "drop": "token that fails withheld (drop)",
    "keep": "token that fails proposed (keep)",
    "fixed": "no threshold",
}


def made_at() -> str:
    """When a report is made, that is now, in words."""
    return f"Made on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC."


def flat_words(choice: Choice) -> str:
    """The flat top in words; nothing where there is no threshold."""
    return "" if choice.name == "fixed" else f"{choice.flat[0]:.2f} to {choice.flat[1]:.2f}"


def tuning_html(advice: Advice, charts: str) -> str:
    """The report. Names of models and devices are escaped.

    Args:
        charts: as HTML, with what draws them.
    """
    tuning = advice.tuning
    pair = tuning.pair
    head = ("", "threshold", "draft length", "speedup", "on new prompts", "interval", "regret", "flat top")
    rows = "".join(
        f"<tr><td>{FATES[choice.name]}</td><td>{choice.threshold:.2f}</td><td>{choice.max_draft}</td>"
        f"<td>{choice.speedup.value:.3f}</td><td>{choice.held_out.value:.3f}</td>"
        f"<td>{choice.held_out.low:.3f} to {choice.held_out.high:.3f}</td><td>{choice.regret:.1%}</td>"
        f"<td>{flat_words(choice)}</td></tr>"
        for choice in tuning.choices
    )
    settings = "".join(
        f"<h2>{ready.program}</h2>"
        + (f"<pre>{escape(ready.text)}</pre>" if ready.text else "")
        + f"<p class='soft'>{escape(ready.note)}</p>"
        for ready in ready_settings(advice)
    )
    about = (
        f"{pair.target} ({pair.target_precision}) with {pair.draft} ({pair.draft_precision}) on {pair.device}, pass "
        f"mode {tuning.pass_mode}, {tuning.prompts} prompts. Speedups are modelled: replayed rounds, priced with "
        f"measured times, over plain decoding of the same target. {tuning.origin} {made_at()}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>SpecViz: tuning</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>Threshold and draft length</h1><p class='soft'>{escape(about)}</p>"
        f"<p class='first'>{escape(advice.recommendation)}</p><p>{escape(' '.join(advice.sentences))}</p>"
        f"<div class='wide' role='region' aria-label='The choices' tabindex='0'>"
        f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{rows}</table></div>"
        "<p class='soft hint'>Scroll the table sideways for more columns →</p>"
        f"{charts}{settings}</body></html>"
    )
