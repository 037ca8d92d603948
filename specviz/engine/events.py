"""What a decoding loop tells its observers: typed events, in the order in which they happen.

A loop is a generator of events. Whoever iterates over it sees them; nobody can change the run through them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specviz.replay.policies import StepStats


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One draft forward pass has yielded a distribution and the policy has judged its most likely token.

    A policy may still hold back tokens it proposed: `DraftStopped.proposal` has the last word.
    """

    round: int
    stats: StepStats
    proposed: bool


@dataclass(frozen=True, slots=True)
class DraftStopped:
    """The draft phase of a round is over: `reason` says why, `proposal` is what goes to verification."""

    round: int
    reason: str
    proposal: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """One target pass has judged the proposal.

    `target_tokens` and `target_margins` (top-1 minus top-2 logit, fp32) have one entry per row of the pass: entry j is
    what the target says after the j first proposed tokens, so entry `accepted` belongs to the target's own token.
    `target_token` is None when the accepted run already ended the text. `hidden` are the target's
    hidden states of all rows, (n + 1, d), left on the device for whoever wants more than the arg max.
    """

    round: int
    accepted: int
    target_tokens: tuple[int, ...]
    target_margins: tuple[float, ...]
    target_token: int | None
    target_status: str
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds spent in one round: all draft steps, the target pass, and everything else."""

    draft: float
    verify: float
    overhead: float


@dataclass(frozen=True, slots=True)
class RoundCommitted:
    """The round's tokens are part of the text. `start` counts the tokens committed after the prompt before it."""

    round: int
    start: int
    emitted: tuple[int, ...]
    times: RoundTimes


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation is over: `reason` is eos, stop (a stop string), length, context or stopped (from outside).

    Seconds exclude loading, compiling and whatever the observer of the events did between two rounds.
    """

    reason: str
    output_ids: tuple[int, ...]
    prefill_seconds: float
    total_seconds: float


Event = DraftStep | DraftStopped | Verified | RoundCommitted | Finished
