"""What the live panel needs to draw any threshold at one draft length, packed small.

A round is settled by where it starts and by the threshold: as the threshold rises, the round that starts at a position
goes through a few variants, each a shorter form of the one before. So instead of a trace for every threshold the panel
gets, per start, the list of variants and the level of the threshold at which each begins. Drawing a threshold is
then a walk of look-ups; nothing is decided in the browser.

Levels number the distinct confidences at which some round changes, in rising order: level 0 is every threshold below
the first of them, level k every threshold from `levels[k - 1]` up to the next.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from specviz.analysis import CostModel, metrics, predict
from specviz.replay import ConfidenceThreshold, replay_grid
from specviz.replay.one_setting import Rounds
from specviz.trace import Recording

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
TARGET_LETTERS = {"c": "correction", "b": "bonus", "": ""}
WITHHELD_LETTERS = "Wwu"


@dataclass(frozen=True)
class Variant:
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


def pack_rounds(recording: Recording, max_draft: int, cost: CostModel | None = None) -> dict:
    """Every round at every threshold for one draft length, and the numbers of each stretch of thresholds.

    Args:
        cost: prices the rounds; without it there is no speedup.

    Returns:
        JSON-able. `levels` holds exact thresholds. `starts[p]` lists the variants of the round that starts at output
        position p as [level, steps, target, stop reason, end]. `changes` lists the levels at which the trace changes,
        the first of them 0; every list in `counts`, `metrics` and `speedup` has one value for each. A number that is
        unknown is null.

    Raises:
        SpecVizError: the recording does not cover this draft length, or the cost model does not cover the recording.
    """
    levels, starts = round_variants(recording, max_draft)
    changed, end, letters = _level_tables(starts, len(levels) + 1)
    visited = _visited_starts(end)
    # The trace changes where a round that takes place does: what `specviz.replay.breakpoints` finds.
    changes = np.flatnonzero(np.append(True, (visited[:, :-1] & changed[:, 1:]).any(axis=0)))
    thresholds = np.concatenate([[0.0], levels])[changes]
    grid_counts = replay_grid([recording], thresholds, [max_draft]).counts
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
        "emitted": len(recording.output_ids),
        "levels": levels.tolist(),
        "starts": [[[v.level, v.steps, v.target, v.stop_reason, v.end] for v in variants] for variants in starts],
        "changes": changes.tolist(),
        "counts": {name: values.astype(int).tolist() for name, values in shown.items()},
        "metrics": {name: _rounded(values) for name, values in asdict(metrics(counts)).items()},
    }
    if cost is not None:
        pass_mode = recording.settings.get("pass_mode")
        prompt_tokens = [len(recording.prompt_ids)]
        times = predict(grid_counts, cost, pass_mode=pass_mode, prompt_tokens=prompt_tokens, outside="clamp")
        packed["speedup"] = _rounded(times.speedup[0, :, 0])
        packed["outsideMeasuredContexts"] = bool(times.outside.any())
        # What the play button's clock runs on: a draft step in units of a target pass.
        packed["draftStepShare"] = float(
            (times.draft_seconds / counts.draft_steps.clip(1) / (times.verify_seconds / counts.rounds))[0, 0, 0]
            if counts.draft_steps[0]
            else 0
        )
    return packed


def round_variants(recording: Recording, max_draft: int) -> tuple[np.ndarray, list[list[Variant]]]:
    """Levels (float64 array) and, per output position, the variants of the round that starts there, longest first."""
    rounds = Rounds(recording, max_draft, None)
    output = rounds.output
    propose_all = ConfidenceThreshold(0.0)
    turns = [rounds.play(start, propose_all) for start in range(len(output))]
    # A round is cut at the first step whose confidence does not exceed the threshold, so only a step less sure than all
    # before it can be where the cut comes, and its confidence is where the cut comes to it.
    cuts = []
    for turn in turns:
        lowest, places = np.inf, []
        for place, step in enumerate(turn.drafted):
            if step.confidence < lowest:
                lowest = step.confidence
                places.append(place)
        cuts.append(places[::-1])
    confidences = {turn.drafted[place].confidence for turn, places in zip(turns, cuts, strict=True) for place in places}
    levels = sorted(confidences)

    starts = []
    for start, (turn, places) in enumerate(zip(turns, cuts, strict=True)):
        proposal = "a" * turn.accepted
        if turn.proposed > turn.accepted:
            proposal += "r" + "d" * (turn.proposed - turn.accepted - 1)
        target = "" if turn.end == start + turn.accepted else "cb"[turn.accepted == turn.proposed]
        variants = [Variant(0, proposal, target, turn.stop_reason, turn.end)]
        for place in places:
            level = bisect_right(levels, turn.drafted[place].confidence)
            if place > turn.accepted:
                letter, target, end = "u", "c", turn.end
            else:
                letter = "W" if turn.drafted[place].token == output[start + place] else "w"
                target, end = "b", start + place + 1
            variants.append(Variant(level, proposal[:place] + letter, target, propose_all.name, end))
        starts.append(variants)
    return np.array(levels), starts


def _level_tables(starts: Sequence[Sequence[Variant]], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per start (rows) and level (columns): whether the round changes there, where it ends, and how it withholds (the
    place of its letter in WITHHELD_LETTERS, -1 if it does not)."""
    changed = np.zeros((len(starts), width), bool)
    end = np.empty((len(starts), width), np.int32)
    letters = np.empty((len(starts), width), np.int8)
    for start, variants in enumerate(starts):
        for variant in variants:  # each holds from its level up to the next one's
            changed[start, variant.level] = variant.level > 0
            end[start, variant.level :] = variant.end
            letters[start, variant.level :] = WITHHELD_LETTERS.find(variant.steps[-1:] or " ")
    return changed, end, letters


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
