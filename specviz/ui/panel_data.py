"""What the live panel needs to draw any threshold at one draft length, packed small.

A round is settled by where it starts and by the threshold: as the threshold rises, the round that starts at a position
goes through a few variants, each a shorter form of the one before. So instead of a trace for every threshold the panel
gets, per start, the list of variants and the level of the threshold at which each begins. Drawing a threshold is
then a walk of look-ups; nothing is decided in the browser.

Levels number the distinct confidences at which some round changes, in rising order: level 0 is every threshold below
the first of them, level k every threshold from `levels[k - 1]` up to the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from specviz.analysis import CostModel, metrics, predict
from specviz.replay import ConfidenceThreshold, replay_grid
from specviz.replay.one_setting import check_fixed_output
from specviz.trace import Recording
from specviz.trace.statuses import target_status

HISTOGRAM_BINS = 50
# One letter per draft step. The threshold read as a classifier needs to know whether the target would have agreed.
STATUS_LETTERS = {
    "a": "accepted",
    "r": "rejected",
    "d": "discarded",
    "W": "withheld",  # wrongly: the target would have agreed
    "w": "withheld",  # rightly: the target would not have agreed
    "u": "withheld",  # after a rejection, so the target never spoke about it
}
TARGET_LETTERS = {"c": "correction", "b": "bonus", "p": "plain", "": ""}
LETTER_OF_TARGET = {status: letter for letter, status in TARGET_LETTERS.items()}
WITHHELD_LETTERS = "Wwu"


class Variant(NamedTuple):
    """One form of the round that starts at a position."""

    level: int  # the first level at which the round has this form
    steps: str  # a letter of STATUS_LETTERS per draft step
    target: str  # a letter of TARGET_LETTERS
    stop_reason: str
    end: int  # tokens committed after the round


def pack_recording(recording: Recording, texts: Callable[[int], str]) -> dict:
    """What does not depend on threshold and draft length: tokens, what both models said, the histogram.

    Args:
        texts: the text of a token id.

    Returns:
        JSON-able; tokens are indices into its list `texts`, -1 for none. Confidences are rounded, for display only.
    """
    tops = np.concatenate([recording.draft_top_ids, recording.target_top_ids], axis=1)
    used = [recording.output_ids, recording.draft_token, recording.branch_token, tops.ravel()]
    ids = np.unique(np.concatenate(used))
    ids = ids[ids >= 0]

    def indices(values: np.ndarray) -> list[int]:
        return np.where(values >= 0, np.searchsorted(ids, values), -1).tolist()

    right = recording.draft_token == recording.output_ids
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    return {
        "texts": [texts(token) for token in ids.tolist()],
        "prompt": recording.prompt,
        "output": indices(recording.output_ids),
        "draft": indices(recording.draft_token),
        "confidence": _rounded(recording.draft_confidence),
        "entropy": _rounded(recording.draft_entropy, 3),
        "targetProbability": _rounded(recording.target_prob_of_draft_token),
        "targetEntropy": _rounded(recording.target_entropy, 3),
        "draftTop": [indices(row) for row in recording.draft_top_ids],
        "draftTopProbabilities": [_rounded(row, 3) for row in recording.draft_top_probs],
        "targetTop": [indices(row) for row in recording.target_top_ids],
        "targetTopProbabilities": [_rounded(row, 3) for row in recording.target_top_probs],
        "branchOffsets": recording.branch_offsets.tolist(),
        "branch": indices(recording.branch_token),
        "branchConfidence": _rounded(recording.branch_confidence),
        "branchEntropy": _rounded(recording.branch_entropy, 3),
        "histogram": {
            "right": np.histogram(recording.draft_confidence[right], edges)[0].tolist(),
            "wrong": np.histogram(recording.draft_confidence[~right], edges)[0].tolist(),
        },
    }


def pack_rounds(recording: Recording, max_draft: int, cost: CostModel | None = None, on_fail: str = "drop") -> dict:
    """Every round at every threshold for one draft length, and the numbers of each stretch of thresholds.

    Args:
        on_fail: what happens to the token that fails the threshold, "drop" or "keep".
        cost: prices the rounds; without it there is no speedup.

    Returns:
        JSON-able. `levels` holds exact thresholds. `starts[p]` lists the variants of the round that starts at output
        position p as [level, steps, target, stop reason, end]. `changes` lists the levels at which the trace changes,
        the first of them 0; every list in `counts`, `metrics` and `speedup` has one value for each. A number that is
        unknown is null.

    Raises:
        SpecVizError: the recording does not cover this draft length, or the cost model does not cover the recording.
    """
    levels, starts = round_variants(recording, max_draft, on_fail)
    changed, end, letters = _level_tables(starts, len(levels) + 1)
    visited = _visited_starts(end)
    # The trace changes where a round that takes place does: what `specviz.replay.breakpoints` finds.
    changes = np.flatnonzero(np.append(True, (visited[:, :-1] & changed[:, 1:]).any(axis=0)))
    thresholds = np.concatenate([[0.0], levels])[changes]
    grid_counts = replay_grid([recording], thresholds, [max_draft], on_fail).counts
    counts = grid_counts.map(lambda values: values[0, :, 0])
    withheld = np.where(visited, letters, -1)[:, changes]
    shown = {
        "rounds": counts.rounds,
        "draftSteps": counts.draft_steps,
        "proposed": counts.proposed,
        "accepted": counts.accepted,
        "rejected": counts.tested - counts.accepted,
        "discarded": counts.discarded,
        **{
            name: (withheld == letter).sum(axis=0)
            for letter, name in enumerate(("wronglyWithheld", "rightlyWithheld", "untestedWithheld"))
        },
    }
    packed = {
        "maxDraft": max_draft,
        "onFail": on_fail,
        "emitted": len(recording.output_ids),
        "levels": levels.tolist(),
        "starts": [list(map(list, variants)) for variants in starts],
        "changes": changes.tolist(),
        "counts": {name: values.astype(int).tolist() for name, values in shown.items()},
        "metrics": {name: _rounded(values) for name, values in asdict(metrics(counts)).items()},
    }
    if cost is not None:
        pass_mode = recording.settings.get("pass_mode")
        prompt_tokens = [len(recording.prompt_ids)]
        times = predict(grid_counts, cost, pass_mode=pass_mode, prompt_tokens=prompt_tokens)
        packed["speedup"] = _rounded(times.speedup[0, :, 0])
        # What the play button's clock runs on: a draft step in units of a target pass.
        packed["draftStepShare"] = float(
            (times.draft_seconds / counts.draft_steps.clip(1) / (times.verify_seconds / counts.rounds))[0, 0, 0]
            if counts.draft_steps[0]
            else 0
        )
    return packed


def round_variants(
    recording: Recording, max_draft: int, on_fail: str = "drop"
) -> tuple[np.ndarray, list[list[Variant]]]:
    """Levels (float64 array) and, per output position, the variants of the round that starts there, longest first."""
    tokens, confidences, right = _said_from_every_start(recording, max_draft)
    number = len(right)
    budget_left = recording.budget(None) - np.arange(number) - 1
    limit = np.minimum(budget_left, max_draft)
    ends_text = np.isin(tokens, recording.eos_ids)
    to_end = np.where(ends_text.any(axis=1), ends_text.argmax(axis=1) + 1, max_draft + 1)
    recorded = (tokens >= 0).sum(axis=1)  # fewer than the limit only where they complete a stop string
    steps = np.minimum(np.minimum(recorded, limit), to_end)
    endings = (to_end <= limit, recorded < limit, limit == max_draft)
    reasons = np.select(endings, ("eos", "stop", "max_draft"), "budget")
    accepted = np.minimum(steps, right)
    ends = np.minimum(np.arange(number) + accepted + 1, number)

    # A round is cut at the first step whose confidence does not exceed the threshold, so only a step less sure than all
    # before it can be where the cut comes, and its confidence is where the cut comes to it.
    confidences = np.where(np.arange(max_draft) < steps[:, None], confidences, np.inf)
    before = np.minimum.accumulate(np.insert(confidences, 0, np.inf, axis=1), axis=1)[:, :-1]
    cut_start, cut_place = np.nonzero(confidences < before)
    levels, level = np.unique(confidences[cut_start, cut_place], return_inverse=True)

    starts = []
    for start, (number_drafted, run, reason, end) in enumerate(
        zip(steps.tolist(), accepted.tolist(), reasons.tolist(), ends.tolist(), strict=True)
    ):
        proposal = "a" * run
        if number_drafted > run:
            proposal += "r" + "d" * (number_drafted - run - 1)
        target = "" if end == start + run else LETTER_OF_TARGET[target_status(number_drafted, run)]
        starts.append([Variant(0, proposal, target, reason, end)])
    cuts = zip(cut_start.tolist(), cut_place.tolist(), (level + 1).tolist(), right[cut_start].tolist(), strict=True)
    shorten = {"drop": _without_the_failing_token, "keep": _with_the_failing_token}[on_fail]
    for start, place, first_level, right_run in reversed(list(cuts)):  # as the threshold rises, cuts come earlier
        form = shorten(starts[start][0], start, place, right_run, number)
        starts[start].append(Variant(first_level, *form))
    return levels, starts


def _without_the_failing_token(uncut: Variant, start: int, place: int, right_run: int, _: int) -> tuple:
    """The round whose step `place` fails and is withheld; all but the level of a `Variant`."""
    if place > uncut.steps.count("a"):
        letter, target, end = "u", "c", uncut.end
    else:
        letter, end = "W" if place < right_run else "w", start + place + 1
        target = LETTER_OF_TARGET[target_status(place, place)]
    return uncut.steps[:place] + letter, target, ConfidenceThreshold.name, end


def _with_the_failing_token(uncut: Variant, start: int, place: int, right_run: int, number: int) -> tuple:
    """The round whose step `place` fails, is proposed and ends the draft phase; all but the level of a `Variant`.

    `number`: output tokens of the recording.
    """
    steps = uncut.steps[: place + 1]
    if place >= right_run:  # the wrong token was proposed, so the round ends as it did
        return steps, uncut.target, ConfidenceThreshold.name, uncut.end
    accepted_end = start + place + 1
    target = "b" if accepted_end < number else ""
    return steps, target, ConfidenceThreshold.name, min(accepted_end + 1, number)


def _said_from_every_start(recording: Recording, max_draft: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the draft says from each output position on, along the output up to its first wrong token, then on its
    branch: tokens (-1 after the last) and confidences, (positions, max_draft) each; and how many it gets right in a
    row."""
    check_fixed_output(recording)
    recording.check_max_draft(max_draft)
    number = len(recording.output_ids)
    positions = np.arange(number)
    wrong = np.where(recording.draft_token != recording.output_ids, positions, number)
    wrong = np.minimum.accumulate(wrong[::-1])[::-1]  # the first wrong token from each position on
    place = positions[:, None] + np.arange(max_draft)
    # Indices into what it says along the output and on all branches, one after the other, and nothing at the very end.
    offsets = np.append(recording.branch_offsets, recording.branch_offsets[-1])
    first, after = number + offsets[wrong], number + offsets[wrong + 1]
    on_branch = first[:, None] + place - wrong[:, None] - 1
    source = np.where((place > wrong[:, None]) & (on_branch < after[:, None]), on_branch, -1)
    source = np.where(place <= np.minimum(wrong, number - 1)[:, None], place, source)
    tokens = np.concatenate([recording.draft_token, recording.branch_token, [-1]])
    confidences = np.concatenate([recording.draft_confidence, recording.branch_confidence, [np.inf]])
    return tokens[source], confidences[source], wrong - positions


