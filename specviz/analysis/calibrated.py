"""From the engine's samples to a cost model, or to the sentence that says why they make none."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specviz.analysis.consistent import contradictions, rising
from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.errors import SpecVizError
from specviz.trace import PairInfo


class PassSamples(Protocol):
    """What the engine measured in one pass mode, in seconds; see `PassTimes` for the meaning of each.

    target_pass: (W, C, n); draft_step: (2, C, n); plain_step: (C, n); round_overhead: (n,).
    """

    pair: PairInfo
    pass_mode: str
    contexts: Sequence[int]
    widths: Sequence[int]
    target_pass: np.ndarray
    draft_step: np.ndarray
    plain_step: np.ndarray
    round_overhead: np.ndarray
    compiled: bool
    measured_at: str
    load_average: float | None
    processors: int


class MachineBusy(SpecVizError):
    """The samples contradict each other by more than their spread explains: other programs took part of the time."""


def cost_model(*samples: PassSamples) -> CostModel:
    """The cost model of one pair from samples of one pass mode or of both, at the same context lengths.

    Raises:
        MachineBusy: see there.
    """
    return _model(samples, [_steadied([each])[0] for each in samples])


def cost_models(samples: Sequence[PassSamples]) -> list[CostModel]:
    """One cost model each from samples that took turns (the engine's `calibrate_together`).

    The machine's slow spells are told from the costs of all of them together, so that the times of different pairs
    can be compared as closely as those of one.

    Raises:
        MachineBusy: see there.
    """
    return [_model([each], [steady]) for each, steady in zip(samples, _steadied(samples), strict=True)]


def _model(samples: Sequence[PassSamples], steadied: Sequence[dict[str, np.ndarray]]) -> CostModel:
    first = samples[0]
    repeats, contexts = first.plain_step.shape[-1], tuple(first.contexts)
    modes = {}
    for each, steady in zip(samples, steadied, strict=True):
        times = PassTimes(
            widths=tuple(each.widths),
            **{name: Timing.of(values) for name, values in steady.items()},
            round_overhead=Timing.of(np.maximum(each.round_overhead, 0.0)),
            compiled=each.compiled,
        )
        broken = contradictions(times, repeats, contexts)
        if broken:
            raise MachineBusy(
                f"The machine was busy while the passes were timed: {broken[0]}; close other programs and measure "
                "again."
            )
        modes[each.pass_mode] = rising(times, repeats)
    return CostModel(first.pair, contexts, modes, repeats, first.measured_at, first.load_average, first.processors)


def _steadied(samples: Sequence[PassSamples]) -> list[dict[str, np.ndarray]]:
    """Samples of the same repetitions as if the machine had been equally fast in every one of them.

    A machine with neighbours is now fast, now slow, by tens of percent for seconds or minutes, in everything it does
    alike. All that was measured in one repetition shares that factor, so it can be told from what each thing costs:
    Tukey's median polish of the logarithms (Exploratory Data Analysis, 1977, chapter 11), things by repetitions.
    """
    groups = [{name: np.asarray(getattr(each, name), np.float64) for name in _TAKING_TURNS} for each in samples]
    things = [times.reshape(-1, times.shape[-1]) for group in groups for times in group.values()]
    logs = np.log(np.concatenate(things))
    state = np.zeros(logs.shape[-1])  # of the machine, per repetition
    for _ in range(_POLISHES):
        cost = np.median(logs - state, axis=-1, keepdims=True)
        state = np.median(logs - cost, axis=0)
    factor = np.exp(state - np.median(state))
    return [{name: times / factor for name, times in group.items()} for group in groups]


_TAKING_TURNS = ("target_pass", "draft_step", "plain_step")
_POLISHES = 10
