"""Every stopping policy on the same recordings: each at its best knob, all against the best that is possible.

Nobody is judged on the prompts that chose his knob or taught him: the prompts are cut into two halves, each chooses for
the other, and what is scored is every prompt under the choice of the half it does not belong to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from specviz.analysis.bootstrap import LEVEL, RESAMPLES, Interval, limits
from specviz.analysis.cost_model import CostModel, outside_words, recorded_pass_mode
from specviz.analysis.curves import replicates_of
from specviz.analysis.draft_calibration import halves
from specviz.analysis.fitting import MakePolicy, Training, learned_policy
from specviz.analysis.metrics import pooled
from specviz.analysis.oracle import captured, optimal_oracles, stop_oracles
from specviz.analysis.prediction import Prediction, predict
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, PolicyReplayer, RoundCounts
from specviz.replay.policies import (
    AdaEDL,
    CumulativeConfidence,
    DraftVerify,
    DynamicThreshold,
    EntropyBound,
    Heuristic,
    LlamaCpp,
    MarginThreshold,
)
from specviz.trace import PairInfo, Recording

CHANCES = (0.02, *(round(0.05 * step, 2) for step in range(1, 20)))
GOALS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROOTS = (0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.3)
SIGNIFICANT = 0.05
PERMUTATIONS = 4096


@dataclass(frozen=True)
class Contestant:
    """One row of the arena: a policy whose knob is varied.

    Policies that could do either propose the token that fails, except where the label says otherwise: withholding it is
    a contest of its own, which the two thresholds hold.

    Args:
        make: the policy for a value of the knob; `training` is the half that teaches it.
        knob: what is varied, in words; empty for none.
        values: of the knob; a function takes the longest draft.
        fitted: whether it learns from the training half, and so differs between the halves.
        needs_texts: whether it needs token texts.
    """

    label: str
    make: MakePolicy
    knob: str = ""
    values: Sequence[float] | Callable[[int], Sequence[float]] = (0.0,)
    fitted: bool = False
    needs_texts: bool = False

    def knob_values(self, max_draft: int) -> list[float]:
        values = self.values(max_draft) if callable(self.values) else self.values
        return [float(value) for value in values]


CONTESTANTS = (
    Contestant("Fixed length", lambda v, _: FixedLength(int(v)), "γ", lambda most: range(1, most + 1)),
    Contestant("Threshold, drop", lambda v, _: ConfidenceThreshold(v), "τ", (0.0, *CHANCES)),
    Contestant("Threshold, keep", lambda v, _: ConfidenceThreshold(v, "keep"), "τ", (0.0, *CHANCES)),
    Contestant("Cumulative confidence", lambda v, _: CumulativeConfidence(v, "keep"), "bound on the product", CHANCES),
    Contestant("Entropy (SVIP)", lambda v, _: EntropyBound(v, "keep"), "bound on √entropy", ROOTS),
    Contestant("AdaEDL", lambda v, _: AdaEDL(v), "goal acceptance rate", GOALS),
    Contestant("Margin", lambda v, _: MarginThreshold(v, "keep"), "bound on the margin", CHANCES),
    Contestant("Heuristic (transformers)", lambda v, _: Heuristic(int(v)), "γ at the start", (1, 2, 3, 5, 8, 12)),
    Contestant("Dynamic (transformers)", lambda v, _: DynamicThreshold(v), "τ at the start", (0.2, 0.4, 0.6, 0.8)),
    Contestant("Draft & Verify", lambda v, _: DraftVerify(v), "goal acceptance rate", GOALS),
    Contestant("llama.cpp, at least 2", lambda v, _: LlamaCpp(v, 16, 2), "p-min", CHANCES),
    Contestant("Cost-aware", lambda _, training: training.cost_aware, fitted=True),
    Contestant("Learned", learned_policy, "bound on the chance", CHANCES, fitted=True),
    Contestant("By context", lambda v, t: t.context_threshold(v), "chance wanted", CHANCES, True, True),
)
THRESHOLDS = ("Threshold, drop", "Threshold, keep")
STOP_ORACLE, OPTIMAL_ORACLE = "Stop oracle", "Optimal oracle"


@dataclass(frozen=True, eq=False)
class Entry:
    """One contestant's result. R recordings, K values of the knob."""

    label: str
    knob: str
    values: np.ndarray  # (K,)
    chosen: tuple[float, ...]  # value that either half chose for the other; empty where there is no knob
    seconds: np.ndarray  # (R,) under the choice of the other half
    speedup: Interval  # of those
    chosen_speedup: float  # on the prompts that chose, which flatters
    captured: Interval  # share of the optimal oracle's gain
    counts: RoundCounts  # summed over recordings, as scored
    curve: np.ndarray  # (K,) speedup over the knob, each prompt under what the other half taught
    oracle: bool = False

    @property
    def tokens_per_pass(self) -> float:
        return float(self.counts.emitted / self.counts.rounds)

    @property
    def waste(self) -> float:
        """Share of draft steps whose token was not accepted."""
        return 1 - float(self.counts.accepted / max(1, self.counts.draft_steps))


