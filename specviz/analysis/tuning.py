"""Which threshold and draft length to use: chosen on a validation set, judged on prompts that did not choose.

Every candidate is a cell of a grid of thresholds and draft lengths, replayed and priced. Cross-validation over prompts:
each fold is judged at the cell that is best on the other folds. Three choices, because programs differ in what they can
be told: with the failing token withheld, with it proposed (transformers), and without a threshold (vLLM).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specviz.analysis.bootstrap import LEVEL, RESAMPLES, Interval, limits
from specviz.analysis.cost_model import CostModel, recorded_pass_mode
from specviz.analysis.curves import SpeedupGrid, grid, replicates_of
from specviz.analysis.replicates import Replicates
from specviz.trace import PairInfo, Recording

FOLDS = 5
FLAT = 0.01  # the top is what lies within this share of the best
MOST_PROMPTS = 10_000  # a count beyond this is not worth naming
NEAR = 0.002  # a difference in speedup that is nothing, whatever its interval


@dataclass(frozen=True, eq=False)
class Choice:
    """One kind of setting, tuned. R recordings."""

    name: str  # drop, keep or fixed
    threshold: float  # chosen on all prompts; 0 for `fixed`
    max_draft: int
    speedup: Interval  # there, on the prompts that chose it
    held_out: Interval  # of the choices of the other folds: what to expect on new prompts
    regret: float  # how much slower those choices are than the best cell of each fold in hindsight, as a share
    flat: tuple[float, float]  # thresholds around the best whose speedup is within FLAT of it, at this draft length
    near_cells: int  # cells of the whole grid within FLAT of the best
    fold_choices: tuple[tuple[float, int], ...]
    held_out_seconds: np.ndarray  # (R,)
    held_out_work: np.ndarray  # (R, F), what prices multiply: see `prediction.amounts`
    cells: SpeedupGrid

    @property
    def on_fail(self) -> str:
        """What happens to the token that fails; without a threshold none does."""
        return self.cells.on_fail


@dataclass(frozen=True, eq=False)
class Tuning:
    """The tuned settings of a pair on its device."""

    pair: PairInfo  # whose times these are
    pass_mode: str
    prompts: int
    drop: Choice
    keep: Choice
    fixed: Choice
    gain: Interval  # held-out speedup of the best choice minus that of the best fixed draft length
    origin: str  # when and where the times were measured
    more_prompts: int | None  # how many more would settle whether it pays; 0: settled, None: more than can be said
    outside: int

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.drop, self.keep, self.fixed)

    @property
    def best(self) -> Choice:
        """The fastest on held-out prompts."""
        return max(self.choices, key=lambda choice: choice.held_out.value)

    @property
    def most_tokens_per_pass(self) -> float:
        """Tokens per target pass at the setting with the most."""
        counts = (choice.cells.counts for choice in (self.drop, self.keep))
        return max(float((each.emitted / each.rounds).max()) for each in counts)


def tune(
    recordings: Sequence[Recording],
    cost: CostModel,
    *,
    pass_mode: str | None = None,
    folds: int = FOLDS,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Tuning:
    """Choose thresholds and draft lengths on these recordings, cross-validated.

    A single recording both chooses and judges: then `held_out` flatters, and there are no intervals over prompts.

    Raises:
        SpecVizError: there is no recording, or the cost model does not cover them.
    """
    pass_mode = pass_mode or recorded_pass_mode(recordings)
    pricing = {"pass_mode": pass_mode, "level": level, "resamples": resamples}
    grids = {on_fail: grid(recordings, cost, on_fail=on_fail, **pricing) for on_fail in ("drop", "keep")}
    replicates = replicates_of(recordings, cost, pass_mode, resamples)
    parts = fold_of_each(recordings, folds)
    drop, keep = (_choose(name, grids[name], grids[name].seconds, parts, replicates) for name in ("drop", "keep"))
    fixed = _choose("fixed", grids["drop"], grids["drop"].seconds[:, :1], parts, replicates)
    best = max((drop, keep, fixed), key=lambda choice: choice.held_out.value)
    gain = _difference(grids["drop"].plain_seconds, best, fixed if best is not fixed else None, replicates, level)
    return Tuning(
        pair=cost.pair,
        pass_mode=cost.mode_name(pass_mode),
        prompts=len(recordings),
        drop=drop,
        keep=keep,
        fixed=fixed,
        gain=gain,
        origin=cost.origin,
        more_prompts=more_prompts(gain, len(recordings)) if len(recordings) > 1 else None,
        outside=grids["drop"].outside,
    )


def fold_of_each(recordings: Sequence[Recording], folds: int) -> np.ndarray:
    """(R,) the fold of each recording, categories spread evenly; at most as many folds as there are prompts."""
    order = sorted(range(len(recordings)), key=lambda place: recordings[place].category)
    parts = np.empty(len(recordings), np.int64)
    parts[order] = np.arange(len(recordings)) % min(folds, len(recordings))
    return parts


def _choose(name, cells: SpeedupGrid, seconds: np.ndarray, parts, replicates: Replicates) -> Choice:
    """Tune over `seconds` (R, T, D), a part of the grid's from the first threshold on."""
    plain, flat_seconds = cells.plain_seconds, seconds.reshape(len(seconds), -1)
    work = cells.work[:, : seconds.shape[1]].reshape(*flat_seconds.shape, -1)

    def setting(cell: int) -> tuple[float, int]:
        row, column = np.unravel_index(cell, seconds.shape[1:])
        return float(cells.thresholds[row]), int(cells.max_drafts[column])

    held_out, hindsight, fold_choices = np.empty(len(plain)), 0.0, []
    held_out_work = np.empty((len(plain), work.shape[-1]))
    for fold in np.unique(parts):
        judged = parts == fold
        chooses = ~judged if len(plain) > 1 else judged
        cell = int(flat_seconds[chooses].sum(axis=0).argmin())
        held_out[judged], held_out_work[judged] = flat_seconds[judged, cell], work[judged, cell]
        hindsight += flat_seconds[judged].sum(axis=0).min()
        fold_choices.append(setting(cell))
    totals = flat_seconds.sum(axis=0)
    cell = int(totals.argmin())
    threshold, max_draft = setting(cell)
    row, column = np.unravel_index(cell, seconds.shape[1:])
    within = seconds.sum(axis=0)[:, column] <= totals[cell] / (1 - FLAT)

    def interval(times, own_work):
        low, high = replicates.speedup_limits(own_work[:, None], cells.level)[:, 0]
        return Interval(float(plain.sum() / times.sum()), float(low), float(high), cells.level)

    return Choice(
        name,
        threshold,
        max_draft,
        interval(flat_seconds[:, cell], work[:, cell]),
        interval(held_out, held_out_work),
        float(held_out.sum() / hindsight - 1),
        _around(cells.thresholds[: len(within)], within, int(row)),
        int((totals <= totals[cell] / (1 - FLAT)).sum()),
        tuple(fold_choices),
        held_out,
        held_out_work,
        cells,
    )


