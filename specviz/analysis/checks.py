"""Measured points beside what the cost model predicts for the same prompts at the same setting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.analysis.comparison import MEDIAN_BAR, MeasuredPoint
from specviz.analysis.cost_model import CostModel
from specviz.analysis.curves import grid
from specviz.trace import Recording


@dataclass(frozen=True)
class Check:
    """One measured point and its prediction."""

    point: MeasuredPoint
    predicted: float  # speedup of the same prompts at the same setting

    @property
    def contradicts(self) -> bool:
        """Whether the prediction lies outside the measured interval, and further from the measured speedup than
        predictions may be (`comparison.MEDIAN_BAR`): the interval of a few equal runs can be narrower than that."""
        measured = self.point.speedup
        inside = measured.low <= self.predicted <= measured.high
        return not inside and abs(self.predicted / measured.value - 1) > MEDIAN_BAR

    @property
    def sentence(self) -> str:
        """What was measured, what was predicted, and what follows."""
        point, measured = self.point, self.point.speedup
        interval = ""
        if not math.isnan(measured.low):
            interval = f" ({measured.level:.0%} interval {measured.low:.2f} to {measured.high:.2f})"
        setting = f"at threshold {point.threshold:.3f}, draft length {point.max_draft} and {point.on_fail}"
        prompts = f"{point.prompts} prompt{'s' * (point.prompts != 1)}"
        pair = f"Measured {measured.value:.2f}×{interval}, predicted {self.predicted:.2f}× {setting}, on {prompts}"
        if self.contradicts:
            return (
                f"{pair}: the cost model does not hold here, so do not rely on its speedups or settings; measure the "
                "costs again while the machine does nothing else."
            )
        return f"{pair}: the measurement agrees with the cost model."


def check(point: MeasuredPoint, recordings: Sequence[Recording], cost: CostModel) -> Check:
    """Put a measured point beside its prediction.

    Args:
        recordings: of the set that was measured; the point is of the first `point.prompts` of them.

    Raises:
        SpecVizError: the recordings or the cost model do not cover the setting.
    """
    measured = recordings[: point.prompts]
    cells = grid(measured, cost, [point.threshold], [point.max_draft], on_fail=point.on_fail, resamples=1)
    return Check(point, float(cells.speedup[0, 0]))
