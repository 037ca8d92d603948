"""Stopping policies: when does a draft phase end before `max_draft` tokens?

A policy is written once and serves both the engine and the replay, so they cannot drift apart. To add one, write
a class and add one line to `POLICIES`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from specviz.errors import SpecVizError

ON_FAIL = ("drop", "keep")


@dataclass(frozen=True, slots=True)
class StepStats:
    """What a policy may look at: one draft step, before its token is appended.

    Probabilities are after temperature. Floats are float32 values widened to Python's float, so that a comparison
    has one outcome wherever it is made.
    """

    depth: int  # 0-based step within the round
    position: int  # 0-based output position the token would take
    token: int  # the draft's most likely token
    confidence: float  # its probability
    entropy: float  # of the draft's distribution, in nats
    margin: float  # top-1 minus top-2 probability


class Policy:
    """Base of all policies. `name` is also the stop reason in a trace.

    `on_fail` says what happens to the token that fails: "drop" withholds it, "keep" proposes it and then stops.
    """

    name: ClassVar[str]
    on_fail: str = "drop"

    def reset(self) -> None:
        """Called once before each generation."""

    def draft_limit(self, max_draft: int) -> int:
        """Most tokens to propose in the coming round, in 1..max_draft. Called once per round."""
        return max_draft

    def stops(self, stats: StepStats) -> bool:
        """True when this token fails."""
        raise NotImplementedError

    def distance(self, stats: StepStats) -> float:
        """How far, in units of probability, the last decision was from turning out the other way.

        Called right after `stops` for the same step; infinite when no small change could alter it.
        """
        return math.inf

    def end_round(self, proposed: int, accepted: int) -> None:
        """Feedback after each verification."""

    def settings(self) -> dict:
        """The policy as JSON-able values; `policy_from_settings` inverts it."""
        raise NotImplementedError


@dataclass
class FixedLength(Policy):
    """Always propose `max_draft` tokens (Leviathan et al. 2023)."""

    name: ClassVar[str] = "fixed"

    def stops(self, stats: StepStats) -> bool:
        return False

    def settings(self) -> dict:
        return {"policy": self.name}


@dataclass
class ConfidenceThreshold(Policy):
    """Propose a token only if the draft's confidence exceeds `threshold`.

    With `on_fail="keep"` this is `assistant_confidence_threshold` of transformers (Mamou et al. 2024).
    """

    threshold: float
    on_fail: str = "drop"
    name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:  # also refuses NaN
            raise SpecVizError(f"The threshold is {self.threshold}; it must lie between 0 and 1.")
        if self.on_fail not in ON_FAIL:
            raise SpecVizError(f'on_fail is {self.on_fail!r}; choose "drop" or "keep".')
        self.threshold = float(self.threshold)

    def stops(self, stats: StepStats) -> bool:
        return stats.confidence <= self.threshold

    def distance(self, stats: StepStats) -> float:
        return abs(stats.confidence - self.threshold)

    def settings(self) -> dict:
        return {"policy": self.name, "threshold": self.threshold, "on_fail": self.on_fail}


POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (FixedLength, ConfidenceThreshold)}


def policy_from_settings(settings: dict) -> Policy:
    """The policy that `Policy.settings` described."""
    knobs = dict(settings)
    name = knobs.pop("policy", None)
    if name not in POLICIES:
        raise SpecVizError(f"There is no stopping policy {name!r}; choose one of {', '.join(POLICIES)}.")
    try:
        return POLICIES[name](**knobs)
    except TypeError as error:
        raise SpecVizError(f"The settings {knobs} do not fit the stopping policy {name!r}: {error}.") from error
