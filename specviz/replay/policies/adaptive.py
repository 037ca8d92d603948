"""Policies that learn from the verifications of the running generation."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from specviz.replay.policies.base import Policy, StepStats, check_between, check_on_fail, check_whole


def _matches(accepted: int, tokens: Sequence[int]) -> int:
    """Accepted tokens as transformers counts them: an accepted end-of-sequence token stands in for the bonus."""
    return min(accepted, len(tokens) - 1)


@dataclass
class Heuristic(Policy):
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more tokens after a round that was accepted whole,
    one fewer (but at least one) after any other.

    A round without a proposal counts as accepted whole, one whose accepted run ended the text does not, both as there.
    Reset: with `transient` (`"heuristic_transient"`) the length goes back to `start` before each generation; without,
    as in transformers, it is carried on from prompt to prompt and only a new object starts at `start`.
    """

    start: int = 5
    transient: bool = False
    name: ClassVar[str] = "heuristic"
    _length: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.start = self._length = check_whole("draft length at the start", self.start, 1)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        if self.transient:
            self._length = self.start

    def draft_limit(self, max_draft: int) -> int:
        return min(self._length, max_draft)

    def stops(self, stats: StepStats) -> bool:
        return False

    def end_round(self, proposed: int, accepted: int, tokens: Sequence[int]) -> None:
        whole = _matches(accepted, tokens) == proposed
        self._length = self._length + 2 if whole else max(1, self._length - 1)


