"""Metrics, the cost model, predictions and curves. Needs numpy and pandas only."""

from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.analysis.curves import SpeedupCurve, SpeedupGrid, grid, speedup_curve
from specviz.analysis.metrics import Metrics, ThresholdOutcomes, metrics, pooled, threshold_outcomes
from specviz.analysis.prediction import Prediction, RoundTimes, measured_round_times, predict, round_times
from specviz.analysis.verdict import BestSetting, Verdict

__all__ = [
    "BestSetting",
    "CostModel",
    "Metrics",
    "PassTimes",
    "Prediction",
    "RoundTimes",
    "SpeedupCurve",
    "SpeedupGrid",
    "ThresholdOutcomes",
    "Timing",
    "Verdict",
    "grid",
    "measured_round_times",
    "metrics",
    "pooled",
    "predict",
    "round_times",
    "speedup_curve",
    "threshold_outcomes",
]
