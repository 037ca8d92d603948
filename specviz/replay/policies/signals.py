"""Policies that compare one signal of the draft with one bound. None keeps state beyond its round."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from specviz import limits
from specviz.replay.policies.base import Policy, StepStats, check_between, check_on_fail, check_whole


@dataclass
class FixedLength(Policy):
    """Always propose `length` tokens, by default `max_draft` (Leviathan et al. 2023)."""

    length: int | None = None
    name: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        if self.length is not None:
            self.length = check_whole("draft length", self.length, 1)

    def draft_limit(self, max_draft: int) -> int:
        return max_draft if self.length is None else min(self.length, max_draft)

    def stops(self, stats: StepStats) -> bool:
        return False

    def settings(self) -> dict:
        return {"policy": self.name} | ({} if self.length is None else {"length": self.length})


@dataclass
class ConfidenceThreshold(Policy):
    """Propose a token only if the draft's confidence exceeds `threshold`.

    With `on_fail="keep"` this is `assistant_confidence_threshold` of transformers (Mamou et al. 2024).
    """

    threshold: float
    on_fail: str = "drop"
    name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        self.threshold = limits.THRESHOLD.check(self.threshold)
        check_on_fail(self.on_fail)

    def stops(self, stats: StepStats) -> bool:
        return stats.confidence <= self.threshold

    def distance(self, stats: StepStats) -> float:
        return abs(stats.confidence - self.threshold)


@dataclass
class CumulativeConfidence(Policy):
    """Propose while the product of the round's confidences, this one included, exceeds `bound`.

    If confidences were calibrated and independent, the product would be the chance that this token is reached and
    accepted: the value that EAGLE-2 (Li et al. 2024) gives to a node of its draft tree.
    """

    bound: float
    on_fail: str = "drop"
    name: ClassVar[str] = "cumulative"
    _product: float = field(default=1.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.bound = check_between("bound", self.bound, 0, 1)
        check_on_fail(self.on_fail)

    def stops(self, stats: StepStats) -> bool:
        self._product = stats.confidence * (self._product if stats.depth else 1.0)
        return self._product <= self.bound

    def distance(self, stats: StepStats) -> float:
        return abs(self._product - self.bound)


@dataclass
class EntropyBound(Policy):
    """SVIP (Zhang et al. 2024): stop where the square root of the draft's entropy (nats) exceeds `bound`.

    By Pinsker's inequality a token is accepted with a chance of at least 1 - sqrt((cross entropy - entropy) / 2); with
    the cross entropy in a fixed ratio to the entropy that is 1 - sqrt(c * entropy), so a bound on the root is one on
    the chance. Their code (github.com/Geralt-Targaryen/SVIP) stops where sqrt(0.15 * entropy) > 0.3, a `bound` of
    0.775, and proposes the token that fails, as `keep` does.
    """

    bound: float
    on_fail: str = "drop"
    name: ClassVar[str] = "entropy"

    def __post_init__(self) -> None:
        self.bound = check_between("bound", self.bound, 0, math.inf)
        check_on_fail(self.on_fail)

    def stops(self, stats: StepStats) -> bool:
        return math.sqrt(stats.entropy) > self.bound

    def distance(self, stats: StepStats) -> float:
        return abs(math.sqrt(stats.entropy) - self.bound)


@dataclass
class MarginThreshold(Policy):
    """Propose a token only if the draft's top-1 minus top-2 probability exceeds `bound`.

    The margin of active learning (Scheffer et al. 2001): two likely tokens are a doubt that confidence alone hides.
    """

    bound: float
    on_fail: str = "drop"
    name: ClassVar[str] = "margin"

    def __post_init__(self) -> None:
        self.bound = check_between("bound", self.bound, 0, 1)
        check_on_fail(self.on_fail)

    def stops(self, stats: StepStats) -> bool:
        return stats.margin <= self.bound

    def distance(self, stats: StepStats) -> float:
        return abs(stats.margin - self.bound)


@dataclass
class LlamaCpp(Policy):
    """llama.cpp's three options: `--spec-draft-p-min`, `--spec-draft-n-min`, `--spec-draft-n-max`.

    Drafting stops without the token whose probability is *below* `p_min`, at `n_max` tokens at the latest, and a draft
    of fewer than `n_min` tokens is thrown away whole, its draft steps paid for. Many versions that call them
    `--draft-p-min` and so on propose the token below `p_min` before they stop. Two things differ: llama.cpp takes the
    probability among the draft's ten likeliest tokens, which is larger than among all, and where fewer than `n_min`
    tokens fit before the end it does not draft at all.
    """

    p_min: float = 0.75
    n_max: int = 16
    n_min: int = 0
    name: ClassVar[str] = "llama_cpp"
    looks_at_drawn_token: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.p_min = check_between("p_min", self.p_min, 0, 1)
        self.n_max = check_whole("n_max", self.n_max, 1)
        self.n_min = check_whole("n_min", self.n_min, 0)

    def draft_limit(self, max_draft: int) -> int:
        return min(self.n_max, max_draft)

    def stops(self, stats: StepStats) -> bool:
        return stats.confidence < self.p_min

    def distance(self, stats: StepStats) -> float:
        return abs(stats.confidence - self.p_min)

    def sent(self, proposed: int) -> int:
        return proposed if proposed >= self.n_min else 0
