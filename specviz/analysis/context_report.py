"""Where a text is easy to foresee: by kind of position, by place in the sentence, by category, and in stretches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from specviz.analysis.cost_model import CostModel, rates, recorded_pass_mode
from specviz.analysis.draft_calibration import wilson
from specviz.replay.contexts import KINDS, kinds_of_positions, places_in_sentence
from specviz.replay.one_setting import Rounds, check_fixed_output
from specviz.trace import Recording

LATEST_PLACE = 20  # places in a sentence beyond this one count as it
SWITCH = 1 / 8  # how often a stretch is expected to end
SHORTEST = 4  # tokens of a stretch worth listing


def _summary(groups: np.ndarray, names: Sequence, recordings: Sequence[Recording]) -> pd.DataFrame:
    """One row per group: positions, acceptance with its interval, mean confidence and both entropies.

    Raises:
        SpecVizError: a recording was made under a rule that accepts by chance.
    """
    for recording in recordings:
        check_fixed_output(recording)

    def joined(name):
        return np.concatenate([getattr(recording, name) for recording in recordings])

    right = joined("draft_token") == joined("output_ids")
    frame = pd.DataFrame(
        {
            "group": groups,
            "right": right,
            "confidence": joined("draft_confidence"),
            "draft_entropy": joined("draft_entropy"),
            "target_entropy": joined("target_entropy"),
        }
    )
    found = frame.groupby("group").agg(
        positions=("right", "size"),
        accepted=("right", "sum"),
        confidence=("confidence", "mean"),
        draft_entropy=("draft_entropy", "mean"),
        target_entropy=("target_entropy", "mean"),
    )
    low, high = wilson(found["accepted"], found["positions"])
    found.insert(2, "acceptance", found["accepted"] / found["positions"])
    found.insert(3, "low", low)
    found.insert(4, "high", high)
    found.insert(0, "name", [names[group] for group in found.index])
    return found.drop(columns="accepted").reset_index(drop=True)


def by_kind(recordings: Sequence[Recording], flags: bytes) -> pd.DataFrame:
    """One row per kind of position that occurs.

    Columns: name, positions, acceptance (share of positions at which the draft says the target's token), low, high
    (95 % Wilson), confidence (mean), draft_entropy, target_entropy (mean, nats).
    """
    return _summary(np.concatenate([kinds_of_positions(one, flags) for one in recordings]), KINDS, recordings)


def by_place(recordings: Sequence[Recording], flags: bytes) -> pd.DataFrame:
    """One row per place in the sentence, from 0, later ones together; columns as `by_kind`, `name` a number."""
    places = np.concatenate([places_in_sentence(one, flags) for one in recordings])
    return _summary(np.minimum(places, LATEST_PLACE), range(LATEST_PLACE + 1), recordings)


def by_category(recordings: Sequence[Recording]) -> pd.DataFrame:
    """One row per prompt category; columns as `by_kind`."""
    names = sorted({one.category or "uncategorised" for one in recordings})
    groups = [names.index(one.category or "uncategorised") for one in recordings]
    return _summary(np.repeat(groups, [len(one.output_ids) for one in recordings]), names, recordings)


@dataclass(frozen=True)
class Stretch:
    """Output positions start .. end - 1 of one recording."""

    start: int
    end: int
    predictable: bool
    acceptance: float  # share of positions at which the draft says the target's token
    draft_length: int | None  # the fixed draft length that suits rounds which start here; None without prices

    @property
    def tokens(self) -> int:
        return self.end - self.start


def stretches(
    recording: Recording, cost: CostModel | None, max_draft: int, pass_mode: str | None = None
) -> list[Stretch]:
    """The text cut into predictable and uncertain stretches, in order.

    Two acceptance rates and the most likely way to switch between them (a hidden Markov model of two states, decoded
    by Viterbi 1967, the rates refitted to the decoding until it stands still; a stretch is expected to last
    1 / SWITCH tokens). A text that is all of one kind is one stretch. The draft length that a stretch deserves is the
    one with the most tokens per second over rounds that start at each of its positions.

    Args:
        cost: None finds the stretches only.
        pass_mode: what prices it; the recording's own by default.

    Raises:
        SpecVizError: the cost model does not cover the recording, or its rule accepts by chance.
    """
    check_fixed_output(recording)
    pass_mode = pass_mode or recorded_pass_mode([recording])
    right = recording.draft_token == recording.output_ids
    easy = _two_levels(right)
    cuts = np.flatnonzero(np.diff(easy.astype(np.int8))) + 1
    bounds = [0, *cuts.tolist(), len(right)]
    found = [
        Stretch(start, end, bool(easy[start]), float(right[start:end].mean()), None)
        for start, end in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    if cost is None:
        return found
    tokens, seconds = _rounds_by_length(Rounds(recording, max_draft, None), cost, max_draft, pass_mode)

    def deserved(one: Stretch) -> int:
        inside = slice(one.start, one.end)
        return int((tokens[inside].sum(axis=0) / seconds[inside].sum(axis=0)).argmax()) + 1

    return [replace(one, draft_length=deserved(one)) for one in found]


def _two_levels(right: np.ndarray) -> np.ndarray:
    """(N,) bool: whether each position belongs to the state with the higher acceptance rate."""
    overall = float(right.mean())
    rates_of = np.array([overall * 0.6, 1 - (1 - overall) * 0.6])
    states = np.zeros(len(right), bool)
    for _ in range(20):
        decoded = _viterbi(right, np.clip(rates_of, 0.02, 0.98))
        if (decoded == states).all():
            break
        states = decoded
        # Half a token of each outcome at the old rate keeps a state alive that took in little.
        rates_of = np.array([(right[states == s].sum() + rates_of[s]) / ((states == s).sum() + 1) for s in (0, 1)])
    return states


def _viterbi(right: np.ndarray, rate: np.ndarray) -> np.ndarray:
    emission = np.where(right[:, None], np.log(rate), np.log1p(-rate))
    stay, switch = np.log1p(-SWITCH), np.log(SWITCH)
    best, came = np.log([0.5, 0.5]) + emission[0], []
    for row in emission[1:]:
        moved = best[::-1] + switch > best + stay
        came.append(moved)
        best = np.where(moved, best[::-1] + switch, best + stay) + row
    state = int(best.argmax())
    states = [state]
    for moved in reversed(came):
        state = 1 - state if moved[state] else state
        states.append(state)
    return np.array(states[::-1], bool)


def _rounds_by_length(
    rounds: Rounds, cost: CostModel, max_draft: int, pass_mode: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds (N, max_draft) of a round that starts at each position and drafts 1 .. max_draft tokens."""
    number, prompt = len(rounds.output), len(rounds.prompt)
    price = rates(cost, pass_mode, [prompt], [number], max_draft)
    lengths = np.arange(1, max_draft + 1)
    right = np.array(rounds.right_run[:number])[:, None]
    context = prompt + np.arange(number)[:, None]
    tokens = np.minimum(lengths, right) + 1
    draft = price.draft[0, 0] * lengths + price.draft[0, 1] * (lengths * context + lengths * (lengths - 1) // 2)
    verify = price.target[0, 1:, 0] + price.target[0, 1:, 1] * context
    return tokens, draft + verify + price.overhead
