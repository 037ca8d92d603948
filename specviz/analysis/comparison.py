"""Predicted against measured speedups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specviz.analysis.bootstrap import LEVEL, Interval, resample_weights, speedup_limits
from specviz.errors import SpecVizError

MEDIAN_BAR, WORST_BAR = 0.05, 0.12  # what a prediction must keep to


@dataclass(frozen=True, eq=False)
class Comparison:
    """Speedups of several settings, predicted and measured; the columns of `table` are documented in `compare`."""

    table: pd.DataFrame

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors."""
        return float(self.table["error"].abs().median())

    @property
    def worst_error(self) -> float:
        """Largest absolute relative error."""
        return float(self.table["error"].abs().max())

    @property
    def within_bars(self) -> bool:
        return self.median_error <= MEDIAN_BAR and self.worst_error <= WORST_BAR

    def __str__(self) -> str:
        shown = self.table.assign(error=[f"{error:+.1%}" for error in self.table["error"]])
        return (
            f"{shown.to_string(index=False, float_format='{:.3f}'.format)}\n"
            f"absolute error: median {self.median_error:.1%} (at most {MEDIAN_BAR:.0%}), "
            f"worst {self.worst_error:.1%} (at most {WORST_BAR:.0%})"
        )


def compare(settings: Sequence[dict], predicted: Sequence[float], measured: Sequence[float]) -> Comparison:
    """Line up predictions and measurements.

    Args:
        settings: what each row was run with, such as {"threshold": 0.4, "max_draft": 5}; become columns.
        predicted: speedups over plain decoding.
        measured: the same, really run.

    Returns:
        A table with the settings' columns and `predicted`, `measured`, `error` (predicted / measured - 1).
    """
    if not len(settings) == len(predicted) == len(measured) or not len(settings):
        raise SpecVizError(
            f"There are {len(settings)} settings, {len(predicted)} predictions and {len(measured)} measurements; "
            "each setting needs one of both."
        )
    predicted, measured = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    if not (np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)).all():
        raise SpecVizError("A speedup is missing or not positive; run the settings again.")
    table = pd.DataFrame(list(settings)).assign(predicted=predicted, measured=measured, error=predicted / measured - 1)
    return Comparison(table)


@dataclass(frozen=True)
class MeasuredPoint:
    """A setting that was really run: its pooled speedup and interval over prompts, for a curve or a heat map."""

    threshold: float
    max_draft: int
    speedup: Interval
    prompts: int
    on_fail: str = "drop"  # what happens to the token that fails the threshold


def measured_point(
    threshold: float,
    max_draft: int,
    plain_seconds: Sequence[Sequence[float]],
    seconds: Sequence[Sequence[float]],
    on_fail: str = "drop",
    level: float = LEVEL,
) -> MeasuredPoint:
    """Pool real runs; the interval resamples runs, which are prompts where each was run once.

    Args:
        plain_seconds: (repeats, R) decoding time of each prompt without speculation, processing of the prompt left out;
            the last repeat may be cut short.
        seconds: (repeats, R) the same with this setting.
    """
    prompts = len(seconds[0])
    pairs = [pair for rows in zip(plain_seconds, seconds, strict=True) for pair in zip(*rows, strict=False)]
    plain, seconds = np.array(pairs, np.float64).T
    low, high = speedup_limits(plain, seconds[:, None], resample_weights(len(plain)), level)[:, 0]
    speedup = Interval(float(plain.sum() / seconds.sum()), float(low), float(high), level)
    return MeasuredPoint(float(threshold), int(max_draft), speedup, prompts, on_fail)