def _around(thresholds: np.ndarray, within: np.ndarray, row: int) -> tuple[float, float]:
    """The first and last threshold of the unbroken stretch around `row`."""
    low = high = row
    while low > 0 and within[low - 1]:
        low -= 1
    while high + 1 < len(within) and within[high + 1]:
        high += 1
    return float(thresholds[low]), float(thresholds[high])


def _difference(plain: np.ndarray, best: Choice, rival: Choice | None, replicates: Replicates, level) -> Interval:
    """Held-out speedup minus the rival's, paired over prompts and pass times; None is plain decoding."""
    value = float(plain.sum() / best.held_out_seconds.sum())
    value -= float(plain.sum() / rival.held_out_seconds.sum()) if rival else 1.0
    if replicates.alone:
        return Interval(value, math.nan, math.nan, level)

    def speedups(choice: Choice) -> np.ndarray:
        return replicates.plain / replicates.seconds(choice.held_out_work[:, None])[:, 0]

    low, high = limits(speedups(best) - (speedups(rival) if rival else 1.0), level)
    return Interval(value, float(low), float(high), level)


def more_prompts(difference: Interval, prompts: int) -> int | None:
    """How many more prompts would put the whole interval on one side of 0, if the difference stays and the interval
    shrinks with the root of the number of prompts. 0: it does already; None: no reasonable number would."""
    if difference.low > 0 or difference.high < 0:
        return 0
    if abs(difference.value) < NEAR:
        return None
    reach = difference.value - difference.low if difference.value > 0 else difference.high - difference.value
    needed = math.ceil(prompts * (reach / abs(difference.value)) ** 2)
    return max(1, needed - prompts) if needed <= MOST_PROMPTS else None


def tuning_table(tuning: Tuning) -> pd.DataFrame:
    """One row per choice.

    Columns: choice, threshold, max_draft, speedup, low, high (on the prompts that chose), held_out, held_out_low,
    held_out_high, level, regret, flat_from, flat_to, near_cells, prompts, target, draft, target_precision,
    draft_precision, device, pass_mode.
    """
    rows = [
        {
            "choice": choice.name,
            "threshold": choice.threshold,
            "max_draft": choice.max_draft,
            "speedup": choice.speedup.value,
            "low": choice.speedup.low,
            "high": choice.speedup.high,
            "held_out": choice.held_out.value,
            "held_out_low": choice.held_out.low,
            "held_out_high": choice.held_out.high,
            "level": choice.held_out.level,
            "regret": choice.regret,
            "flat_from": choice.flat[0],
            "flat_to": choice.flat[1],
            "near_cells": choice.near_cells,
            "prompts": tuning.prompts,
        }
        for choice in tuning.choices
    ]
    pair = ("target", "draft", "target_precision", "draft_precision", "device")
    described = {name: getattr(tuning.pair, name) for name in pair}
    return pd.DataFrame(rows).assign(**described, pass_mode=tuning.pass_mode)
