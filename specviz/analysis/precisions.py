"""Full precision against quantised: numbers of a comparison that the engine measured.

Two baselines, never mixed: a combination's *own* plain decoding (its target, at its precision, alone) and the *full*
one, plain decoding of the full-precision target. Speedup over the second is a ratio of tokens per second, since
targets at different precisions write different texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from specviz.analysis.bootstrap import LEVEL, Interval, limits, resample_weights
from specviz.analysis.calibrated import cost_models
from specviz.analysis.cost_model import CostModel
from specviz.analysis.curves import SpeedupCurve, SpeedupGrid, grid, replicates_of, speedup_curve
from specviz.analysis.metrics import metrics
from specviz.errors import SpecVizError
from specviz.trace import Recording, RecordingSet


@dataclass(frozen=True, eq=False)
class TextError:
    """What a model says along one output, beside itself at fp32; N positions. See `ModelError` for the numbers.

    token, reference_token: (N,) int, the most likely tokens of both. divergence: (N,) nats. log_prob and
    reference_log_prob: (N,) of the text's token, NaN where the head lacks it. reference_margin: (N,) logits.
    """

    prompt_id: str
    token: np.ndarray
    reference_token: np.ndarray
    divergence: np.ndarray
    log_prob: np.ndarray
    reference_log_prob: np.ndarray
    reference_margin: np.ndarray


@dataclass(frozen=True, eq=False)
class ModelError:
    """Quantisation error of one model at one precision against the same model at fp32, on the same texts.

    role: target or draft. memory_bytes: of its weights. load_seconds, peak_bytes (most memory while decoding): None
    where they were not measured.
    """

    role: str
    precision: str
    memory_bytes: int
    load_seconds: float | None
    peak_bytes: int | None
    texts: tuple[TextError, ...]

    def _all(self, name: str) -> np.ndarray:
        return np.concatenate([getattr(text, name) for text in self.texts])

    @property
    def positions(self) -> int:
        return len(self._all("token"))

    @property
    def agreement(self) -> float:
        """Share of positions at which both give the same most likely token."""
        return float((self._all("token") == self._all("reference_token")).mean())

    @property
    def divergence(self) -> tuple[float, float, float]:
        """Kullback-Leibler divergence from fp32, in nats: mean, 95th percentile, worst."""
        values = self._all("divergence")
        return float(values.mean()), float(np.quantile(values, 0.95)), float(values.max())

    @property
    def worst(self) -> tuple[int, int]:
        """The text and the position of the largest divergence."""
        text = int(np.argmax([each.divergence.max() for each in self.texts]))
        return text, int(self.texts[text].divergence.argmax())

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log probability of the texts' tokens, those its head lacks left out."""
        return float(np.exp(-np.nanmean(self._all("log_prob"))))

    @property
    def reference_perplexity(self) -> float:
        """The same of the model at fp32."""
        return float(np.exp(-np.nanmean(self._all("reference_log_prob"))))


@dataclass(frozen=True, eq=False)
class Combination:
    """One target precision with one draft precision: recordings with prices, and the bytes of both models' weights."""

    recordings: RecordingSet
    memory_bytes: int

    @cached_property
    def cost(self) -> CostModel:
        return CostModel.from_json(self.recordings.cost_model)

    @property
    def label(self) -> str:
        """Such as `nf4:bf16`, target before draft."""
        return f"{self.recordings.pair.target_precision}:{self.recordings.pair.draft_precision}"

    @property
    def pass_mode(self) -> str:
        return self.recordings.settings["pass_mode"]

    @property
    def longest_draft(self) -> int:
        return min(self.recordings.max_draft, self.cost.mode(self.pass_mode).longest_draft)

    @cached_property
    def grid(self) -> SpeedupGrid:
        """Speedup over its own plain decoding, over thresholds and draft lengths."""
        return grid(self.recordings.recordings, self.cost, pass_mode=self.pass_mode)

    def curve(self, max_draft: int) -> SpeedupCurve:
        """Exact speedup over its own plain decoding at every threshold."""
        return speedup_curve(self.recordings.recordings, self.cost, max_draft, pass_mode=self.pass_mode)

    @cached_property
    def tokens(self) -> np.ndarray:
        """(R,) output tokens of each recording."""
        return np.array([len(recording.output_ids) for recording in self.recordings.recordings], np.float64)

    @cached_property
    def plain_rate(self) -> float:
        """Tokens per second of its own plain decoding."""
        return float(self.tokens.sum() / self.grid.plain_seconds.sum())


