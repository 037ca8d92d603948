"""Figures: data in, plotly `Figure` out.

They carry no colour of text or background, so they fit a light and a dark page; the page's theme sets those.
`policy_figures` and `calibration_figures` are imported from their own modules: they need scikit-learn, which takes a
second to load.
"""

from specviz.plots.fidelity import acceptance_picture_figure, trade_off_figure
from specviz.plots.speedups import acceptance_figure, heat_map_figure, speedup_figure
from specviz.plots.trace_figures import confidence_figure, run_lengths_figure, time_figure, timeline_figure

__all__ = [
    "acceptance_figure",
    "acceptance_picture_figure",
    "confidence_figure",
    "heat_map_figure",
    "run_lengths_figure",
    "speedup_figure",
    "time_figure",
    "timeline_figure",
    "trade_off_figure",
]