def _level_tables(starts: Sequence[Sequence[Variant]], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per start (rows) and level (columns): whether the round changes there, where it ends, and how it withholds (the
    place of its letter in WITHHELD_LETTERS, -1 if it does not)."""
    flat = [variant for variants in starts for variant in variants]
    level = np.array([variant.level for variant in flat])
    until = np.append(level[1:], 0)  # each holds from its level up to the next one's
    lengths = np.where(until, until, width) - level

    def table(values: list[int], dtype: type) -> np.ndarray:
        return np.repeat(np.array(values, dtype), lengths).reshape(len(starts), width)

    changed = np.zeros((len(starts), width), bool)
    changed[np.repeat(np.arange(len(starts)), [len(variants) for variants in starts]), level] = level > 0
    end = table([variant.end for variant in flat], np.int32)
    return changed, end, table([WITHHELD_LETTERS.find(variant.steps[-1:] or " ") for variant in flat], np.int8)


def _visited_starts(end: np.ndarray) -> np.ndarray:
    """Per start and level, whether a round takes place there, given where it would end."""
    visited = np.empty(end.shape, bool)
    next_start = np.zeros(end.shape[1], end.dtype)
    for start, (mark, ends) in enumerate(zip(visited, end, strict=True)):
        np.equal(next_start, start, out=mark)
        np.copyto(next_start, ends, where=mark)
    return visited


def _rounded(values: np.ndarray, digits: int = 4) -> list[float | None]:
    values = np.round(np.asarray(values, np.float64), digits)
    return [None if value != value else value for value in values.tolist()]