@dataclass(frozen=True, eq=False)
class PrecisionComparison:
    """Combinations of precisions of one pair, measured together on one device.

    Attributes:
        full: number of the combination whose plain decoding is the full-precision baseline.
        models: quantisation errors of every target and draft; empty where they were not measured.
        tokens: bytes of the token ids that outputs and errors name.
        notes: what could not be measured and why, a sentence each.
    """

    combinations: tuple[Combination, ...]
    full: int
    models: tuple[ModelError, ...]
    tokens: Mapping[int, bytes]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.combinations:
            raise SpecVizError("A comparison needs at least one combination of precisions.")

    @property
    def baseline(self) -> Combination:
        return self.combinations[self.full]

    @property
    def full_precision(self) -> str:
        """The precision of the full-precision baseline's target."""
        return self.baseline.recordings.pair.target_precision

    @property
    def longest_draft(self) -> int:
        return min(combination.longest_draft for combination in self.combinations)

    def chosen(self, labels: Sequence[str]) -> list[Combination]:
        """The combinations of these labels, in the comparison's order."""
        return [combination for combination in self.combinations if combination.label in labels]

    def over_full(self, seconds: np.ndarray, combination: Combination) -> np.ndarray:
        """Tokens per second of a combination over those of the full-precision baseline; seconds: (R, ...)."""
        return combination.tokens.sum() / seconds.sum(axis=0) / self.baseline.plain_rate

    def interval_over_full(self, combination: Combination, row: int, column: int, level: float = LEVEL) -> Interval:
        """The same at one cell of the combination's grid with its interval over prompts and pass times: both baseline
        and setting are resampled together. Prompts that either of the two lacks are left out of the interval.
        """
        value = float(self.over_full(combination.grid.seconds[:, row, column], combination))
        names = [[recording.prompt_id for recording in c.recordings.recordings] for c in (combination, self.baseline)]
        shared = [name for name in names[0] if name in names[1]]
        if len(shared) < 2:
            return Interval(value, np.nan, np.nan, level)
        own, full = ([column.index(name) for name in shared] for column in names)
        weights = resample_weights(len(shared))
        own_times, full_times = (  # each combination's times err in their own way, the same wherever they appear
            replicates_of(
                [c.recordings.recordings[row] for row in rows],
                c.cost,
                c.pass_mode,
                weights=weights,
                seed=self.combinations.index(c),
            )
            for c, rows in ((combination, own), (self.baseline, full))
        )
        own_rate = (weights @ combination.tokens[own]) / own_times.seconds(
            combination.grid.work[own, row, column][:, None]
        )[:, 0]
        full_rate = (weights @ self.baseline.tokens[full]) / full_times.plain
        low, high = limits(own_rate / full_rate, level)
        return Interval(value, float(low), float(high), level)


class MeasuredComparison(Protocol):
    """What `specviz.engine.precision_comparison` hands over."""

    combinations: Sequence
    models: Sequence
    full: int
    tokens: Mapping[int, bytes]
    notes: Sequence[str]


def precision_comparison(measured: MeasuredComparison) -> PrecisionComparison:
    """Price what the engine measured: one cost model for each combination, told apart from the machine's slow spells
    together.
    """
    costs = cost_models([each.samples for each in measured.combinations])
    return PrecisionComparison(
        tuple(
            Combination(each.recordings.with_cost_model(cost.to_json()), each.memory_bytes)
            for each, cost in zip(measured.combinations, costs, strict=True)
        ),
        measured.full,
        tuple(
            ModelError(
                model.role,
                model.precision,
                model.memory_bytes,
                model.footprint.load_seconds if model.footprint else None,
                model.footprint.peak_bytes if model.footprint else None,
                tuple(TextError(**vars(text)) for text in model.texts),
            )
            for model in measured.models
        ),
        measured.tokens,
        tuple(measured.notes),
    )


