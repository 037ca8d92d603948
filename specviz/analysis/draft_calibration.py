"""Is the draft's confidence the chance that its token is accepted?

Judged are the output's positions: at each the draft has said one token with a confidence, an entropy and a margin, and
the target has said whether it agrees. All of it is known from a recording; no policy is involved.

Sources: Guo et al. 2017 (reliability diagram, ECE, temperature scaling); Nixon et al. 2019 (adaptive ECE); Murphy 1973
and Stephenson et al. 2008 (the Brier score's parts, within bins too); Zadrozny and Elkan 2002 (isotonic regression);
Wilson 1927 (intervals of rates).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from specviz.analysis.bootstrap import LEVEL, RESAMPLES, Interval, limits, resample_weights
from specviz.analysis.cost_model import CostModel
from specviz.analysis.curves import SpeedupCurve, speedup_curve
from specviz.errors import SpecVizError
from specviz.replay import FixedLength, replay
from specviz.replay.contexts import KINDS, kinds_of_positions
from specviz.replay.one_setting import check_fixed_output
from specviz.trace import Recording

BINS = 10
WILSON_Z = 1.959963984540054  # 95 %
SIGNALS = {"confidence": 1, "entropy": -1, "margin": 1}  # name -> sign with which it grows with the chance
FEWEST = 20  # tokens that a split must have to be shown


@dataclass(frozen=True, eq=False)
class Judged:
    """Draft tokens and what became of them, M of them."""

    confidence: np.ndarray  # (M,) float64
    entropy: np.ndarray  # (M,)
    margin: np.ndarray  # (M,)
    accepted: np.ndarray  # (M,) bool
    prompt: np.ndarray  # (M,) int, which recording

    def __len__(self) -> int:
        return len(self.accepted)

    def pick(self, chosen: np.ndarray) -> "Judged":
        """Those that a mask or an index array picks."""
        return Judged(*(values[chosen] for values in vars(self).values()))


def judged(recordings: Sequence[Recording]) -> Judged:
    """Every output position of these recordings.

    Raises:
        SpecVizError: there is none, or one was made under a rule that accepts by chance.
    """
    if not recordings:
        raise SpecVizError("There is no recording to judge; choose at least one.")
    for recording in recordings:
        check_fixed_output(recording)

    def joined(name):
        return np.concatenate([getattr(recording, name) for recording in recordings])

    lengths = [len(recording.output_ids) for recording in recordings]
    return Judged(
        *(joined(f"draft_{name}").astype(np.float64) for name in SIGNALS),
        accepted=joined("draft_token") == joined("output_ids"),
        prompt=np.repeat(np.arange(len(recordings)), lengths),
    )


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: B bins of confidence, empty ones left out."""

    edges: np.ndarray  # (B, 2)
    count: np.ndarray  # (B,)
    confidence: np.ndarray  # (B,) mean
    rate: np.ndarray  # (B,) accepted / count
    low: np.ndarray  # (B,) Wilson interval of the rate, tokens taken as independent
    high: np.ndarray  # (B,)


def wilson(successes, trials, z: float = WILSON_Z) -> tuple[np.ndarray, np.ndarray]:
    """Limits of a rate (Wilson 1927), 95 % by default."""
    trials = np.asarray(trials, np.float64)
    rate = np.asarray(successes, np.float64) / trials
    middle = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * np.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return middle - half, middle + half


def bin_edges(confidence: np.ndarray, bins: int = BINS, equal_counts: bool = False) -> np.ndarray:
    """(B + 1,) rising edges: of equal width over 0..1, or such that each bin holds about as many tokens."""
    if not equal_counts:
        return np.linspace(0, 1, bins + 1)
    inner = np.unique(np.quantile(confidence, np.linspace(0, 1, bins + 1)[1:-1]))
    return np.concatenate([[0.0], inner[(inner > 0) & (inner < 1)], [1.0]])


