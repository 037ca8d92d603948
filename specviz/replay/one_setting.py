"""One setting on one recording: the trace the engine would have made."""

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
    recording.check_max_draft(max_draft)
    budget = recording.budget(max_new_tokens)
    output = recording.output_ids[:budget].tolist()
    steps = _DraftSteps(recording)
    margins = recording.target_margin.tolist()
    builder = TraceBuilder(recording.pair)
    policy.reset()
    start = 0
    while start < len(output):
        drafted, distances, withheld, stop_reason = _draft_phase(
            steps, policy, start, max_draft, budget - start, recording.eos_ids
        )
        proposal = [stats.token for stats in drafted[: len(drafted) - withheld]]
        accepted = 0
        while accepted < len(proposal) and proposal[accepted] == output[start + accepted]:
            accepted += 1
        end = min(start + accepted + 1, len(output))
        builder.add_round(
            drafted=drafted,
            distances=distances,
            withheld=withheld,
            stop_reason=stop_reason,
            accepted=accepted,
            target_tokens=output[start:end],
            target_margins=margins[start:end],
            target_emitted=end == start + accepted + 1,
        )
        policy.end_round(len(proposal), accepted)
        start = end

    cut = "length" if budget == max_new_tokens else "context"
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


def _draft_phase(
    steps: "_DraftSteps", policy: Policy, start: int, max_draft: int, remaining: int, eos_ids: tuple[int, ...]
) -> tuple[list[StepStats], list[float], bool, str]:
    """Steps taken, their distances to the policy's decision, whether the last was withheld, and the stop reason."""
    policy_limit = policy.draft_limit(max_draft)
    limit = min(policy_limit, remaining - 1)
    drafted, distances = [], []
    for depth, values in zip(range(limit), steps.after(start), strict=False):
        stats = StepStats(depth, start + depth, *values)
        fails = policy.stops(stats)
        drafted.append(stats)
        distances.append(policy.distance(stats))
        if fails:
            return drafted, distances, policy.on_fail == "drop", policy.name
        if stats.token in eos_ids:
            return drafted, distances, False, "eos"
    return drafted, distances, False, "max_draft" if limit == policy_limit else "budget"


class _DraftSteps:
    """What the draft says, step after step, when it starts from a position of the output."""

    def __init__(self, recording: Recording) -> None:
        self._main = self._rows(recording, "draft")
        self._branch = self._rows(recording, "branch")
        self._offsets = recording.branch_offsets.tolist()
        self._output = recording.output_ids.tolist()

    @staticmethod
    def _rows(recording: Recording, prefix: str) -> list[tuple[int, float, float, float]]:
        names = ("token", "confidence", "entropy", "margin")
        return list(zip(*(getattr(recording, f"{prefix}_{name}").tolist() for name in names), strict=True))

    def after(self, start: int):
        """Yield (token, confidence, entropy, margin): along the output up to the first wrong token, then its branch."""
        for position in range(start, len(self._output)):
            yield self._main[position]
            if self._main[position][0] != self._output[position]:
                yield from self._branch[self._offsets[position] : self._offsets[position + 1]]
                return