def combination_table(comparison: PrecisionComparison) -> pd.DataFrame:
    """One row per combination, at its best threshold and draft length.

    Columns: combination, target_precision, draft_precision, recordings, memory_bytes (weights of both models),
    plain_tokens_per_second, threshold, max_draft (the best setting), tokens_per_second, speedup over its own plain
    decoding with low and high (limits of the interval over prompts and pass times), speedup_over_full with full_low and
    full_high, acceptance_rate, tokens_per_target_pass, same_output (share of prompts whose output is that of the
    full-precision baseline), first_divergence (median output position, from 0, at which those that differ part; NaN if
    none does), baseline (its precision), pass_mode, device.
    """
    rows = []
    for combination in comparison.combinations:
        cells = combination.grid
        best = cells.best
        row, column = (
            int(np.flatnonzero(values == value)[0])
            for values, value in ((cells.thresholds, best.threshold), (cells.max_drafts, best.max_draft))
        )
        seconds = cells.seconds[:, row, column]
        over_full = comparison.interval_over_full(combination, row, column)
        found = metrics(cells.counts.map(lambda values, row=row, column=column: values[row, column]))
        partings = _partings(comparison, combination)
        positions = [parting.position for parting in partings if parting]
        rows.append(
            {
                "combination": combination.label,
                "target_precision": combination.recordings.pair.target_precision,
                "draft_precision": combination.recordings.pair.draft_precision,
                "recordings": len(combination.tokens),
                "memory_bytes": combination.memory_bytes,
                "plain_tokens_per_second": combination.plain_rate,
                "threshold": best.threshold,
                "max_draft": best.max_draft,
                "tokens_per_second": combination.tokens.sum() / seconds.sum(),
                "speedup": best.speedup.value,
                "low": best.speedup.low,
                "high": best.speedup.high,
                "speedup_over_full": over_full.value,
                "full_low": over_full.low,
                "full_high": over_full.high,
                "acceptance_rate": float(found.acceptance_rate),
                "tokens_per_target_pass": float(found.tokens_per_target_pass),
                "same_output": 1 - len(positions) / len(partings) if partings else np.nan,
                "first_divergence": float(np.median(positions)) if positions else np.nan,
                "baseline": comparison.full_precision,
                "pass_mode": combination.pass_mode,
                "device": combination.recordings.pair.device,
            }
        )
    return pd.DataFrame(rows)


