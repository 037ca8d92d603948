"""Every threshold times every draft length on many recordings, in counts, without a loop over cells.

The outcome of a round depends only on where it starts and on the cell (threshold, draft length). So the outcome of a
round starting at *every* output position is computed for all cells at once, then a walk over the positions marks the
starts that each cell really visits, and one histogram per cell counts the outcomes at the marked starts.

Shapes: Q output positions, D draft lengths, B recordings of a block, T thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specviz.errors import SpecVizError
from specviz.replay.counts import RoundCounts
from specviz.replay.one_setting import check_fixed_output
from specviz.replay.policies import ON_FAIL
from specviz.trace.recording import Recording

# How a round ended. The first four are (rejected) + 2 * (withheld); of the rounds with neither, two are set apart.
KINDS = 6
ALL_ACCEPTED, REJECTED, WITHHELD, REJECTED_AND_WITHHELD, LAST_DRAFTED, ENDED_BY_DRAFT = range(KINDS)
# Work is cut so that its arrays stay in a processor's cache: recordings into blocks, those into stretches of positions.
LANES_PER_BLOCK = 1 << 12  # recordings times cells
STATES_PER_STRETCH = 1 << 17  # positions times recordings times cells


@dataclass(frozen=True, eq=False)
class GridCounts:
    """Counts per recording, threshold and draft length."""

    thresholds: np.ndarray  # (T,) float64
    max_drafts: np.ndarray  # (D,) int
    on_fail: str
    counts: RoundCounts  # leading shape (recordings, T, D)


def replay_grid(
    recordings: Sequence[Recording],
    thresholds: Sequence[float],
    max_drafts: Sequence[int],
    on_fail: str = "drop",
    max_new_tokens: int | None = None,
) -> GridCounts:
    """Counts of `replay(recording, ConfidenceThreshold(threshold, on_fail), max_draft)` for every combination.

    Cost: about ten nanoseconds per recording, output position and cell; the result takes about 250 bytes per recording
    and cell at 16 draft lengths.

    Raises:
        SpecVizError: a recording does not cover these settings.
    """
    thresholds, max_drafts = np.asarray(thresholds, np.float64), np.asarray(max_drafts, np.int64)
    if not len(recordings) or not thresholds.size or not max_drafts.size:
        raise SpecVizError("A grid needs at least one recording, one threshold and one draft length.")
    if not ((thresholds >= 0) & (thresholds <= 1)).all():
        raise SpecVizError("A threshold of the grid is outside 0 to 1.")
    if on_fail not in ON_FAIL:
        raise SpecVizError(f'on_fail is {on_fail!r}; choose "drop" or "keep".')
    for recording in recordings:
        check_fixed_output(recording)
        recording.check_max_draft(int(max_drafts.min()))
        recording.check_max_draft(int(max_drafts.max()))
    budgets = np.array([recording.budget(max_new_tokens) for recording in recordings])
    lengths = np.minimum(budgets, [len(recording.output_ids) for recording in recordings])

    shape = (len(recordings), thresholds.size, max_drafts.size)
    lengths_shape = (*shape, int(max_drafts.max()) + 1)
    result = {name: np.empty(shape, np.int32) for name in RoundCounts.__dataclass_fields__}
    result["proposal_lengths"] = np.empty(lengths_shape, np.int32)
    result["verify_context"], result["draft_context"] = np.empty(lengths_shape, np.int64), np.empty(shape, np.int64)

    order = np.argsort(lengths, kind="stable")  # recordings of like length share a block, so little is padded
    cells = thresholds.size * max_drafts.size
    while order.size:
        size = max(1, LANES_PER_BLOCK // cells)
        block, order = order[-size:], order[:-size]
        chosen = [recordings[row] for row in block]
        tables = _RoundTables.of(chosen, thresholds, on_fail, lengths[block], budgets[block], int(max_drafts.max()))
        for name, values in _count(tables, chosen, max_drafts).items():
            result[name][block] = values
    return GridCounts(thresholds, max_drafts, on_fail, RoundCounts(**result))


@dataclass(frozen=True)
class _RoundTables:
    """The round that starts at each position, if only the threshold and the budget limited it.

    Values are capped at the longest draft length, so that they fit in a byte.
    """

    accepted: np.ndarray  # (Q, B, T) length of the accepted run
    proposed: np.ndarray  # (Q, B, T)
    withheld: np.ndarray  # (Q, B, T) bool: drafting ended with a withheld token
    lengths: np.ndarray  # (B,) output tokens
    budgets: np.ndarray  # (B,) max_new_tokens, at least the output's length

    @classmethod
    def of(cls, recordings, thresholds, on_fail, lengths, budgets, longest) -> "_RoundTables":
        # A float32 confidence exceeds a threshold exactly when it exceeds the float32 at or just below it.
        limits = thresholds.astype(np.float32)
        limits = np.where(limits > thresholds, np.nextafter(limits, np.float32(-1)), limits)
        number = int(lengths.max())
        positions = np.arange(number)[:, None]

        # Pad to one length. Padding is right and surer than any threshold: it never ends a draft phase.
        confidence = np.full((number, len(recordings)), 2, np.float32)
        wrong = np.zeros((number, len(recordings)), bool)
        for column, (recording, length) in enumerate(zip(recordings, lengths, strict=True)):
            confidence[:length, column] = recording.draft_confidence[:length]
            wrong[:length, column] = recording.draft_token[:length] != recording.output_ids[:length]
        low = confidence[:, :, None] <= limits

        # What a draft phase proposes from the step on at which it leaves the output or ends: the wrong token and its
        # branch, and under "keep" the token that failed.
        after, after_withheld = _branches(recordings, wrong, limits, on_fail, longest)
        after = np.where(low, 1 if on_fail == "keep" else 0, after)
        withheld = np.where(low, on_fail == "drop", after_withheld)

        stop = np.where(low | wrong[:, :, None], positions[:, :, None], number).astype(np.int32)
        stop = np.minimum.accumulate(stop[::-1])[::-1]  # the next such step at or after each position
        at = np.minimum(stop, number - 1)
        found = stop < number
        run = stop - positions[:, :, None]
        proposed = run + found * np.take_along_axis(after, at, 0)
        accepted = run
        if on_fail == "keep":  # a right token that fails is proposed, and accepted
            accepted = run + (found & ~np.take_along_axis(np.broadcast_to(wrong[:, :, None], low.shape), at, 0))
        # Padding does not count as drafted, and a round never overshoots the budget.
        end = np.where(positions < lengths, lengths - positions, 0)[:, :, None]
        room = np.clip(budgets - positions - 1, 0, longest)[:, :, None]
        withheld = found & np.take_along_axis(withheld, at, 0) & (proposed < room)
        small = np.min_scalar_type(KINDS * (longest + 1))
        return cls(
            accepted=np.minimum(np.minimum(accepted, end), room).astype(small),
            proposed=np.minimum(np.where(found, proposed, end), room).astype(small),
            withheld=withheld,
            lengths=lengths,
            budgets=budgets,
        )

    def outcomes(self, stretch: slice, max_drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How rounds that start in a stretch of positions turn out in every cell, all of shape (positions, D, B, T).

        Returns:
            The outcome, kind * (G + 1) + number of proposed tokens; and the length of the accepted run.
        """
        small = self.accepted.dtype
        longest = int(max_drafts.max())
        limit = max_drafts.astype(small)[:, None, None]
        accepted = np.minimum(self.accepted[stretch, None], limit)
        proposed = np.minimum(self.proposed[stretch, None], limit)
        withheld = (self.proposed[stretch, None] < limit) & self.withheld[stretch, None]
        rejected = proposed > accepted

        # A round that reaches as far as these ended the text, or no draft phase follows it.
        positions = np.arange(stretch.start, stretch.start + len(accepted))[:, None]
        left = np.clip(self.lengths - positions, 0, longest + 1).astype(small)[:, None, :, None]
        drafting_left = np.minimum(self.lengths, self.budgets - 1) - positions
        drafting_left = np.clip(drafting_left, 0, longest + 2).astype(small)[:, None, :, None]
        kind = rejected.view(np.uint8) + 2 * withheld.view(np.uint8)
        last = (accepted + small.type(1) >= drafting_left) & (kind == ALL_ACCEPTED)
        kind += 4 * last.view(np.uint8) + (accepted == left).view(np.uint8)
        return kind * small.type(longest + 1) + proposed, accepted


