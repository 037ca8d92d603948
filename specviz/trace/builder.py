"""Turning the bare facts of each round into the rows of a trace, for the engine's recorder and the replay alike."""

import math
from collections.abc import Sequence

import numpy as np

from specviz.trace.columns import ROUND_COLUMNS, STEP_COLUMNS, Column
from specviz.trace.statuses import target_status
from specviz.trace.trace import PairInfo, RunInfo, Trace, column_arrays

NAN = math.nan


def near_tie_epsilons(pair: PairInfo) -> tuple[float, float]:
    """How close is close enough for rounding to matter: (draft probability, target logit).

    Wide enough to cover what another width of pass or another order of summation changes at that precision: in fp32
    1e-4 and 1e-3, in anything coarser 0.02 and 0.25. At int8 with outlier columns, which depend on all rows of a pass,
    the target's limit is 1: flips were seen at margins up to 0.6 (`bench precision`).
    """
    probability = 1e-4 if pair.draft_precision == "fp32" else 0.02
    if pair.target_precision == "fp32":
        return probability, 1e-3
    precision, *flags = pair.target_precision.split("+")
    return probability, 1.0 if precision == "int8" and "t0" not in flags else 0.25


class TraceBuilder:
    """Collects rounds; `finish` makes the trace.

    A step is a near tie when the policy's decision, the draft's arg max or (where it is known) the target's arg max
    was closer than `near_tie_epsilons` to turning out otherwise.
    """

    def __init__(self, pair: PairInfo) -> None:
        self._probability_epsilon, self._logit_epsilon = near_tie_epsilons(pair)
        self._rounds: list[tuple] = []  # in the order of ROUND_COLUMNS
        self._steps: list[tuple] = []  # in the order of STEP_COLUMNS
        self._start = 0

    def add_round(
        self,
        *,
        drafted: Sequence,
        distances: Sequence[float],
        withheld: int,
        stop_reason: str,
        accepted: int,
        target_tokens: Sequence[int],
        target_margins: Sequence[float],
        target_emitted: bool = True,
        draft_seconds: float = NAN,
        verify_seconds: float = NAN,
        overhead_seconds: float = NAN,
    ) -> None:
        """Append one round.

        Args:
            drafted: one `StepStats` per draft step, in order; the last `withheld` of them are not proposed.
            distances: `Policy.distance` of each of those steps.
            stop_reason: why drafting ended.
            accepted: length of the accepted run.
            target_tokens: what the target says at the output positions start .. start + accepted, that is
                accepted + 1 tokens, the last of them the target's own; only `accepted` of them when
                the accepted run ended the text.
            target_margins: the target's top-1 minus top-2 logit at the same positions.
            target_emitted: False when the accepted run ended the text, so that the target added no token.
        """
        known = accepted + target_emitted
        if len(target_tokens) != known or len(target_margins) != known or len(distances) != len(drafted):
            raise ValueError(
                f"{len(drafted)} steps, {accepted} accepted: got {len(distances)} distances, "
                f"{len(target_tokens)} target tokens and {len(target_margins)} margins"
            )
        number, start = len(self._rounds), self._start
        proposed = len(drafted) - withheld
        tested = min(accepted + 1, proposed)
        own_status = target_status(proposed, accepted) if target_emitted else ""

        for step, (stats, distance) in enumerate(zip(drafted, distances, strict=True)):
            if step < accepted:
                status = "accepted"
            elif step < tested:
                status = "rejected"
            elif step < proposed:
                status = "discarded"
            else:
                status = "withheld"
            # Position start + accepted is the last one at which the target speaks about the committed text.
            target_token, target_margin = (target_tokens[step], target_margins[step]) if step < known else (-1, NAN)
            near_tie = min(distance, stats.margin) < self._probability_epsilon or target_margin < self._logit_epsilon
            self._steps.append(
                (number, step, "draft", start + step, stats.token, status, stats.confidence, stats.entropy)
                + (stats.margin, target_token, target_margin, near_tie)
            )
        if target_emitted:
            token, margin = target_tokens[accepted], target_margins[accepted]
            self._steps.append(
                (number, len(drafted), "target", start + accepted, token, own_status, NAN, NAN, NAN)
                + (token, margin, margin < self._logit_epsilon)
            )
        self._rounds.append(
            (number, start, proposed, tested, accepted, proposed - tested, withheld, len(drafted), known)
            + (stop_reason, own_status, draft_seconds, verify_seconds, overhead_seconds)
        )
        self._start += known

    def finish(self, run: RunInfo) -> Trace:
        """The trace, validated."""
        return Trace(run, _columns(ROUND_COLUMNS, self._rounds), _columns(STEP_COLUMNS, self._steps)).validate()


def _columns(columns: tuple[Column, ...], rows: Sequence[tuple]) -> dict[str, np.ndarray]:
    names = [column.name for column in columns]
    return column_arrays(columns, dict(zip(names, zip(*rows, strict=True), strict=bool(rows))))