@dataclass
class DynamicThreshold(Policy):
    """transformers' threshold as it moves once scikit-learn is installed (Mamou et al. 2024).

    A token whose confidence is *below* the threshold is still proposed, then drafting stops. After each round the
    tested tokens join the generation's record of (confidence, accepted); with more than five of them, both kinds among
    them, the threshold becomes the confidence on their ROC curve with the least cost = false-positive rate +
    3 * false-negative rate, the highest such confidence where several tie.

    Reset: record and threshold, before each generation. (The manual of transformers calls the threshold persistent over
    generations; the code of 5.24 moves a copy only, so it is not.)
    """

    start: float = 0.4
    on_fail: ClassVar[str] = "keep"
    name: ClassVar[str] = "dynamic"
    _threshold: float = field(init=False, repr=False, compare=False)
    _drafted: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _record: list[tuple[float, bool]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.start = self._threshold = check_between("threshold at the start", self.start, 0, 1)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._threshold, self._record = self.start, []

    def draft_limit(self, max_draft: int) -> int:
        self._drafted = []
        return max_draft

    def stops(self, stats: StepStats) -> bool:
        self._drafted.append(stats.confidence)
        return stats.confidence < self._threshold

    def distance(self, stats: StepStats) -> float:
        return abs(stats.confidence - self._threshold)

    def end_round(self, proposed: int, accepted: int, tokens: Sequence[int]) -> None:
        matches = _matches(accepted, tokens)
        for place, confidence in enumerate(self._drafted[: matches + 1]):
            item = (confidence, place < matches)
            self._record.insert(bisect_left(self._record, item), item)
        hits = sum(right for _, right in self._record)
        if len(self._record) > 5 and 0 < hits < len(self._record):
            self._threshold = cheapest_threshold(*zip(*self._record, strict=True))


def cheapest_threshold(confidences: Sequence[float], accepted: Sequence[bool]) -> float:
    """The confidence with the least false-positive rate + 3 * false-negative rate, when accepted means positive.

    As `sklearn.metrics.roc_curve` would have it, in the same order of floating-point operations: points within a
    straight stretch of the curve are left out first, then the first minimum counts.

    Args:
        confidences: rising.
    """
    descending = np.asarray(confidences[::-1], np.float64)
    last = np.flatnonzero(np.append(np.diff(descending) != 0, True))  # of each run of equal confidences
    true = np.cumsum(np.asarray(accepted[::-1], np.float64))[last]
    false = 1.0 + last - true
    if len(last) > 2:
        corner = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
        kept = np.flatnonzero(np.concatenate(([True], corner, [True])))
        last, true, false = last[kept], true[kept], false[kept]
    costs = false / false[-1] + 3 * (1 - true / true[-1])
    return float(descending[last[np.argmin(costs)]])


@dataclass
class _Feedback(Policy):
    """The feedback of Draft & Verify, by which AdaEDL moves its bound too; each says how it works."""

    goal: float = 0.9
    start: float = 0.6
    step: float = 0.01
    on_fail: str = "keep"
    RATE_MEMORY: ClassVar[float] = 0.5
    BOUND_MEMORY: ClassVar[float] = 0.9
    _bound: float = field(init=False, repr=False, compare=False)
    _rate: float = field(default=0.0, init=False, repr=False, compare=False)
    _limit: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.start = self._bound = check_between("bound at the start", self.start, 0, 1)
        self.goal = check_between("goal acceptance rate", self.goal, 0, 1)
        self.step = check_between("step", self.step, 0, 1)
        check_on_fail(self.on_fail)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._bound, self._rate = self.start, 0.0

    def draft_limit(self, max_draft: int) -> int:
        self._limit = max_draft
        return max_draft

    def end_round(self, proposed: int, accepted: int, tokens: Sequence[int]) -> None:
        if not proposed:
            return
        self._rate = self.RATE_MEMORY * self._rate + (1 - self.RATE_MEMORY) * accepted / proposed
        if self._rate < self.goal:
            wanted = self._bound + self.step
        else:
            # Where the longest draft ended the round, a lower bound would not have lengthened it.
            wanted = self._bound if proposed == self._limit else self._bound - self.step
        self._bound = self.BOUND_MEMORY * self._bound + (1 - self.BOUND_MEMORY) * wanted


@dataclass
class DraftVerify(_Feedback):
    """Draft & Verify's adaptive draft exit (Zhang et al. 2023): a confidence threshold that steers to a goal rate.

    Drafting stops after a token whose confidence is below the bound; as there, that token is proposed. After a round
    in which a share r of the proposal was accepted: rate = 0.5 rate + 0.5 r, beginning at 0; wanted = bound + step
    where rate < goal, else bound - step, or bound itself where the proposal was as long as it may be; bound =
    0.9 bound + 0.1 wanted. Rule and defaults are those of their code (github.com/dilab-zju/self-speculative-decoding).
    A round without a proposal, which theirs never has, changes nothing.

    Reset: rate and bound, before each generation.
    """

    name: ClassVar[str] = "draft_verify"

    def stops(self, stats: StepStats) -> bool:
        return stats.confidence < self._bound

    def distance(self, stats: StepStats) -> float:
        return abs(stats.confidence - self._bound)


@dataclass
class AdaEDL(_Feedback):
    """AdaEDL (Agrawal et al. 2024): stop when a lower bound on the chance of acceptance, from the draft's entropy,
    falls below a bound that adapts.

    Drafting stops where 1 - sqrt(`factor` * entropy in nats) < bound; `factor` 0.2 is the paper's. The bound moves
    after each round as Draft & Verify's does: rate = 0.5 rate + 0.5 accepted / proposed, beginning at 0; wanted =
    bound + step where rate < goal, else bound - step, or bound itself where the proposal was as long as it may be;
    bound = 0.9 bound + 0.1 wanted. The token that fails is proposed by default, so that every round has an acceptance
    rate to learn from.

    Reset: rate and bound, before each generation.
    """

    start: float = 0.3
    factor: float = 0.2
    name: ClassVar[str] = "adaedl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.factor = check_between("factor", self.factor, 0, math.inf)

    def _chance(self, stats: StepStats) -> float:
        return 1 - math.sqrt(self.factor * stats.entropy)

    def stops(self, stats: StepStats) -> bool:
        return self._chance(stats) < self._bound

    def distance(self, stats: StepStats) -> float:
        return abs(self._chance(stats) - self._bound)
