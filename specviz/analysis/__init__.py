"""Metrics, the cost model, predictions and curves. Needs numpy and pandas only."""

from specviz.analysis.bootstrap import Interval
from specviz.analysis.comparison import Comparison, MeasuredPoint, compare, measured_point
from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.analysis.curves import BestSetting, SpeedupCurve, SpeedupGrid, grid, speedup_curve
from specviz.analysis.metrics import Metrics, ThresholdOutcomes, metrics, pooled, threshold_outcomes
from specviz.analysis.prediction import Prediction, RoundTimes, measured_round_times, predict, round_times
from specviz.analysis.prompts import Prompt, default_prompts, load_prompts
from specviz.analysis.report import describe, sweep_table, write_table

__all__ = [
    "BestSetting",
    "Comparison",
    "CostModel",
    "Interval",
    "MeasuredPoint",
    "Metrics",
    "PassTimes",
    "Prediction",
    "Prompt",
    "RoundTimes",
    "SpeedupCurve",
    "SpeedupGrid",
    "ThresholdOutcomes",
    "Timing",
    "compare",
    "default_prompts",
    "describe",
    "grid",
    "load_prompts",
    "measured_point",
    "measured_round_times",
    "metrics",
    "pooled",
    "predict",
    "round_times",
    "speedup_curve",
    "sweep_table",
    "threshold_outcomes",
    "write_table",
]
