"""Arena, tuning, calibration and context of a recording set, worked out once per set."""

import inspect

import streamlit as st

from specviz.analysis import context_report
from specviz.analysis import draft_calibration as draft
from specviz.analysis.arena import Arena, arena
from specviz.analysis.tuning import Tuning, tune
from specviz.errors import SpecVizError
from specviz.replay import POLICIES
from specviz.replay.contexts import vocabulary_flags
from specviz.ui.library import ShownSet, sets_on_offer
from specviz.ui.precisions import gallery_comparison, own_comparison


def longest_draft(offered: ShownSet) -> int:
    """The longest draft that every recording of the set covers and has a price for."""
    return min(shown.longest_draft for shown in offered.members)


def token_flags(offered: ShownSet) -> bytes | None:
    """What the kinds of position need to know of the tokens; None where their texts are not known."""
    known: dict[int, bytes] = {}
    for shown in offered.members:
        known |= shown.tokens
    return vocabulary_flags(lambda token: known.get(token, b""), max(known) + 1) if known else None


def _names(offered: ShownSet) -> tuple[str, ...]:
    return tuple(shown.name for shown in offered.members)


def arena_of(offered: ShownSet, max_draft: int) -> Arena:
    """Every policy on this set.

    Raises:
        SpecVizError: see `arena`.
    """
    return _arena(offered, _names(offered), max_draft)


@st.cache_resource(max_entries=16, show_spinner="Replaying every policy")
def _arena(_offered: ShownSet, names: tuple[str, ...], max_draft: int) -> Arena:
    return arena(_offered.recordings, _offered.cost, max_draft, flags=token_flags(_offered))


def tuning_of(offered: ShownSet) -> Tuning:
    """The best settings of this set.

    Raises:
        SpecVizError: see `tune`.
    """
    return _tuning(offered, _names(offered))


@st.cache_resource(max_entries=16, show_spinner="Replaying the grid")
def _tuning(_offered: ShownSet, names: tuple[str, ...]) -> Tuning:
    return tune(_offered.recordings, _offered.cost)


def calibrations_of(offered: ShownSet, split: str) -> dict[str, draft.Calibration]:
    """Calibration of the whole set under the name "all", and of its parts by `depth`, `kind` or `precision`.

    The precisions are those of everything recorded with the same two models that this session can see.
    """
    others = _same_models(offered) if split == "precision" else []
    return _calibrations(offered, _names(offered), others, tuple(id(one) for one in others), split)


def _same_models(offered: ShownSet) -> list:
    """This set's recordings, and all others of the same models on offer or in a comparison of precisions, once each."""
    first = offered.recordings[0].pair
    known = list(offered.recordings)
    for one in sets_on_offer().values():
        if one.models == (first.target, first.draft):
            try:
                known += one.recordings
            except SpecVizError:
                continue  # damaged or deleted meanwhile; the others remain
    for comparison in (gallery_comparison(), own_comparison()):
        if comparison is not None:
            known += [one for combination in comparison.combinations for one in combination.recordings.recordings]
    once = {id(one): one for one in known}.values()
    return [one for one in once if (one.pair.target, one.pair.draft) == (first.target, first.draft)]


@st.cache_resource(max_entries=32, show_spinner=False)
def _calibrations(
    _offered: ShownSet, names: tuple[str, ...], _others: list, others: tuple[int, ...], split: str
) -> dict[str, draft.Calibration]:
    recordings = _offered.recordings
    parts = {"all": draft.judged(recordings)}
    if split == "depth":
        by_depth = draft.by_depth(recordings, min(8, longest_draft(_offered)))
        parts |= {f"depth {depth}": tokens for depth, tokens in by_depth.items()}
    elif split == "kind":
        flags = token_flags(_offered)
        parts |= {} if flags is None else draft.by_kind(recordings, flags)
    else:
        parts |= draft.by_precision(_others)
    return {name: draft.calibration(part) for name, part in parts.items() if len(part) >= draft.FEWEST or name == "all"}


@st.cache_resource(max_entries=16, show_spinner="Replaying under each map")
def _recalibration(_offered: ShownSet, names: tuple[str, ...], max_draft: int):
    found = draft.recalibrate(_offered.recordings)
    shown = [_offered.recordings[place] for place in found.shown_on]
    curves = draft.mapped_curves(shown, _offered.cost, max_draft, found.maps, resamples=200)
    return found, curves


def recalibration_of(offered: ShownSet, max_draft: int):
    """What calibrating on one half does on the other, and the other's speedup curves under each map.

    Raises:
        SpecVizError: the set has one prompt only.
    """
    return _recalibration(offered, _names(offered), max_draft)


def stretches_of(shown, max_draft: int) -> list[context_report.Stretch]:
    """The predictable and uncertain stretches of one recording; without a cost model they deserve no draft length."""
    return context_report.stretches(shown.recording, shown.cost, max_draft)


def policy_descriptions() -> dict[str, str]:
    """Name of every policy and what it does, as its class says; arguments, which come last, left out."""
    return {name: inspect.getdoc(policy).split("Args:")[0].strip() for name, policy in POLICIES.items()}