@dataclass(frozen=True, eq=False)
class Arena:
    """All entries, the fastest first; oracles among them."""

    pair: PairInfo  # whose times these are
    pass_mode: str
    max_draft: int
    entries: tuple[Entry, ...]
    plain_seconds: np.ndarray  # (R,)
    tests: Mapping[tuple[str, str], float]  # (faster, slower) -> p of their difference, oracles left out
    sure: frozenset[tuple[str, str]]  # those that stand after Holm's correction at 5 %
    outside: int  # recordings with contexts beyond the measured ones
    left_out: tuple[str, ...]  # contestants that need token texts, where there are none
    level: float = LEVEL

    @property
    def policies(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if not entry.oracle)

    def entry(self, label: str) -> Entry:
        return next(entry for entry in self.entries if entry.label == label)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result in plain words."""
        best = self.policies[0]
        threshold = max(map(self.entry, THRESHOLDS), key=lambda one: one.speedup.value)
        derived = [entry for entry in self.policies if entry.label in ("Cost-aware", "Learned")]
        better = [entry for entry in derived if entry.captured.value >= threshold.captured.value]
        names = " and ".join(f"{entry.label} ({entry.captured.value:.0%})" for entry in better or derived)
        rival = f"the best tuned threshold ({threshold.label}, {threshold.captured.value:.0%})"
        lines = [
            f"Fastest on prompts that did not choose its knob: {best.label}, {best.speedup.value:.2f}× plain decoding; "
            f"the optimal oracle reaches {self.entry(OPTIMAL_ORACLE).speedup.value:.2f}×."
        ]
        if better:
            sure = any((entry.label, threshold.label) in self.sure for entry in better)
            doubt = "" if sure else f"; with {len(self.plain_seconds)} prompts that difference is not sure"
            verb = f"capture{'s' * (len(better) == 1)} at least as much as"
            lines.append(f"Of the oracle's gain, {names} {verb} {rival}{doubt}.")
        else:
            lines.append(
                f"Of the oracle's gain, neither {names} captures as much as {rival}: here deriving or learning the "
                "rule does not pay."
            )
        others = [entry.label for entry in self.policies[1:]]
        beaten = [label for label in others if (best.label, label) in self.sure]
        lines.append(
            f"The lead of {best.label} over {', '.join(beaten)} is sure beyond the choice of prompts."
            if beaten
            else f"With {len(self.plain_seconds)} prompts the lead of {best.label} over none of the others is sure."
        )
        if self.outside:
            lines.append(outside_words(self.outside, len(self.plain_seconds)))
        return tuple(lines)


def arena(
    recordings: Sequence[Recording],
    cost: CostModel,
    max_draft: int | None = None,
    *,
    flags: bytes | None = None,
    pass_mode: str | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Arena:
    """Judge every contestant on these recordings.

    Args:
        max_draft: the longest draft of every policy (default: all that is recorded and priced).
        flags: of the vocabulary, for the policy that looks at the kind of position; None leaves it out.
        progress: told the contestant, how many are done, and how many there are.

    Raises:
        SpecVizError: fewer than two recordings, or a draft length or context without a recording or a price.
    """
    if len(recordings) < 2:
        raise SpecVizError(
            "The arena chooses on one half of the prompts and judges on the other; it needs at least two."
        )
    pass_mode = pass_mode or recorded_pass_mode(recordings)
    longest = min([cost.mode(pass_mode).longest_draft, *(recording.max_draft for recording in recordings)])
    max_draft = longest if max_draft is None else max_draft
    if not 1 <= max_draft <= longest:
        raise SpecVizError(f"The draft length is {max_draft}; these recordings and prices cover 1 to {longest}.")
    folds = halves(recordings)
    everything = PolicyReplayer(recordings, max_draft)
    pricing = {"cost": cost, "pass_mode": pass_mode}
    taught = [Training(everything.part(fold), flags=flags, **pricing) for fold in folds]

    def predicted(counts: RoundCounts) -> Prediction:
        return predict(counts, prompt_tokens=everything.prompt_tokens, **pricing)

    def priced(counts: RoundCounts) -> np.ndarray:
        return predicted(counts).seconds

    base = predicted(everything.counts(FixedLength(1)))
    plain, replicates = base.plain_seconds, replicates_of(recordings, cost, pass_mode, resamples)
    contestants = [one for one in CONTESTANTS if flags is not None or not one.needs_texts]
    total = len(contestants) + 2

    optimal = everything.counts(optimal_oracles(everything, cost, pass_mode))
    best = predicted(optimal)
    best_seconds = replicates.seconds(best.work[:, None])[:, 0]

    def entry(label, counts, seconds, knob="", values=(), chosen=(), chosen_speedup=None, curve=(), oracle=False):
        taken = replicates.seconds(predicted(counts).work[:, None])[:, 0]
        low, high = limits(replicates.plain / taken, level)
        value = float(plain.sum() / seconds.sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = (replicates.plain - taken) / (replicates.plain - best_seconds)
        share = Interval(captured(plain, seconds, best.seconds), *map(float, limits(gains, level)), level)
        return Entry(
            label,
            knob,
            np.asarray(values, np.float64),
            tuple(chosen),
            seconds,
            Interval(value, float(low), float(high), level),
            value if chosen_speedup is None else chosen_speedup,
            share,
            pooled(counts),
            np.asarray(curve, np.float64),
            oracle,
        )

    entries = []
    for place, contestant in enumerate(contestants):
        progress(contestant.label, place, total)
        values = contestant.knob_values(max_draft)
        counts = [_everywhere(contestant, value, everything, taught, folds) for value in values]
        # Held out (R, K): each recording under what the half it is not in taught. A contestant that learns is also
        # needed on its own half, to choose its knob there.
        held_out = np.stack([priced(one) for one in counts], axis=1)
        own = held_out
        if contestant.fitted and len(values) > 1:
            own = np.stack(
                [priced(_everywhere(contestant, value, everything, taught[::-1], folds)) for value in values], axis=1
            )
        chosen, seconds, flattering, scored = [], np.empty(len(plain)), 0.0, [None] * len(plain)
        for chooser, judged in (folds, folds[::-1]):
            pick = int(own[chooser].sum(axis=0).argmin())
            chosen.append(values[pick])
            seconds[judged] = held_out[judged, pick]
            flattering += own[chooser, pick].sum()
            for row in judged:
                scored[row] = pick
        rows = [counts[pick].map(lambda values, row=row: values[row]) for row, pick in enumerate(scored)]
        together = RoundCounts(*(np.stack(parts) for parts in zip(*(vars(row).values() for row in rows), strict=True)))
        entries.append(
            entry(
                contestant.label,
                together,
                seconds,
                contestant.knob,
                values if contestant.knob else (),
                chosen if contestant.knob else (),
                float(plain.sum() / flattering) if contestant.knob else None,
                plain.sum() / held_out.sum(axis=0) if contestant.knob else (),
            )
        )
    progress(STOP_ORACLE, total - 2, total)
    stopping = everything.counts(stop_oracles(everything))
    entries.append(entry(STOP_ORACLE, stopping, priced(stopping), oracle=True))
    entries.append(entry(OPTIMAL_ORACLE, optimal, best.seconds, oracle=True))
    progress(OPTIMAL_ORACLE, total, total)
    entries.sort(key=lambda one: -one.speedup.value)
    tests = pairwise_tests({one.label: one.seconds for one in entries if not one.oracle})
    return Arena(
        pair=cost.pair,
        pass_mode=cost.mode_name(pass_mode),
        max_draft=max_draft,
        entries=tuple(entries),
        plain_seconds=plain,
        tests=tests,
        sure=frozenset(holm(tests)),
        outside=int(base.outside.sum()),
        left_out=tuple(one.label for one in CONTESTANTS if one not in contestants),
        level=level,
    )


def _everywhere(contestant, value, everything, taught, folds) -> RoundCounts:
    """Counts of all recordings, each under the policy that the half it is not in taught."""
    if not contestant.fitted:
        return everything.counts(contestant.make(value, taught[0]))
    policies = [None] * len(everything)
    for training, judged in zip(taught, folds[::-1], strict=True):
        policy = contestant.make(value, training)
        for row in judged:
            policies[row] = policy
    return everything.counts(policies)


def pairwise_tests(seconds: Mapping[str, np.ndarray], seed: int = 0) -> dict[tuple[str, str], float]:
    """Two-sided p of every pair's difference over prompts: (faster, slower) -> p.

    The statistic is the mean log ratio of the two times; under the null hypothesis its sign is a coin's for every
    prompt (Fisher's sign-flip test): all 2^R flips up to 12 prompts, a sample of them beyond, the data's own included.
    """
    logs = {label: np.log(values) for label, values in seconds.items()}
    number = len(next(iter(logs.values())))
    if number <= 12:
        flips = 1 - 2 * ((np.arange(1 << number)[:, None] >> np.arange(number)) & 1)
    else:
        flips = np.random.default_rng(seed).choice([-1, 1], (PERMUTATIONS, number))
        flips[0] = 1
    found = {}
    for first, second in combinations(logs, 2):
        difference = logs[first] - logs[second]
        observed = difference.mean()
        # Rounding must not make a tie with the data's own value look smaller.
        chance = float((np.abs(flips @ difference) / number >= abs(observed) * (1 - 1e-9)).mean())
        found[(first, second) if observed <= 0 else (second, first)] = chance
    return found


def holm(tests: Mapping[tuple[str, str], float], alpha: float = SIGNIFICANT) -> list[tuple[str, str]]:
    """The pairs that differ with an error rate of `alpha` over all of them together (Holm 1979)."""
    ordered = sorted(tests, key=tests.get)
    sure = []
    for place, pair in enumerate(ordered):
        if tests[pair] > alpha / (len(ordered) - place):
            break
        sure.append(pair)
    return sure