def _branches(recordings, wrong, limits, on_fail, longest):
    """Per wrong position and threshold: tokens proposed from the wrong one on, and whether the last was withheld.

    Two arrays of shape (Q, B, T); zero where the draft is right.
    """
    number, count = wrong.shape
    # One row per wrong position; the running minimum tells how long a branch stays above a threshold.
    where = np.argwhere(wrong.T)  # (W, 2) recording, position
    lengths = np.empty(len(where), np.int64)
    lowest = np.full((longest - 1, len(where)), -1, np.float32)
    first = 0
    for column, recording in enumerate(recordings):
        rows = where[where[:, 0] == column, 1]
        starts, ends = recording.branch_offsets[rows], recording.branch_offsets[rows + 1]
        lengths[first : first + len(rows)] = ends - starts
        for depth in range(longest - 1):
            there = starts + depth < ends
            lowest[depth, first : first + len(rows)][there] = recording.branch_confidence[(starts + depth)[there]]
        first += len(rows)
    np.minimum.accumulate(lowest, axis=0, out=lowest)
    above = np.zeros((len(where), limits.size), np.int32)
    for row in lowest:
        above += row[:, None] > limits
    fails = above < lengths[:, None]  # or goes on beyond the longest draft, which comes to the same

    proposed = np.zeros((number, count, limits.size), np.int32)
    withheld = np.zeros((number, count, limits.size), bool)
    proposed[where[:, 1], where[:, 0]] = 1 + above + (fails if on_fail == "keep" else 0)
    withheld[where[:, 1], where[:, 0]] = fails & (on_fail == "drop")
    return proposed, withheld


