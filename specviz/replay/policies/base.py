"""What a stopping policy is: it decides when a draft phase ends before `max_draft` tokens."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import ClassVar, NamedTuple

from specviz.errors import SpecVizError

ON_FAIL = ("drop", "keep")


class StepStats(NamedTuple):
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
    """Base of all policies, which are dataclasses: their init fields are their settings.

    `name` is also the stop reason in a trace. `on_fail` says what happens to the token that fails: "drop" withholds it,
    "keep" proposes it and then stops; a policy may set it anew with each decision.

    State is forgotten in `begin` unless a policy says otherwise; what outlives a generation lives as long as the
    object. The hooks are called in this order: `begin` once per generation; per round `draft_limit`, then `stops` for
    each draft step in turn, `sent`, `end_round`.
    """

    name: ClassVar[str]
    looks_at_drawn_token: ClassVar[bool] = False  # when deciding to withhold it: see `specviz.replay.rules`
    on_fail: str = "drop"

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Called once before each generation."""

    def draft_limit(self, max_draft: int) -> int:
        """Most tokens to draft in the coming round, in 1..max_draft. Called once per round."""
        return max_draft

    def stops(self, stats: StepStats) -> bool:
        """True when this token fails."""
        raise NotImplementedError

    def distance(self, stats: StepStats) -> float:
        """How far, in units of what is compared, the last decision was from turning out the other way.

        Called right after `stops` for the same step; infinite when no small change could alter it.
        """
        return math.inf

    def sent(self, proposed: int) -> int:
        """How many of the tokens proposed in this draft phase really go to verification; the rest is withheld."""
        return proposed

    def end_round(self, proposed: int, accepted: int, tokens: Sequence[int]) -> None:
        """Feedback after each verification. `tokens` are those the round has committed: the accepted run and, unless
        it ended the text, the target's own token."""

    def settings(self) -> dict:
        """The policy as JSON-able values; `policy_from_settings` inverts it."""
        return {"policy": self.name, **{item.name: getattr(self, item.name) for item in fields(self) if item.init}}


def check_between(name: str, value: float, low: float, high: float) -> float:
    """`value` as a float within the bounds, both included.

    Raises:
        SpecVizError: it is not, or it is no number.
    """
    if not low <= value <= high:  # also refuses NaN
        allowed = f"lie between {low:g} and {high:g}" if math.isfinite(high) else f"be a number of at least {low:g}"
        raise SpecVizError(f"The {name} is {value}; it must {allowed}.")
    return float(value)


def check_on_fail(on_fail: str) -> None:
    """Refuse anything but "drop" and "keep"."""
    if on_fail not in ON_FAIL:
        raise SpecVizError(f'on_fail is {on_fail!r}; choose "drop" or "keep".')


def check_whole(name: str, value: int, low: int) -> int:
    """`value` as a whole number of at least `low`.

    Raises:
        SpecVizError: it is not.
    """
    if isinstance(value, bool) or value != int(value) or value < low:
        raise SpecVizError(f"The {name} is {value}; it must be a whole number of at least {low}.")
    return int(value)
