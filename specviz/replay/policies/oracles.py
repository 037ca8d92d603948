"""Policies that know the future: what could be had at best. They are made for one recording and fit no other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from specviz.replay.policies.base import Policy, StepStats


@dataclass
class StopOracle(Policy):
    """Stops at the draft's first wrong token, which it recognises only once it is drafted, and withholds it.

    Args:
        output: the tokens that the target will emit.
    """

    output: list[int] = field(repr=False)
    name: ClassVar[str] = "stop_oracle"
    looks_at_drawn_token: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.output = [int(token) for token in self.output]

    def stops(self, stats: StepStats) -> bool:
        return stats.position >= len(self.output) or stats.token != self.output[stats.position]


@dataclass
class OptimalOracle(Policy):
    """Drafts in each round what a plan says: the plan of `specviz.analysis.oracle`, which no policy can beat.

    Args:
        plan: by output position at which a round starts: (tokens to propose, 1 to draft and withhold one more else 0).
    """

    plan: list[Sequence[int]] = field(repr=False)
    name: ClassVar[str] = "optimal_oracle"
    looks_at_drawn_token: ClassVar[bool] = True
    on_fail: str = field(default="keep", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.plan = [[int(proposed), int(withheld)] for proposed, withheld in self.plan]

    def stops(self, stats: StepStats) -> bool:
        start = stats.position - stats.depth
        proposed, withheld = self.plan[start] if start < len(self.plan) else (1, 0)
        self.on_fail = "drop" if withheld else "keep"
        return stats.depth + 1 >= proposed + withheld
