"""The observer that turns the events of a generation into a trace."""

from __future__ import annotations

import math
from dataclasses import replace

from specviz.engine.events import (
    DraftStep,
    DraftStopped,
    Event,
    Finished,
    RoundCommitted,
    Verified,
)
from specviz.replay.policies import Policy, StepStats
from specviz.trace import RunInfo, Trace, TraceBuilder


class TraceRecorder:
    """Collects events; `trace` is the result once `Finished` has been seen.

    Args:
        run: what is known before the generation; output, finish reason and times are filled in.
        policy: the policy that runs, asked how near each decision was to the other side; None in plain decoding.
    """

    def __init__(self, run: RunInfo, policy: Policy | None):
        self._run, self._policy = run, policy
        self._builder = TraceBuilder(run.pair)
        self.trace: Trace | None = None
        self._start_round()

    def _start_round(self) -> None:
        self._drafted: list[StepStats] = []
        self._distances: list[float] = []
        self._withheld = 0
        self._stop_reason = "budget"
        self._verified: Verified | None = None

    def observe(self, event: Event) -> None:
        """Take in the next event."""
        match event:
            case DraftStep(stats=stats):
                self._drafted.append(stats)
                self._distances.append(self._policy.distance(stats) if self._policy else math.inf)
            case DraftStopped(reason=reason, proposal=proposal):
                self._stop_reason = reason
                self._withheld = len(self._drafted) - len(proposal)
            case Verified():
                self._verified = event
            case RoundCommitted(times=times):
                verified = self._verified
                emitted_own = verified.target_token is not None
                known = verified.accepted + emitted_own
                self._builder.add_round(
                    drafted=self._drafted,
                    distances=self._distances,
                    withheld=self._withheld,
                    stop_reason=self._stop_reason,
                    accepted=verified.accepted,
                    target_tokens=verified.target_tokens[:known],
                    target_margins=verified.target_margins[:known],
                    target_emitted=emitted_own,
                    draft_seconds=times.draft,
                    verify_seconds=times.verify,
                    overhead_seconds=times.overhead,
                )
                self._start_round()
            case Finished():
                self.trace = self._builder.finish(self._finished_run(event))

    def _finished_run(self, event: Finished) -> RunInfo:
        return replace(
            self._run,
            output_ids=event.output_ids,
            finish_reason=event.reason,
            prefill_seconds=event.prefill_seconds,
            total_seconds=event.total_seconds,
        )