def _count(tables: _RoundTables, recordings: Sequence[Recording], max_drafts: np.ndarray) -> dict[str, np.ndarray]:
    """Counts of every cell of one block: arrays of shape (B, T, D), some with an axis over proposal lengths."""
    number, count, width = tables.accepted.shape
    longest = int(max_drafts.max())
    lanes, bins = max_drafts.size * count * width, KINDS * (longest + 1)
    # Per outcome and lane: the number of rounds and the sum of their starts, both exact in float64. What does not
    # happen goes into one more outcome, which is thrown away.
    rounds, starts = np.zeros((2, bins + 1, lanes))
    lane, index = np.arange(lanes), np.empty(lanes, np.int64)
    wait = np.zeros((max_drafts.size, count, width), tables.accepted.dtype)
    stretch = max(1, STATES_PER_STRETCH // lanes)
    for first in range(0, number, stretch):
        outcome, accepted = tables.outcomes(slice(first, first + stretch), max_drafts)
        happens = _visited_starts(accepted, wait)
        happens &= (np.arange(first, first + len(happens))[:, None] < tables.lengths)[:, None, :, None]
        outcome |= happens.astype(outcome.dtype) - outcome.dtype.type(1)  # all ones where it does not
        np.minimum(outcome, outcome.dtype.type(bins), out=outcome)
        for start, outcomes in enumerate(outcome.reshape(-1, lanes), first):
            np.multiply(outcomes, lanes, out=index, dtype=np.int64)
            np.add(index, lane, out=index)
            np.add.at(rounds.reshape(-1), index, 1.0)
            np.add.at(starts.reshape(-1), index, float(start))

    prompts = np.array([len(recording.prompt_ids) for recording in recordings])
    per_lane = [np.broadcast_to(values[:, None], wait.shape).ravel() for values in (tables.lengths, prompts)]
    sums = _summed(rounds[:bins], starts[:bins], longest, *per_lane)
    return {
        name: np.moveaxis(values.reshape(*values.shape[:-1], *wait.shape), (-2, -1, -3), (0, 1, 2))
        for name, values in sums.items()
    }


def _visited_starts(accepted: np.ndarray, wait: np.ndarray) -> np.ndarray:
    """Mark the positions at which rounds start, given what a round at each position would accept; first axis positions.

    `wait` counts the tokens still to come before the next start and is carried from one stretch of positions to the
    next. A round in flight ends no later than one that would start now, hence the plain minimum: at a start the count
    below zero wraps around to the largest number.
    """
    visited = np.empty(accepted.shape, bool)
    one = accepted.dtype.type(1)
    for mark, run in zip(visited, accepted, strict=True):
        np.logical_not(wait, out=mark)
        np.subtract(wait, one, out=wait)
        np.minimum(wait, run, out=wait)
    return visited


def _summed(rounds, starts, longest, emitted, prompts) -> dict[str, np.ndarray]:
    """Counts per lane from the histograms (KINDS * (G + 1), lanes) of rounds and of their summed starts.

    By `einsum`, not as products of matrices: those would keep every core busy, the one that draws the page as well.
    """
    kind, length = np.divmod(np.arange(len(rounds)), longest + 1)
    withheld = np.isin(kind, (WITHHELD, REJECTED_AND_WITHHELD))
    steps = length + withheld
    by_length = np.eye(longest + 1)[:, length]
    weights = {
        "rounds": np.ones_like(kind),
        "draft_steps": steps,
        "proposed": length,
        "withheld": withheld,
        "two_token_steps": kind == ALL_ACCEPTED,
        "rejected": np.isin(kind, (REJECTED, REJECTED_AND_WITHHELD)),
        "ended": kind == ENDED_BY_DRAFT,
        "earlier_steps": steps * (steps - 1) // 2,
    }
    weighted = np.einsum("so,ol->sl", np.array(list(weights.values()), np.float64), rounds)
    sums = dict(zip(weights, weighted, strict=True))
    proposal_lengths, starts_by_length = (np.einsum("no,ol->nl", by_length, values) for values in (rounds, starts))
    accepted = emitted - sums["rounds"] + sums.pop("ended")
    tested = accepted + sums.pop("rejected")
    draft_context = (
        np.einsum("o,ol->l", steps.astype(np.float64), starts)
        + prompts * sums["draft_steps"]
        + sums.pop("earlier_steps")
    )
    return {
        **sums,
        "tested": tested,
        "accepted": accepted,
        "discarded": sums["proposed"] - tested,
        "emitted": emitted,
        "proposal_lengths": proposal_lengths,
        "verify_context": starts_by_length + prompts * proposal_lengths,
        "draft_context": draft_context,
    }
