"""One setting on one recording: the trace the engine would have made."""

from collections.abc import Iterator
from typing import NamedTuple

from specviz.replay.policies import Policy, StepStats
from specviz.trace import RunInfo, Trace, TraceBuilder
from specviz.trace.recording import Recording


def replay(recording: Recording, policy: Policy, max_draft: int, max_new_tokens: int | None = None) -> Trace:
    """What the engine would have done with these settings, round by round and token by token; no model runs.

    Args:
        max_draft: draft length, at most the recording's.
        max_new_tokens: default as recorded. A text that ended by itself can be replayed with any value, a text that
            was cut only with as many tokens as it has.

    Returns:
        A trace of origin "replayed"; its times are NaN, `specviz.analysis` prices it with a cost model.

    Raises:
        SpecVizError: the recording does not cover these settings.
    """
    if max_new_tokens is None:
        max_new_tokens = recording.max_new_tokens
    rounds = Rounds(recording, max_draft, max_new_tokens)
    output, margins = rounds.output, recording.target_margin.tolist()
    builder = TraceBuilder(recording.pair)
    policy.reset()
    start = 0
    while start < len(output):
        turn = rounds.play(start, policy)
        builder.add_round(
            drafted=turn.drafted,
            distances=turn.distances,
            withheld=turn.withheld,
            stop_reason=turn.stop_reason,
            accepted=turn.accepted,
            target_tokens=output[start : turn.end],
            target_margins=margins[start : turn.end],
            target_emitted=turn.end == start + turn.accepted + 1,
        )
        policy.end_round(turn.proposed, turn.accepted)
        start = turn.end

    cut = "length" if rounds.budget == max_new_tokens else "context"
    settings = {
        **recording.settings,
        "policy": policy.settings(),
        "max_draft": max_draft,
        "max_new_tokens": max_new_tokens,
        "eos_ids": list(recording.eos_ids),
    }
    return builder.finish(
        RunInfo(
            origin="replayed",
            pair=recording.pair,
            settings=settings,
            prompt=recording.prompt,
            prompt_ids=tuple(recording.prompt_ids.tolist()),
            output_ids=tuple(output),
            finish_reason="eos" if output[-1] in recording.eos_ids else cut,
            seed=recording.seed,
        )
    )


class Turn(NamedTuple):
    """One round's draft phase and verification."""

    drafted: list[StepStats]
    distances: list[float]  # of the policy's decision on each step
    withheld: bool  # the last step's token is not proposed
    stop_reason: str
    accepted: int
    end: int  # tokens committed after the round

    @property
    def proposed(self) -> int:
        return len(self.drafted) - self.withheld


class Rounds:
    """The rounds of one recording at one draft length and budget, from any start, under any policy."""

    def __init__(self, recording: Recording, max_draft: int, max_new_tokens: int | None) -> None:
        recording.check_max_draft(max_draft)
        self.budget = recording.budget(max_new_tokens)
        self.output = recording.output_ids[: self.budget].tolist()
        self._max_draft = max_draft
        self._eos_ids = recording.eos_ids
        self._main = self._steps(recording, "draft")
        self._branch = self._steps(recording, "branch")
        self._offsets = recording.branch_offsets.tolist()

    def play(self, start: int, policy: Policy) -> Turn:
        """The round that begins when `start` output tokens are committed."""
        drafted, distances, withheld, stop_reason = self._draft_phase(start, policy)
        proposal = [stats.token for stats in drafted[: len(drafted) - withheld]]
        accepted = 0
        while accepted < len(proposal) and proposal[accepted] == self.output[start + accepted]:
            accepted += 1
        end = min(start + accepted + 1, len(self.output))
        return Turn(drafted, distances, withheld, stop_reason, accepted, end)

    def _draft_phase(self, start: int, policy: Policy) -> tuple[list[StepStats], list[float], bool, str]:
        policy_limit = policy.draft_limit(self._max_draft)
        limit = min(policy_limit, self.budget - start - 1)
        drafted, distances = [], []
        for depth, values in zip(range(limit), self._said_after(start), strict=False):
            stats = StepStats(depth, start + depth, *values)
            fails = policy.stops(stats)
            drafted.append(stats)
            distances.append(policy.distance(stats))
            if fails:
                return drafted, distances, policy.on_fail == "drop", policy.name
            if stats.token in self._eos_ids:
                return drafted, distances, False, "eos"
        return drafted, distances, False, "max_draft" if limit == policy_limit else "budget"

    def _said_after(self, start: int) -> Iterator[tuple[int, float, float, float]]:
        """What the draft says: along the output up to its first wrong token, then on its branch."""
        for position in range(start, len(self.output)):
            yield self._main[position]
            if self._main[position][0] != self.output[position]:
                yield from self._branch[self._offsets[position] : self._offsets[position + 1]]
                return

    @staticmethod
    def _steps(recording: Recording, prefix: str) -> list[tuple[int, float, float, float]]:
        names = ("token", "confidence", "entropy", "margin")
        return list(zip(*(getattr(recording, f"{prefix}_{name}").tolist() for name in names), strict=True))