def error_table(comparison: PrecisionComparison) -> pd.DataFrame:
    """One row per model and precision.

    Columns: role, precision, positions, agreement, divergence_mean, divergence_p95, divergence_worst (nats),
    perplexity, reference_perplexity (at fp32), memory_bytes, peak_bytes, load_seconds.
    """
    rows = []
    for model in comparison.models:
        mean, p95, worst = model.divergence
        rows.append(
            {
                "role": model.role,
                "precision": model.precision,
                "positions": model.positions,
                "agreement": model.agreement,
                "divergence_mean": mean,
                "divergence_p95": p95,
                "divergence_worst": worst,
                "perplexity": model.perplexity,
                "reference_perplexity": model.reference_perplexity,
                "memory_bytes": model.memory_bytes,
                "peak_bytes": model.peak_bytes,
                "load_seconds": model.load_seconds,
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Divergence:
    """Where two outputs first differ: output position, both tokens (-1 where one has ended), and the margins (top-1
    minus top-2 logit) of the two targets there, NaN where one has ended.
    """

    position: int
    full_token: int
    other_token: int
    full_margin: float
    other_margin: float


def first_divergence(full: Recording, other: Recording) -> Divergence | None:
    """Where the second output first differs from the first; None if it does not."""
    lengths = len(full.output_ids), len(other.output_ids)
    common = min(lengths)
    different = np.flatnonzero(full.output_ids[:common] != other.output_ids[:common])
    if not len(different) and lengths[0] == lengths[1]:
        return None
    position = int(different[0]) if len(different) else common
    tokens, margins = [], []
    for recording, length in zip((full, other), lengths, strict=True):
        tokens.append(int(recording.output_ids[position]) if position < length else -1)
        margins.append(float(recording.target_margin[position]) if position < length else np.nan)
    return Divergence(position, *tokens, *margins)


def _partings(comparison: PrecisionComparison, combination: Combination) -> list[Divergence | None]:
    """Where each prompt's output parts from the full-precision baseline's, over the prompts that both have."""
    full = {recording.prompt_id: recording for recording in comparison.baseline.recordings.recordings}
    shared = [recording for recording in combination.recordings.recordings if recording.prompt_id in full]
    return [first_divergence(full[recording.prompt_id], recording) for recording in shared]


def with_interval(table: pd.DataFrame, value: str, low: str, high: str) -> list[str]:
    """Each row's value with its interval where it has one, such as "1.17 × (1.06 to 1.31)"; named are three columns."""
    return [
        f"{a:.2f} ×" if np.isnan(b) else f"{a:.2f} × ({b:.2f} to {c:.2f})"
        for a, b, c in zip(table[value], table[low], table[high], strict=True)
    ]


def shown_combinations(comparison: PrecisionComparison) -> pd.DataFrame:
    """`combination_table` in units a person reads, the two baselines named apart; page and terminal show it."""
    table = combination_table(comparison)
    full = comparison.full_precision
    partings = [f"{value + 1:.0f}" if np.isfinite(value) else "–" for value in table["first_divergence"]]
    return pd.DataFrame(
        {
            "target:draft": table["combination"],
            "weights": _megabytes(table["memory_bytes"]),
            "plain": [f"{value:.1f} tokens/s" for value in table["plain_tokens_per_second"]],
            "best τ": [f"{value:.2f}" for value in table["threshold"]],
            "best γ": table["max_draft"],
            "there": [f"{value:.1f} tokens/s" for value in table["tokens_per_second"]],
            "over its own plain": with_interval(table, "speedup", "low", "high"),
            f"over {full} plain": with_interval(table, "speedup_over_full", "full_low", "full_high"),
            "accepted": [f"{value:.0%}" if np.isfinite(value) else "–" for value in table["acceptance_rate"]],
            f"text as at {full}": [f"{value:.0%} of prompts" for value in table["same_output"]],
            "parts at token (median)": partings,  # counted from 1
        }
    )


def shown_errors(comparison: PrecisionComparison) -> pd.DataFrame:
    """`error_table` in units a person reads; page and terminal show it."""
    table = error_table(comparison)
    return pd.DataFrame(
        {
            "model": [f"{role}, {precision}" for role, precision in zip(table.role, table.precision, strict=True)],
            "says the same": [f"{value:.1%}" for value in table["agreement"]],
            "divergence, mean": [f"{value:.4f}" for value in table["divergence_mean"]],
            "95th percentile": [f"{value:.3f}" for value in table["divergence_p95"]],
            "worst": [f"{value:.2f}" for value in table["divergence_worst"]],
            "perplexity": [f"{value:.2f}" for value in table["perplexity"]],
            "weights": _megabytes(table["memory_bytes"]),
            "peak memory": _megabytes(table["peak_bytes"]),
            "loading": [f"{value:.1f} s" if pd.notna(value) else "–" for value in table["load_seconds"]],
        }
    )


def _megabytes(values: pd.Series) -> list[str]:
    return [f"{value / 1e6:.0f} MB" if pd.notna(value) else "–" for value in values]


@dataclass(frozen=True)
class WorstPlace:
    """Where one model has moved furthest from itself at fp32, with the text around it as token ids.

    position: in the output, from 0; before, token, after: what the text has up to there, there, and behind it; says,
    reference_says: the most likely token of the model and of the model at fp32.
    """

    model: str
    prompt: str
    position: int
    divergence: float
    reference_margin: float
    before: list[int]
    token: int
    after: list[int]
    says: int
    reference_says: int


def worst_places(comparison: PrecisionComparison, around: int = 12) -> list[WorstPlace]:
    """The worst place of every model that differs from fp32 anywhere, worst first, with `around` tokens each side."""
    texts = {recording.prompt_id: recording for recording in comparison.baseline.recordings.recordings}
    found = []
    for model in comparison.models:
        if model.divergence[2] <= 0:
            continue
        number, position = model.worst
        error = model.texts[number]
        output = texts[error.prompt_id].output_ids.tolist()
        found.append(
            WorstPlace(
                model=f"{model.role}, {model.precision}",
                prompt=texts[error.prompt_id].prompt,
                position=position,
                divergence=float(error.divergence[position]),
                reference_margin=float(error.reference_margin[position]),
                before=output[max(0, position - around) : position],
                token=output[position],
                after=output[position + 1 : position + 1 + around],
                says=int(error.token[position]),
                reference_says=int(error.reference_token[position]),
            )
        )
    return sorted(found, key=lambda place: -place.divergence)


def describe_comparison(comparison: PrecisionComparison) -> str:
    """Both tables for a terminal, and the worst place of each model with the text around it."""
    number = len(comparison.baseline.tokens)
    pair = comparison.baseline.recordings.pair
    lines = [
        f"{pair.target} with {pair.draft} on {pair.device}; {number} prompt{'s' * (number != 1)}, "
        f"pass mode {comparison.baseline.pass_mode}. Modelled from pass times measured together; "
        f"{LEVEL:.0%} intervals over prompts and pass times.",
        shown_combinations(comparison).to_string(index=False),
    ]
    if comparison.models:
        lines += [
            "Against the same model at fp32, on the texts of the full-precision target (divergence in nats):",
            shown_errors(comparison).to_string(index=False),
        ]
    for place in worst_places(comparison):
        before, says, reference_says = (
            repr(b"".join(comparison.tokens.get(token, b"?") for token in tokens).decode("utf-8", "replace"))
            for tokens in (place.before, [place.says], [place.reference_says])
        )
        lines.append(
            f"Worst of {place.model}: {place.divergence:.2f} nats at output token {place.position + 1}; after {before} "
            f"it says {says}, at fp32 {reference_says}."
        )
    return "\n".join([*lines, *comparison.notes])
