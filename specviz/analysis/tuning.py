"""Which threshold and draft length to use: chosen on a validation set, judged on prompts that did not choose.

Every candidate is a cell of a grid of thresholds and draft lengths, replayed and priced. Cross-validation over prompts:
each fold is judged at the cell that is best on the other folds. Three choices, because programs differ in what they can
be told: with the failing token withheld, with it proposed (transformers), and without a threshold (vLLM).
"""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specviz.analysis.bootstrap import LEVEL, RESAMPLES, Interval, limits, resample_weights, speedup_limits
from specviz.analysis.cost_model import CostModel, outside_words, recorded_pass_mode
from specviz.analysis.curves import SpeedupGrid, grid
from specviz.errors import SpecVizError
from specviz.trace import PairInfo, Recording

FOLDS = 5
FLAT = 0.01  # the top is what lies within this share of the best
MOST_PROMPTS = 10_000  # a count beyond this is not worth naming
BUILTIN_DRAFT = "SpecViz built-in draft"  # as recordings call it
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
    cells: SpeedupGrid


@dataclass(frozen=True, eq=False)
class Tuning:
    """The tuned settings of a pair on its device."""

    pair: PairInfo  # whose times these are
    pass_mode: str
    prompts: int
    drop: Choice
    keep: Choice
    fixed: Choice
    gain: Interval  # held-out speedup of the recommended choice minus that of the best fixed draft length
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
    def recommendation(self) -> str:
        """One sentence."""
        best = self.best
        expected = f"expect {best.held_out.value:.2f}× plain decoding on new prompts"
        if not math.isnan(best.held_out.low):
            expected += f" ({best.held_out.level:.0%} interval {best.held_out.low:.2f} to {best.held_out.high:.2f})"
        if best.held_out.value < 1:
            return f"Do not speculate with this pair here: even the best setting is slower, {expected}."
        if best.name == "fixed":
            return f"Use a fixed draft length of {best.max_draft} without a threshold: {expected}."
        fate = "propose the token that fails it" if best.name == "keep" else "withhold the token that fails it"
        return (
            f"Use threshold {best.threshold:.2f} and draft length {best.max_draft}, and {fate}: {expected}; "
            f"any threshold from {best.flat[0]:.2f} to {best.flat[1]:.2f} is within {FLAT:.0%} of that."
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is known, and how well."""
        best, fixed, gain = self.best, self.fixed, self.gain
        rival = f"the best fixed draft length ({fixed.max_draft}, {fixed.held_out.value:.2f}×)"
        lines = [
            f"Tuned and judged over {self.prompts} prompts in {len(best.fold_choices)} folds; settings chosen on other "
            f"prompts are {best.regret:.1%} slower than the best in hindsight.",
            f"Against {'plain decoding' if best is fixed else rival} the speedup differs by {gain.value:+.3f} "
            f"({gain.level:.0%} interval {gain.low:+.3f} to {gain.high:+.3f}).",
        ]
        if self.more_prompts == 0:
            lines.append("That is settled: the interval lies on one side.")
        elif self.more_prompts is None:
            lines.append("That is so little that no reasonable number of prompts would settle it; take either.")
        else:
            lines.append(f"About {self.more_prompts} more prompts of this kind would settle it.")
        if self.outside:
            lines.append(outside_words(self.outside, self.prompts))
        return tuple(lines)


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

    Raises:
        SpecVizError: fewer than two recordings, or the cost model does not cover them.
    """
    if len(recordings) < 2:
        raise SpecVizError("Tuning judges a setting on prompts that did not choose it; it needs at least two prompts.")
    pass_mode = pass_mode or recorded_pass_mode(recordings)
    pricing = {"pass_mode": pass_mode, "level": level, "resamples": resamples}
    grids = {on_fail: grid(recordings, cost, on_fail=on_fail, **pricing) for on_fail in ("drop", "keep")}
    weights = resample_weights(len(recordings), resamples)
    parts = fold_of_each(recordings, folds)
    drop, keep = (_choose(name, grids[name], grids[name].seconds, parts, weights, level) for name in ("drop", "keep"))
    fixed = _choose("fixed", grids["drop"], grids["drop"].seconds[:, :1], parts, weights, level)
    best = max((drop, keep, fixed), key=lambda choice: choice.held_out.value)
    plain = grids["drop"].plain_seconds
    rival = fixed.held_out_seconds if best is not fixed else plain
    gain = _difference(plain, best.held_out_seconds, rival, weights, level)
    return Tuning(
        pair=cost.pair,
        pass_mode=cost.mode_name(pass_mode),
        prompts=len(recordings),
        drop=drop,
        keep=keep,
        fixed=fixed,
        gain=gain,
        more_prompts=more_prompts(gain, len(recordings)),
        outside=grids["drop"].outside,
    )


def fold_of_each(recordings: Sequence[Recording], folds: int) -> np.ndarray:
    """(R,) the fold of each recording, categories spread evenly; at most as many folds as there are prompts."""
    order = sorted(range(len(recordings)), key=lambda place: recordings[place].category)
    parts = np.empty(len(recordings), np.int64)
    parts[order] = np.arange(len(recordings)) % min(folds, len(recordings))
    return parts


def _choose(name, cells: SpeedupGrid, seconds: np.ndarray, parts, weights, level) -> Choice:
    """Tune over `seconds` (R, T, D), a part of the grid's."""
    plain, flat_seconds = cells.plain_seconds, seconds.reshape(len(seconds), -1)

    def setting(cell: int) -> tuple[float, int]:
        row, column = np.unravel_index(cell, seconds.shape[1:])
        return float(cells.thresholds[row]), int(cells.max_drafts[column])

    held_out, hindsight, fold_choices = np.empty(len(plain)), 0.0, []
    for fold in np.unique(parts):
        judged = parts == fold
        cell = int(flat_seconds[~judged].sum(axis=0).argmin())
        held_out[judged] = flat_seconds[judged, cell]
        hindsight += flat_seconds[judged].sum(axis=0).min()
        fold_choices.append(setting(cell))
    totals = flat_seconds.sum(axis=0)
    cell = int(totals.argmin())
    threshold, max_draft = setting(cell)
    row, column = np.unravel_index(cell, seconds.shape[1:])
    within = seconds.sum(axis=0)[:, column] <= totals[cell] / (1 - FLAT)

    def interval(times):
        low, high = speedup_limits(plain, times[:, None], weights, level)[:, 0]
        return Interval(float(plain.sum() / times.sum()), float(low), float(high), level)

    return Choice(
        name,
        threshold,
        max_draft,
        interval(flat_seconds[:, cell]),
        interval(held_out),
        float(held_out.sum() / hindsight - 1),
        _around(cells.thresholds[: len(within)], within, int(row)),
        int((totals <= totals[cell] / (1 - FLAT)).sum()),
        tuple(fold_choices),
        held_out,
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


def _difference(plain, seconds, rival, weights, level) -> Interval:
    """Speedup minus the rival's, paired over prompts."""
    with np.errstate(divide="ignore"):
        samples = (weights @ plain) / (weights @ seconds) - (weights @ plain) / (weights @ rival)
    low, high = limits(samples, level)
    return Interval(float(plain.sum() / seconds.sum() - plain.sum() / rival.sum()), float(low), float(high), level)


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


@dataclass(frozen=True)
class ReadySettings:
    """What to paste into another program, and how its meaning differs from ours."""

    program: str
    language: str  # of the text, for highlighting
    text: str
    note: str


def ready_settings(tuning: Tuning) -> tuple[ReadySettings, ...]:
    """Settings for transformers, llama.cpp and vLLM."""
    keep, drop, fixed = tuning.keep, tuning.drop, tuning.fixed
    draft = tuning.pair.draft or "DRAFT"
    p_min, n_max = f"{drop.threshold:.2f}", drop.max_draft
    instead = (
        " Replace the built-in draft, which vLLM cannot load, by one that it can." if draft == BUILTIN_DRAFT else ""
    )
    vllm = json.dumps({"method": "draft_model", "model": draft, "num_speculative_tokens": fixed.max_draft})
    return (
        ReadySettings(
            "transformers",
            "python",
            f"draft.generation_config.num_assistant_tokens = {keep.max_draft}\n"
            'draft.generation_config.num_assistant_tokens_schedule = "constant"\n'
            f"draft.generation_config.assistant_confidence_threshold = {keep.threshold:.2f}\n"
            "target.generate(**inputs, assistant_model=draft)",
            "The token below the threshold is still proposed, so this is tuned with `keep`. Where scikit-learn is "
            "installed, transformers moves the threshold during a generation and this is only its start; 0 switches it "
            "off.",
        ),
        ReadySettings(
            "llama.cpp",
            "bash",
            f"--spec-draft-p-min {p_min} --spec-draft-n-max {n_max} --spec-draft-n-min 0\n"
            f"# older versions: --draft-p-min {keep.threshold:.2f} --draft-max {keep.max_draft} --draft-min 0",
            "The token below p-min is withheld, as with our `drop`; many older versions propose it first, so their "
            "line is tuned with `keep`. The probability is taken among the draft's ten likeliest tokens, so it is "
            "larger than ours: the same number stops later.",
        ),
        ReadySettings(
            "vLLM",
            "bash",
            f"--speculative-config {shlex.quote(vllm)}",
            "No threshold: every round proposes this many tokens, so it is tuned without one. In a batch the target's "
            f"passes are wider than here, and a shorter draft may be better.{instead}",
        ),
    )


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
