"""Policies with parameters learnt from recordings (by `specviz.analysis.fitting`)."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from specviz.errors import SpecVizError
from specviz.replay.contexts import KINDS, ContextTracker
from specviz.replay.policies.base import Policy, StepStats, check_between, check_on_fail

FEATURES = ("confidence", "entropy", "margin", "depth", "last_outcome")


def _numbers(name: str, values: Sequence[float], low: float, high: float = math.inf) -> list[float]:
    try:
        return [check_between(name, value, low, high) for value in values]
    except TypeError as error:
        raise SpecVizError(f"The {name} must be a list of numbers.") from error


@dataclass
class CostAware(Policy):
    """Propose while one more token is expected to gain more time than it costs. No knob.

    Let S be the chance that everything proposed so far in the round is accepted (the product of calibrated
    confidences), a the calibrated confidence of this token, b the chance that the token after it is accepted once this
    one is, v(n) the time of a target pass over n proposed tokens, d that of a draft step. An accepted token saves what
    a token costs on average, w seconds. This draft step is paid for, so two questions are left:

    1. Send this token? It gains S a w and costs v(n + 1) - v(n). If not, it is withheld.
    2. If so, draft another? That gains S a b w and costs d + v(n + 2) - v(n + 1). If not, drafting ends here.

    The time per token is a ratio of totals, which is least when each decision minimises time - w * tokens for the
    least such w (Dinkelbach 1967): so w is the time per token *under this very policy*, found by iterating from plain
    decoding's. The rule looks one step ahead; what a token after the next might gain is not counted.

    Args:
        verify_seconds: v(n) for n = 0, 1 .. the longest draft.
        draft_seconds: d.
        token_seconds: w.
        chances: a for confidences in equal bins of 0..1.
        next_chances: b for confidences in equal bins of 0..1.
    """

    verify_seconds: list[float]
    draft_seconds: float
    token_seconds: float
    chances: list[float]
    next_chances: list[float]
    name: ClassVar[str] = "cost_aware"
    on_fail: str = field(default="keep", init=False, repr=False, compare=False)
    _survival: float = field(default=1.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.verify_seconds = _numbers("time of a target pass", self.verify_seconds, 0)
        self.draft_seconds = check_between("time of a draft step", self.draft_seconds, 0, math.inf)
        self.token_seconds = check_between("time of a token", self.token_seconds, 0, math.inf)
        self.chances = _numbers("chance", self.chances, 0, 1)
        self.next_chances = _numbers("chance of the next token", self.next_chances, 0, 1)
        if len(self.verify_seconds) < 2 or not self.chances or len(self.chances) != len(self.next_chances):
            raise SpecVizError("A cost-aware policy needs the times of two target passes, and as many chances as bins.")
        last = self.verify_seconds[-1] - self.verify_seconds[-2]
        steps = [after - before for before, after in zip(self.verify_seconds, self.verify_seconds[1:], strict=False)]
        self._extra = [*steps, last, last]

    def stops(self, stats: StepStats) -> bool:
        bins = len(self.chances)
        place = min(int(stats.confidence * bins), bins - 1)
        reached = self.chances[place] * (self._survival if stats.depth else 1.0)
        self._survival = reached
        depth = min(stats.depth, len(self._extra) - 2)
        if reached * self.token_seconds <= self._extra[depth]:
            self.on_fail = "drop"
            return True
        self.on_fail = "keep"
        another = reached * self.next_chances[place] * self.token_seconds
        return another <= self.draft_seconds + self._extra[depth + 1]

    def distance(self, stats: StepStats) -> float:
        """To the nearest edge of a bin; within one nothing changes."""
        place = stats.confidence * len(self.chances)
        return abs(place - round(place)) / len(self.chances)


@dataclass
class Learned(Policy):
    """Propose a token only if a logistic model's chance of acceptance exceeds `bound` (after SpecDec++, Huang et al.
    2024, whose head reads hidden states; this one reads five numbers).

    chance = 1 / (1 + exp(-(intercept + weights . (confidence, entropy, margin, depth, last outcome)))), where the last
    outcome is the share of the last proposal that was accepted.

    Reset: the last outcome is 1 before each generation.
    """

    weights: list[float]
    intercept: float
    bound: float
    on_fail: str = "drop"
    name: ClassVar[str] = "learned"
    _last_outcome: float = field(default=1.0, init=False, repr=False, compare=False)
    _chance: float = field(default=1.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.weights = _numbers("weight", self.weights, -math.inf)
        if len(self.weights) != len(FEATURES):
            raise SpecVizError(f"A learned policy needs {len(FEATURES)} weights: {', '.join(FEATURES)}.")
        self.bound = check_between("bound", self.bound, 0, 1)
        check_on_fail(self.on_fail)

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._last_outcome = 1.0

    def stops(self, stats: StepStats) -> bool:
        first, second, third, fourth, fifth = self.weights
        score = self.intercept + first * stats.confidence + second * stats.entropy + third * stats.margin
        score += fourth * stats.depth + fifth * self._last_outcome
        self._chance = 1 / (1 + math.exp(-max(-500.0, score)))
        return self._chance <= self.bound

    def distance(self, stats: StepStats) -> float:
        return abs(self._chance - self.bound)

    def end_round(self, proposed: int, accepted: int, tokens: Sequence[int]) -> None:
        if proposed:
            self._last_outcome = accepted / proposed


@dataclass
class ContextThreshold(Policy):
    """A confidence threshold for each kind of position (`specviz.replay.contexts`).

    Reset: the text read so far, before each generation.

    Args:
        thresholds: kind -> τ; a token is proposed only if its confidence exceeds the τ of its kind.
        token_flags: what the kinds need to know of every token, base64 of one byte a token.
    """

    thresholds: Mapping[str, float]
    token_flags: str
    on_fail: str = "drop"
    name: ClassVar[str] = "context"
    looks_at_drawn_token: ClassVar[bool] = True
    _tracker: ContextTracker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if set(self.thresholds) != set(KINDS):
            raise SpecVizError(f"A context threshold needs one threshold for each of: {', '.join(KINDS)}.")
        self.thresholds = {kind: check_between("threshold", self.thresholds[kind], 0, 1) for kind in KINDS}
        check_on_fail(self.on_fail)
        try:
            flags = base64.b64decode(self.token_flags, validate=True)
        except (ValueError, TypeError) as error:
            raise SpecVizError("token_flags must be base64 text, as `flags_as_text` makes it.") from error
        self._tracker = ContextTracker(flags)
        self._by_kind = [self.thresholds[kind] for kind in KINDS]
        self._threshold = 0.0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._tracker.begin(prompt_ids)

    def stops(self, stats: StepStats) -> bool:
        self._threshold = self._by_kind[self._tracker.kind_of_drafted(stats.depth, stats.token)]
        return stats.confidence <= self._threshold

    def distance(self, stats: StepStats) -> float:
        return abs(stats.confidence - self._threshold)

    def end_round(self, proposed: int, accepted: int, tokens: Sequence[int]) -> None:
        self._tracker.commit(tokens)
