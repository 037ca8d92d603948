"""One setting on one recording: the trace the engine would have made."""

from collections.abc import Sequence
from typing import NamedTuple

from specviz.errors import SpecVizError
from specviz.replay.policies import Policy, StepStats
from specviz.replay.rules import recorded_rule
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
    policy.begin(rounds.prompt)
    start = 0
    while start < len(output):
        distances: list[float] = []
        turn = rounds.play(start, policy, distances)
        builder.add_round(
            drafted=turn.drafted,
            distances=distances,
            withheld=turn.withheld,
            stop_reason=turn.stop_reason,
            accepted=turn.accepted,
            target_tokens=output[start : turn.end],
            target_margins=margins[start : turn.end],
            target_emitted=turn.end == start + turn.accepted + 1,
        )
        policy.end_round(turn.proposed, turn.accepted, output[start : turn.end])
        start = turn.end

    whole = recording.ended and len(output) == len(recording.output_ids)
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
            finish_reason=recording.finish_reason if whole else cut,
            seed=recording.seed,
        )
    )


class Turn(NamedTuple):
    """One round's draft phase and verification."""

    drafted: Sequence[StepStats]
    withheld: int  # steps at the end whose tokens are not proposed
    stop_reason: str
    accepted: int
    end: int  # tokens committed after the round

    @property
    def proposed(self) -> int:
        return len(self.drafted) - self.withheld


def check_fixed_output(recording: Recording) -> None:
    """Refuse a recording whose rule decides by chance, so that another setting would have had other outcomes.

    Raises:
        SpecVizError: see above.
    """
    rule = recorded_rule(recording.settings)
    if not rule.fixed_output:
        raise SpecVizError(
            f"This recording was made under the rule {rule.name}, which accepts by chance, so no single replay is "
            "right; ask for its expectation (replay_expected), or record under the rule coupled."
        )


class Rounds:
    """The rounds of one recording at one draft length and budget, from any start, under any policy.

    What the draft says after a start is put together once and kept, so that many policies are cheap to compare.
    """

    def __init__(self, recording: Recording, max_draft: int, max_new_tokens: int | None) -> None:
        check_fixed_output(recording)
        recording.check_max_draft(max_draft)
        self.budget = recording.budget(max_new_tokens)
        self.output = recording.output_ids[: self.budget].tolist()
        self.prompt = recording.prompt_ids.tolist()
        self._max_draft = max_draft
        self._eos_ids = recording.eos_ids
        self._main = self._steps(recording, "draft")
        self._branch = self._steps(recording, "branch")
        self._offsets = recording.branch_offsets.tolist()
        self._said: dict[int, list[StepStats]] = {}
        # How many tokens from a start on the draft gets right in a row.
        self.right_run = [0] * (len(self.output) + 1)
        for position in range(len(self.output) - 1, -1, -1):
            if self._main[position][0] == self.output[position]:
                self.right_run[position] = self.right_run[position + 1] + 1

    def play(self, start: int, policy: Policy, distances: list[float] | None = None) -> Turn:
        """The round that begins when `start` output tokens are committed. `distances` as in `draft_phase`."""
        steps, withheld, stop_reason = self.draft_phase(start, policy, distances)
        accepted = min(steps - withheld, self.right_run[start])
        end = min(start + accepted + 1, len(self.output))
        return Turn(self.said_after(start)[:steps], withheld, stop_reason, accepted, end)

    def draft_phase(self, start: int, policy: Policy, distances: list[float] | None = None) -> tuple[int, int, str]:
        """Draft steps, tokens withheld of them, and why it stopped.

        Args:
            distances: takes in how near each decision was to the other side.
        """
        policy_limit = policy.draft_limit(self._max_draft)
        limit = min(policy_limit, self.budget - start - 1)
        steps = 0
        withheld, reason = False, "max_draft" if limit == policy_limit else "budget"
        for stats in self.said_after(start):
            if steps >= limit:
                break
            fails = policy.stops(stats)
            steps += 1
            if distances is not None:
                distances.append(policy.distance(stats))
            if fails:
                withheld, reason = policy.on_fail == "drop", policy.name
                break
            if stats.token in self._eos_ids:
                reason = "eos"
                break
        else:  # all that was recorded of this phase, which ends early only with a stop string
            reason = "stop" if steps < limit else reason
        return steps, steps - policy.sent(steps - withheld), reason

    def said_after(self, start: int) -> list[StepStats]:
        """What the draft says: along the output up to its first wrong token, then on its branch."""
        if start not in self._said:
            wrong = start + self.right_run[start]
            steps = self._main[start : min(wrong + 1, start + self._max_draft)]
            if wrong < len(self.output):
                steps += self._branch[self._offsets[wrong] : self._offsets[wrong + 1]][: self._max_draft - len(steps)]
            self._said[start] = [StepStats(depth, start + depth, *values) for depth, values in enumerate(steps)]
        return self._said[start]

    def steps_to_end(self, start: int) -> int:
        """Draft steps from a start until the draft says end-of-sequence, that step included; else all there are."""
        said = self.said_after(start)
        return next((stats.depth + 1 for stats in said if stats.token in self._eos_ids), len(said))

    @staticmethod
    def _steps(recording: Recording, prefix: str) -> list[tuple[int, float, float, float]]:
        names = ("token", "confidence", "entropy", "margin")
        return list(zip(*(getattr(recording, f"{prefix}_{name}").tolist() for name in names), strict=True))