def _places(confidence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each confidence; a bin holds its upper edge."""
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)


def reliability(
    confidence: np.ndarray, accepted: np.ndarray, bins: int = BINS, equal_counts: bool = False
) -> Reliability:
    """Acceptance against confidence, bin by bin."""
    edges = bin_edges(confidence, bins, equal_counts)
    places, size = _places(confidence, edges), len(edges) - 1
    count = np.bincount(places, minlength=size)
    there = count > 0
    count = count[there]
    sums = (np.bincount(places, weights=values, minlength=size)[there] for values in (confidence, accepted))
    mean, rate = (values / count for values in sums)
    low, high = wilson(rate * count, count)
    return Reliability(np.stack([edges[:-1], edges[1:]], axis=-1)[there], count, mean, rate, low, high)


def calibration_error(diagram: Reliability) -> float:
    """Expected calibration error: |acceptance rate - mean confidence| averaged over tokens. Adaptive with bins of equal
    counts."""
    return float(np.average(np.abs(diagram.rate - diagram.confidence), weights=diagram.count))


@dataclass(frozen=True)
class Brier:
    """Mean squared error of the confidence as a forecast of acceptance, and its parts.

    score = unreliability - resolution + uncertainty + within, the last being what bins hide.
    """

    score: float
    unreliability: float  # how far the bins' rates are from their confidences
    resolution: float  # how far they are from the overall rate
    uncertainty: float  # of always forecasting the overall rate
    within: float  # variance of the confidence within bins minus twice its covariance with the outcome


def brier(confidence: np.ndarray, accepted: np.ndarray, bins: int = BINS) -> Brier:
    """The Brier score over bins of equal width."""
    outcome = np.asarray(accepted, np.float64)
    diagram, overall = reliability(confidence, accepted, bins), outcome.mean()
    score = float(np.mean((confidence - outcome) ** 2))
    unreliability = float(np.average((diagram.rate - diagram.confidence) ** 2, weights=diagram.count))
    resolution = float(np.average((diagram.rate - overall) ** 2, weights=diagram.count))
    uncertainty = float(overall * (1 - overall))
    within = score - (unreliability - resolution + uncertainty)
    return Brier(score, unreliability, resolution, uncertainty, within)


@dataclass(frozen=True, eq=False)
class Discrimination:
    """How well one signal tells tokens that will be accepted from those that will not."""

    area: float  # under the ROC curve: the chance that an accepted token ranks above a rejected one; 0.5 is guessing
    average_precision: float
    false_rate: np.ndarray  # of the ROC curve
    true_rate: np.ndarray
    precision: np.ndarray  # of the precision-recall curve
    recall: np.ndarray


def discrimination(signal: np.ndarray, accepted: np.ndarray) -> Discrimination | None:
    """ROC and precision-recall of "will be accepted" for a signal that grows with the chance; None if all are alike."""
    if accepted.all() or not accepted.any():
        return None
    from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve  # slow

    false_rate, true_rate, _ = roc_curve(accepted, signal)
    precision, recall, _ = precision_recall_curve(accepted, signal)
    return Discrimination(
        float(roc_auc_score(accepted, signal)),
        float(average_precision_score(accepted, signal)),
        false_rate,
        true_rate,
        precision,
        recall,
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """All about one set of judged tokens."""

    tokens: int
    prompts: int
    acceptance: float  # accepted / tokens
    confidence: float  # mean
    diagram: Reliability
    adaptive: Reliability  # bins of equal counts
    error: Interval  # ECE; interval over prompts
    adaptive_error: float
    brier: Brier
    signals: Mapping[str, Discrimination | None]  # of SIGNALS


def calibration(tokens: Judged, bins: int = BINS, resamples: int = RESAMPLES) -> Calibration:
    """Judge these tokens.

    Raises:
        SpecVizError: there are none.
    """
    if not len(tokens):
        raise SpecVizError("There are no draft tokens to judge here; choose another part.")
    confidence, accepted = tokens.confidence, tokens.accepted
    diagram, adaptive = (reliability(confidence, accepted, bins, equal) for equal in (False, True))
    return Calibration(
        tokens=len(tokens),
        prompts=len(np.unique(tokens.prompt)),
        acceptance=float(accepted.mean()),
        confidence=float(confidence.mean()),
        diagram=diagram,
        adaptive=adaptive,
        error=_error_interval(tokens, calibration_error(diagram), bins, resamples),
        adaptive_error=calibration_error(adaptive),
        brier=brier(confidence, accepted, bins),
        signals={name: discrimination(sign * getattr(tokens, name), accepted) for name, sign in SIGNALS.items()},
    )


def _error_interval(tokens: Judged, error: float, bins: int, resamples: int) -> Interval:
    """The ECE's interval over prompts: resampling reweights the prompts' sums, bin by bin."""
    _, prompt = np.unique(tokens.prompt, return_inverse=True)
    number = int(prompt.max()) + 1
    if number < 2:
        return Interval(error, np.nan, np.nan)
    cells = prompt * bins + _places(tokens.confidence, bin_edges(tokens.confidence, bins))
    gap = np.bincount(cells, weights=tokens.accepted - tokens.confidence, minlength=number * bins)
    count = np.bincount(cells, minlength=number * bins)
    weights = resample_weights(number, resamples)
    gaps, counts = (weights @ values.reshape(number, bins) for values in (gap, count))
    low, high = limits(np.abs(gaps).sum(axis=1) / counts.sum(axis=1), LEVEL)
    return Interval(error, float(low), float(high))


# --- splits ---------------------------------------------------------------------------------------------------------


def by_depth(recordings: Sequence[Recording], max_draft: int) -> dict[int, Judged]:
    """Tested draft steps by their depth in the draft, when every round drafts `max_draft` tokens.

    A token at depth d has been tested only if the d before it were accepted, so deeper ones stand in easier text.
    """
    columns = {name: [] for name in ("depth", "confidence", "entropy", "margin", "accepted", "prompt")}
    for place, recording in enumerate(recordings):
        steps = replay(recording, FixedLength(), max_draft).steps
        tested = np.isin(steps["status"], ("accepted", "rejected"))
        columns["depth"].append(steps["step"][tested])
        for name in SIGNALS:
            columns[name].append(steps[name][tested].astype(np.float64))
        columns["accepted"].append(steps["status"][tested] == "accepted")
        columns["prompt"].append(np.full(tested.sum(), place))
    depth, *values = (np.concatenate(column) for column in columns.values())
    tokens = Judged(*values)
    return {int(level): tokens.pick(depth == level) for level in np.unique(depth)}


def by_kind(recordings: Sequence[Recording], flags: bytes) -> dict[str, Judged]:
    """Positions by their kind (`specviz.replay.contexts`); kinds that do not occur are left out."""
    kinds = np.concatenate([kinds_of_positions(recording, flags) for recording in recordings])
    tokens = judged(recordings)
    return {name: tokens.pick(kinds == kind) for kind, name in enumerate(KINDS) if (kinds == kind).any()}


def by_precision(recordings: Sequence[Recording]) -> dict[str, Judged]:
    """Positions by the precisions of the two models that recorded them.

    Raises:
        SpecVizError: the recordings are of different models.
    """
    found: dict[str, list[Recording]] = {}
    for recording in recordings:
        pair, first = recording.pair, recordings[0].pair
        if (pair.target, pair.draft) != (first.target, first.draft):
            raise SpecVizError(
                f"These sets are of different models, {first.target} with {first.draft} and {pair.target} with "
                f"{pair.draft}; judge them one by one."
            )
        name = f"target {pair.target_precision}, draft {pair.draft_precision}"
        found.setdefault(name, []).append(recording)
    return {name: judged(recordings) for name, recordings in found.items()}


# --- calibrating ----------------------------------------------------------------------------------------------------

Map = Callable[[np.ndarray], np.ndarray]
SMALLEST = 1e-6  # keeps log-odds finite


def log_odds(chance: np.ndarray) -> np.ndarray:
    chance = np.clip(np.asarray(chance, np.float64), SMALLEST, 1 - SMALLEST)
    return np.log(chance / (1 - chance))


def temperature_map(tokens: Judged) -> tuple[Map, float]:
    """Divide the log-odds of the confidence by the temperature of greatest likelihood; and that temperature.

    Guo et al. scale all logits; a recording keeps the confidence only, so this is the two-outcome form, "this token"
    against "any other". It keeps the order.
    """
    if tokens.accepted.all() or not tokens.accepted.any():
        return (lambda confidence: confidence), 1.0
    from sklearn.linear_model import LogisticRegression  # slow to import

    model = LogisticRegression(C=np.inf, fit_intercept=False)
    model.fit(log_odds(tokens.confidence)[:, None], tokens.accepted)
    slope = max(float(model.coef_[0, 0]), SMALLEST)
    return (lambda confidence: 1 / (1 + np.exp(-slope * log_odds(confidence)))), 1 / slope


def isotonic_map(tokens: Judged) -> Map:
    """The rising step function of the confidence with the least squared error. It merges what it cannot tell apart."""
    from sklearn.isotonic import IsotonicRegression  # slow to import

    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    model.fit(tokens.confidence, tokens.accepted.astype(np.float64))
    return lambda confidence: np.asarray(model.predict(np.asarray(confidence, np.float64)))


def halves(recordings: Sequence[Recording]) -> tuple[list[int], list[int]]:
    """Indices of the recordings of either half: every second one, category by category.

    Raises:
        SpecVizError: there are fewer than two.
    """
    if len(recordings) < 2:
        raise SpecVizError(
            "Learning on one half and judging on the other needs at least two prompts; choose a larger set."
        )
    order = sorted(range(len(recordings)), key=lambda place: recordings[place].category)
    return sorted(order[::2]), sorted(order[1::2])


@dataclass(frozen=True, eq=False)
class Recalibration:
    """Calibration learnt on one half of the prompts and shown on the other."""

    temperature: float
    maps: Mapping[str, Map]  # "as it is", "temperature", "isotonic"
    shown: Mapping[str, Calibration]  # on the half that taught nothing
    learnt_on: tuple[int, ...]  # indices of the recordings
    shown_on: tuple[int, ...]


def recalibrate(recordings: Sequence[Recording]) -> Recalibration:
    """Learn both maps on one half of the prompts; judge them on the other.

    Raises:
        SpecVizError: there are fewer than two prompts.
    """
    learn, show = halves(recordings)
    taught, tokens = judged([recordings[place] for place in learn]), judged([recordings[place] for place in show])
    scale, temperature = temperature_map(taught)
    maps: dict[str, Map] = {
        "as it is": lambda confidence: confidence,
        "temperature": scale,
        "isotonic": isotonic_map(taught),
    }
    shown = {name: calibration(replace(tokens, confidence=one(tokens.confidence))) for name, one in maps.items()}
    return Recalibration(temperature, maps, shown, tuple(learn), tuple(show))


def with_mapped_confidence(recording: Recording, change: Map) -> Recording:
    """The recording as if the draft had said these confidences; for replay only."""

    def changed(confidence: np.ndarray) -> np.ndarray:
        return np.clip(change(confidence.astype(np.float64)), np.finfo(np.float32).tiny, 1).astype(np.float32)

    return replace(
        recording,
        draft_confidence=changed(recording.draft_confidence),
        branch_confidence=changed(recording.branch_confidence),
    )


def mapped_curves(
    recordings: Sequence[Recording], cost: CostModel, max_draft: int, maps: Mapping[str, Map], **pricing
) -> dict[str, SpeedupCurve]:
    """The speedup curve over the threshold under each map, on recordings that taught none of them.

    A strictly rising map moves every threshold and changes no speedup; one with flat stretches can only lose some of
    the steps between them.
    """
    return {
        name: speedup_curve(
            [with_mapped_confidence(recording, change) for recording in recordings], cost, max_draft, **pricing
        )
        for name, change in maps.items()
    }


def calibration_table(parts: Mapping[str, Calibration]) -> pd.DataFrame:
    """One row per part.

    Columns: part, tokens, prompts, acceptance, confidence (mean), ece, ece_low, ece_high (interval over prompts),
    adaptive_ece, brier, unreliability, resolution, uncertainty, within, and for each signal roc_… and precision_…, the
    areas under its two curves (NaN where all tokens have one outcome).
    """
    rows = []
    for name, part in parts.items():
        row = {"part": name, "tokens": part.tokens, "prompts": part.prompts}
        row |= {"acceptance": part.acceptance, "confidence": part.confidence, "ece": part.error.value}
        row |= {"ece_low": part.error.low, "ece_high": part.error.high, "adaptive_ece": part.adaptive_error}
        row["brier"] = part.brier.score
        row |= {key: value for key, value in vars(part.brier).items() if key != "score"}
        for signal, found in part.signals.items():
            row[f"roc_{signal}"] = np.nan if found is None else found.area
            row[f"precision_{signal}"] = np.nan if found is None else found.average_precision
        rows.append(row)
    return pd.DataFrame(rows)
