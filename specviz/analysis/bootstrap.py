"""Intervals by resampling prompts (Efron and Tibshirani 1993, percentile method), on per-recording sums of seconds.
Where a cost model prices the seconds, `specviz.analysis.replicates` resamples the times of the passes too.

A speedup over several prompts is total plain time over total time. Resampling prompts only reweights the sums, so
a resample is a row of weights and all of them together one product of matrices.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 1000
CELLS_AT_ONCE = 512  # keeps (resamples, cells) arrays in a few megabytes


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval. The limits are NaN when there is only one prompt to resample."""

    value: float
    low: float
    high: float
    level: float = LEVEL


def resample_weights(recordings: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """(resamples, recordings) float64: how often each recording is drawn in each resample."""
    chances = np.full(recordings, 1 / recordings)
    return np.random.default_rng(seed).multinomial(recordings, chances, resamples).astype(np.float64)


def limits(samples: np.ndarray, level: float) -> np.ndarray:
    """(2, ...): the interval of samples whose first axis runs over resamples, NaN samples left out."""
    tail = (1 - level) / 2
    missing = np.isnan(samples).any()
    return (np.nanquantile if missing else np.quantile)(samples, (tail, 1 - tail), axis=0)


def speedup_limits(plain: np.ndarray, seconds: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Intervals (2, K) of the pooled speedup of K settings.

    Args:
        plain: (R,) plain seconds of each recording.
        seconds: (R, K) seconds of each recording under each setting.
    """
    if len(plain) < 2:
        return np.full((2, seconds.shape[1]), np.nan)
    plain_sums = (weights @ plain)[:, None]
    return np.concatenate(
        [limits(plain_sums / (weights @ seconds[:, cells]), level) for cells in stretches(seconds.shape[1])], axis=1
    )


def stretches(number: int) -> Iterator[slice]:
    """Slices of at most `CELLS_AT_ONCE` that cover 0 .. number."""
    for first in range(0, number, CELLS_AT_ONCE):
        yield slice(first, first + CELLS_AT_ONCE)
