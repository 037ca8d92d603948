"""Is speculation worth it here? The best setting, and plain words about what is known of it."""

from dataclasses import dataclass

import numpy as np

from specviz.analysis.bootstrap import Interval, limits, resample_weights, speedup_limits, unseen_speedups

YES, NO, UNCLEAR = "yes", "no", "unclear"


@dataclass(frozen=True)
class BestSetting:
    """The setting with the highest pooled speedup and its interval over prompts, on the prompts that chose it."""

    threshold: float
    max_draft: int
    speedup: Interval


@dataclass(frozen=True)
class Verdict:
    """Whether the best threshold and draft length beat doing without.

    `unseen`, `over_plain` and `over_fixed` judge settings on prompts that did not choose them
    (`bootstrap.unseen_speedups`); the two differences are paired, prompt by prompt. An answer is "yes" or "no" when
    the whole interval lies on one side, otherwise "unclear". Intervals cover the choice of prompts, not the spread
    of the measured times.
    """

    best: BestSetting
    fixed: BestSetting  # the best plain fixed draft length: threshold 0
    recordings: int
    unseen: Interval  # speedup
    over_plain: Interval  # speedup of the best minus 1
    over_fixed: Interval  # speedup of the best minus that of the best fixed draft length

    @property
    def beats_plain(self) -> str:
        return _answer(self.over_plain)

    @property
    def beats_fixed(self) -> str:
        return _answer(self.over_fixed)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in plain words."""
        best, fixed = self.best, self.fixed
        first = (
            f"Best here: threshold {best.threshold:.3f}, draft length {best.max_draft}, "
            f"{_times(best.speedup.value)} plain decoding{_range(best.speedup)}."
        )
        if self.recordings < 2:
            return (first, "One prompt says nothing about others; record more to get an interval.")
        unseen = f"{_times(self.unseen.value)}{_range(self.unseen)}"
        plain = {
            YES: f"On prompts that did not choose it, it is faster than no speculation: {unseen}.",
            NO: f"On prompts that did not choose it, it is slower than no speculation, so switch it off: {unseen}.",
            UNCLEAR: f"On prompts that did not choose it, it may or may not beat no speculation: {unseen}.",
        }[self.beats_plain]
        name = f"the best fixed draft length ({fixed.max_draft}, no threshold, {_times(fixed.speedup.value)})"
        gain = f"{self.over_fixed.value:+.3f}{_range(self.over_fixed, '+.3f', '')}"
        if best.threshold == 0:
            return first, plain, "No threshold does better than proposing the full draft length every time."
        against = {
            YES: f"The threshold beats {name}: the speedup differs by {gain}.",
            NO: f"The threshold loses to {name}: the speedup differs by {gain}.",
            UNCLEAR: f"Whether the threshold beats {name} is unclear: the speedup differs by {gain}.",
        }[self.beats_fixed]
        return first, plain, against


def judge(
    thresholds: np.ndarray,
    max_drafts: np.ndarray,
    plain: np.ndarray,
    seconds: np.ndarray,
    fixed_seconds: np.ndarray,
    level: float,
    resamples: int,
    seed: int = 0,
) -> Verdict:
    """The verdict on a grid.

    Args:
        plain: (R,) plain seconds of each recording.
        seconds: (R, T, D) under each threshold and draft length.
        fixed_seconds: (R, D) under each draft length with threshold 0.
    """
    number = len(plain)
    weights = resample_weights(number, resamples, seed)
    flat = seconds.reshape(number, -1)
    cell = int(flat.sum(axis=0).argmin())
    fixed_cell = int(fixed_seconds.sum(axis=0).argmin())

    def setting(threshold, max_draft, times):
        low, high = speedup_limits(plain, times[:, None], weights, level)[:, 0]
        speedup = Interval(float(plain.sum() / times.sum()), float(low), float(high), level)
        return BestSetting(float(threshold), int(max_draft), speedup)

    row, column = np.unravel_index(cell, seconds.shape[1:])
    best = setting(thresholds[row], max_drafts[column], flat[:, cell])
    fixed = setting(0.0, max_drafts[fixed_cell], fixed_seconds[:, fixed_cell])
    unseen, unseen_fixed = (unseen_speedups(plain, times, weights) for times in (flat, fixed_seconds))
    return Verdict(
        best=best,
        fixed=fixed,
        recordings=number,
        unseen=_interval(unseen, level),
        over_plain=_interval(unseen - 1, level),
        over_fixed=_interval(unseen - unseen_fixed, level),
    )


def _interval(samples: np.ndarray, level: float) -> Interval:
    if np.isnan(samples).all():
        return Interval(np.nan, np.nan, np.nan, level)
    low, high = limits(samples, level)
    return Interval(float(np.nanmean(samples)), float(low), float(high), level)


def _answer(difference: Interval) -> str:
    return YES if difference.low > 0 else NO if difference.high < 0 else UNCLEAR


def _times(speedup: float) -> str:
    return f"{speedup:.2f}×"


def _range(interval: Interval, form: str = ".2f", sign: str = "×") -> str:
    if np.isnan(interval.low):
        return ""
    return f" ({interval.level:.0%} interval {interval.low:{form}} to {interval.high:{form}}{sign})"
