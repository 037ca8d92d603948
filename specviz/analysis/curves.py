"""Speedup against threshold and draft length over a set of recordings, with intervals over prompts and pass times.

All speedups are pooled: total plain time over total time, so that a prompt weighs what it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specviz.analysis.bootstrap import LEVEL, RESAMPLES, Interval, stretches
from specviz.analysis.cost_model import CostModel, recorded_pass_mode
from specviz.analysis.metrics import pooled
from specviz.analysis.prediction import Prediction, predict
from specviz.analysis.replicates import Replicates
from specviz.errors import SpecVizError
from specviz.replay import RoundCounts, breakpoints, replay_grid
from specviz.trace import PairInfo, Recording


@dataclass(frozen=True)
class BestSetting:
    """The setting with the highest pooled speedup of a curve or grid, whatever these hold fixed; with its interval, on
    the prompts that chose it. What to use is another question: see `specviz.analysis.verdict.advise`."""

    threshold: float
    max_draft: int
    speedup: Interval

    def __str__(self) -> str:
        value, low, high, level = self.speedup.value, self.speedup.low, self.speedup.high, self.speedup.level
        interval = "" if np.isnan(low) else f" ({level:.0%} interval {low:.2f} to {high:.2f})"
        return f"{value:.2f}× on the prompts that chose it{interval}"


@dataclass(frozen=True, eq=False)
class SpeedupCurve:
    """Speedup against threshold at one draft length. T thresholds, R recordings.

    With `exact` it is the true step function: each value holds from its threshold up to the next one.
    """

    pair: PairInfo  # whose times these are: the cost model's
    pass_mode: str
    max_draft: int
    on_fail: str
    exact: bool
    thresholds: np.ndarray  # (T,), rising; the first is 0 if exact
    speedup: np.ndarray  # (T,)
    low: np.ndarray  # (T,) limits of the interval over prompts and pass times; NaN for a single recording
    high: np.ndarray  # (T,)
    level: float  # of the interval
    counts: RoundCounts  # (T,), summed over recordings
    plain_seconds: np.ndarray  # (R,)
    seconds: np.ndarray  # (R, T)
    outside: int  # recordings with contexts beyond the measured ones

    @property
    def best(self) -> BestSetting:
        """The best threshold at this draft length and this fate of the token that fails."""
        place = int(self.speedup.argmax())
        return BestSetting(float(self.thresholds[place]), self.max_draft, _interval(self, place))

    @property
    def sentence(self) -> str:
        """The best of this curve, and what it holds fixed."""
        best = self.best
        return (
            f"With γ = {self.max_draft} and {self.on_fail} held fixed: best at threshold {best.threshold:.3f}, {best}."
        )

    def at(self, threshold: float) -> int:
        """Index of the value that holds at `threshold`; on a curve that is not exact, of the last threshold below."""
        return max(0, int(np.searchsorted(self.thresholds, threshold, side="right")) - 1)


@dataclass(frozen=True, eq=False)
class SpeedupGrid:
    """Speedup over thresholds (T) and draft lengths (D) of R recordings."""

    pair: PairInfo  # whose times these are: the cost model's
    pass_mode: str
    on_fail: str
    thresholds: np.ndarray  # (T,)
    max_drafts: np.ndarray  # (D,)
    speedup: np.ndarray  # (T, D)
    low: np.ndarray  # (T, D) limits of the interval over prompts and pass times; NaN for a single recording
    high: np.ndarray  # (T, D)
    level: float
    counts: RoundCounts  # (T, D), summed over recordings
    plain_seconds: np.ndarray  # (R,)
    seconds: np.ndarray  # (R, T, D)
    outside: int  # recordings with contexts beyond the measured ones
    work: np.ndarray  # (R, T, D, F), what prices multiply: see `prediction.amounts`

    @property
    def best(self) -> BestSetting:
        """The best threshold and draft length at this fate of the token that fails."""
        row, column = np.unravel_index(int(self.speedup.argmax()), self.speedup.shape)
        return BestSetting(
            float(self.thresholds[row]), int(self.max_drafts[column]), _interval(self, (int(row), int(column)))
        )

    @property
    def sentence(self) -> str:
        """The best of this grid, and what it holds fixed."""
        best = self.best
        where = f"threshold {best.threshold:.3f} and draft length {best.max_draft}"
        return f"With {self.on_fail} held fixed: best at {where}, {best}."


def speedup_curve(
    recordings: Sequence[Recording],
    cost: CostModel,
    max_draft: int,
    thresholds: Sequence[float] | None = None,
    *,
    on_fail: str = "drop",
    pass_mode: str | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> SpeedupCurve:
    """Speedup against threshold; by default the exact step function over every threshold where anything changes.

    Args:
        pass_mode: what prices it; the recordings' own by default.

    Raises:
        SpecVizError: the recordings or the cost model do not cover these settings.
    """
    pass_mode = pass_mode or recorded_pass_mode(recordings)
    if thresholds is not None:
        thresholds = np.unique(np.asarray(thresholds, np.float64))
    steps = _step_function(recordings, cost, max_draft, on_fail, pass_mode, thresholds)
    replicates = replicates_of(recordings, cost, pass_mode, resamples)
    low, high = steps.limits(replicates, level)
    return SpeedupCurve(
        pair=cost.pair,
        pass_mode=cost.mode_name(pass_mode),
        max_draft=max_draft,
        on_fail=on_fail,
        exact=thresholds is None,
        thresholds=steps.thresholds,
        speedup=steps.plain.sum() / steps.seconds.sum(axis=0),
        low=low,
        high=high,
        level=level,
        counts=steps.counts,
        plain_seconds=steps.plain,
        seconds=steps.seconds,
        outside=steps.outside,
    )


def grid(
    recordings: Sequence[Recording],
    cost: CostModel,
    thresholds: Sequence[float] | None = None,
    max_drafts: Sequence[int] | None = None,
    *,
    on_fail: str = "drop",
    pass_mode: str | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> SpeedupGrid:
    """Speedup over thresholds (default 0, 0.01 .. 1) and draft lengths (default: all recorded that have a price).

    Args:
        pass_mode: what prices them; the recordings' own by default.

    Raises:
        SpecVizError: the recordings or the cost model do not cover these settings.
    """
    pass_mode = pass_mode or recorded_pass_mode(recordings)
    thresholds = np.linspace(0, 1, 101) if thresholds is None else np.unique(np.asarray(thresholds, np.float64))
    if max_drafts is None:
        longest = min([cost.mode(pass_mode).longest_draft, *(recording.max_draft for recording in recordings)])
        max_drafts = np.arange(1, longest + 1)
    max_drafts = np.unique(np.asarray(max_drafts, np.int64))
    counts, prediction = _priced(recordings, cost, thresholds, max_drafts, on_fail, pass_mode)
    plain, seconds, work = prediction.plain_seconds[:, 0, 0], prediction.seconds, prediction.work
    replicates = replicates_of(recordings, cost, pass_mode, resamples)
    bounds = replicates.speedup_limits(work.reshape(len(plain), -1, work.shape[-1]), level)
    low, high = bounds.reshape(2, *seconds.shape[1:])
    return SpeedupGrid(
        pair=cost.pair,
        pass_mode=cost.mode_name(pass_mode),
        on_fail=on_fail,
        thresholds=thresholds,
        max_drafts=max_drafts,
        speedup=plain.sum() / seconds.sum(axis=0),
        low=low,
        high=high,
        level=level,
        counts=pooled(counts),
        plain_seconds=plain,
        seconds=seconds,
        outside=int(prediction.outside[:, 0, 0].sum()),
        work=work,
    )


def replicates_of(
    recordings: Sequence[Recording], cost: CostModel, pass_mode: str | None, resamples: int = RESAMPLES, **given
) -> Replicates:
    """Bootstrap replicates of these recordings under this cost model; `given` as for `Replicates`."""
    prompts = [len(recording.prompt_ids) for recording in recordings]
    outputs = [len(recording.output_ids) for recording in recordings]
    return Replicates(cost, pass_mode, prompts, outputs, resamples=resamples, **given)


def _interval(curve: SpeedupCurve | SpeedupGrid, place) -> Interval:
    value, low, high = (float(values[place]) for values in (curve.speedup, curve.low, curve.high))
    return Interval(value, low, high, curve.level)


def _priced(recordings, cost, thresholds, max_drafts, on_fail, pass_mode) -> tuple[RoundCounts, Prediction]:
    """Counts and their prices, both (R, T, D)."""
    counts = replay_grid(recordings, thresholds, max_drafts, on_fail).counts
    prompts = [len(recording.prompt_ids) for recording in recordings]
    return counts, predict(counts, cost, pass_mode=pass_mode, prompt_tokens=prompts)


@dataclass(frozen=True, eq=False)
class _StepFunction:
    """R recordings over T thresholds, each priced at thresholds of its own and constant between them."""

    thresholds: np.ndarray  # (T,)
    counts: RoundCounts  # (T,), summed over recordings
    plain: np.ndarray  # (R,)
    seconds: np.ndarray  # (R, T)
    outside: int
    own_work: list[np.ndarray]  # (T of this recording, F) each
    holds: list[np.ndarray]  # (T,) each: which of a recording's own thresholds holds

    def limits(self, replicates: Replicates, level: float) -> np.ndarray:
        """(2, T): intervals; the work is spread over the thresholds of all recordings a part at a time."""
        parts = [
            replicates.speedup_limits(
                np.stack([own[holds[cells]] for own, holds in zip(self.own_work, self.holds, strict=True)]), level
            )
            for cells in stretches(len(self.thresholds))
        ]
        return np.concatenate(parts, axis=1)


def _step_function(recordings, cost, max_draft, on_fail, pass_mode, thresholds: np.ndarray | None) -> _StepFunction:
    """At these thresholds, or at every one where anything changes: each recording is replayed at its own breakpoints
    only, since between them it is constant."""
    if not recordings:
        raise SpecVizError("A curve needs at least one recording.")
    own = [
        np.concatenate(([0.0], breakpoints(recording, max_draft, on_fail).astype(np.float64)))
        if thresholds is None
        else thresholds
        for recording in recordings
    ]
    union = np.unique(np.concatenate(own))
    total, plain, seconds, work, holding, outside = None, [], [], [], [], 0
    for recording, at in zip(recordings, own, strict=True):
        counts, priced = _priced([recording], cost, at, [max_draft], on_fail, pass_mode)
        holds = np.searchsorted(at, union, side="right") - 1
        spread = counts.map(lambda values, holds=holds: values[0, holds, 0].astype(np.int64))
        total = spread if total is None else _add(total, spread)
        plain.append(priced.plain_seconds[0, 0, 0])
        seconds.append(priced.seconds[0, holds, 0])
        work.append(priced.work[0, :, 0])
        holding.append(holds)
        outside += int(priced.outside[0, 0, 0])
    return _StepFunction(union, total, np.array(plain), np.array(seconds), outside, work, holding)


def _add(first: RoundCounts, second: RoundCounts) -> RoundCounts:
    return RoundCounts(*(getattr(first, name) + getattr(second, name) for name in RoundCounts.__dataclass_fields__))
