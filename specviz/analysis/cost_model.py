"""What passes cost on one pair and device: tables of measured seconds, and how they are read.

The engine measures (`specviz.engine.calibration`), this module keeps the medians and interpolates. Nothing is fitted
to a formula: kernels change with the width of a pass, so times over widths are steps and bends, not lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from specviz.errors import SpecVizError
from specviz.trace import PairInfo, Recording

FORMAT_VERSION = 1
PASS_MODES = ("invariant", "fast")


@dataclass(frozen=True, eq=False)
class Timing:
    """Medians and quartiles of repeated measurements, in seconds: three float64 arrays of one shape."""

    median: np.ndarray
    lower: np.ndarray  # first quartile
    upper: np.ndarray  # third quartile

    def __post_init__(self) -> None:
        for name in ("median", "lower", "upper"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))

    @classmethod
    def of(cls, samples) -> "Timing":
        """From samples whose last axis runs over the repetitions."""
        lower, median, upper = np.quantile(np.asarray(samples, np.float64), (0.25, 0.5, 0.75), axis=-1)
        return cls(median, lower, upper)

    def to_json(self) -> dict:
        return {name: getattr(self, name).tolist() for name in ("median", "lower", "upper")}


@dataclass(frozen=True)
class PassTimes:
    """Times in one pass mode. C is the number of measured context lengths, W that of measured widths.

    Attributes:
        widths: widths of target passes in tokens, rising. Pass mode `fast`: from 1 to the longest draft length plus 1,
            gaps are interpolated; `invariant`: the one width.
        target_pass: (W, C), one target pass and the judgement of its proposal.
        draft_step: (2, C), one draft step over one token, and over the two that follow a fully accepted round; with
            the statistics and the policy's decision.
        plain_step: (C,), one token of plain decoding with the target alone, everything included.
        round_overhead: (), what a round takes besides its draft steps and its target pass.
        compiled: whether the passes were compiled.
    """

    widths: tuple[int, ...]
    target_pass: Timing
    draft_step: Timing
    plain_step: Timing
    round_overhead: Timing
    compiled: bool = False

    @property
    def longest_draft(self) -> int:
        """The longest draft length that has a price."""
        return self.widths[-1] - 1

    def to_json(self) -> dict:
        timings = {name: getattr(self, name).to_json() for name in _TIMINGS}
        return {"widths": list(self.widths), "compiled": self.compiled, **timings}


_TIMINGS = ("target_pass", "draft_step", "plain_step", "round_overhead")


@dataclass(frozen=True)
class CostModel:
    """Measured times of one pair on one device.

    Attributes:
        pair: models, precisions, device and versions that were measured.
        contexts: (C,) context lengths in tokens, prompt included, rising. Start at 1: a context outside the measured
            ones is priced as the nearest (`rates`).
        modes: pass mode ("fast", "invariant") -> its times; at least one.
        repeats: how often each thing was measured.

    Raises:
        SpecVizError: shapes do not fit or a time is not a positive number.
    """

    pair: PairInfo
    contexts: tuple[int, ...]
    modes: Mapping[str, PassTimes]
    repeats: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "contexts", tuple(int(context) for context in self.contexts))
        problem = next(_problems(self), None)
        if problem:
            raise SpecVizError(f"This cost model is unusable: {problem}; measure it again.")

    def mode(self, pass_mode: str | None = None) -> PassTimes:
        """The times in `pass_mode`; by default the only mode measured, else `invariant`."""
        name = self.mode_name(pass_mode)
        if name not in self.modes:
            raise SpecVizError(
                f"This cost model has no times in pass mode {name!r}, only in {', '.join(self.modes)}; "
                "choose that or measure again."
            )
        return self.modes[name]

    def mode_name(self, pass_mode: str | None = None) -> str:
        """`pass_mode`, or what None stands for."""
        if pass_mode is not None:
            return pass_mode
        return next(iter(self.modes)) if len(self.modes) == 1 else PASS_MODES[0]

    def to_json(self) -> dict:
        """JSON-able, for the metadata of a recording set; `from_json` inverts it."""
        return {
            "version": FORMAT_VERSION,
            "pair": asdict(self.pair),
            "contexts": list(self.contexts),
            "repeats": self.repeats,
            "modes": {name: times.to_json() for name, times in self.modes.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping) -> "CostModel":
        """Invert `to_json`.

        Raises:
            SpecVizError: the values are no cost model, or a newer one.
        """
        try:
            if values["version"] > FORMAT_VERSION:
                raise SpecVizError("This cost model was written by a newer SpecViz; update SpecViz.")
            modes = {
                name: PassTimes(
                    widths=tuple(int(width) for width in times["widths"]),
                    compiled=bool(times["compiled"]),
                    **{item: Timing(**times[item]) for item in _TIMINGS},
                )
                for name, times in values["modes"].items()
            }
            return cls(PairInfo(**values["pair"]), tuple(values["contexts"]), modes, int(values["repeats"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecVizError("The cost model in this file is damaged; measure it again.") from error


def _problems(cost: CostModel):
    """Yield what is wrong."""
    contexts = np.asarray(cost.contexts)
    if not contexts.size or contexts[0] < 0 or (np.diff(contexts) <= 0).any():
        yield f"its context lengths are {list(cost.contexts)}"
    if not cost.modes or not set(cost.modes) <= set(PASS_MODES):
        yield f"its pass modes are {list(cost.modes)}"
    for name, times in cost.modes.items():
        widths = np.asarray(times.widths)
        if not widths.size or (np.diff(widths) <= 0).any() or widths[0] < 1:
            yield f"its widths are {list(times.widths)}"
        if name == "fast" and widths[0] != 1 or name == "invariant" and widths.size != 1:
            yield f"widths {list(times.widths)} do not fit pass mode {name}"
        shapes = ((widths.size, contexts.size), (2, contexts.size), (contexts.size,), ())
        for item, shape in zip(_TIMINGS, shapes, strict=True):
            timing = getattr(times, item)
            for values in (timing.median, timing.lower, timing.upper):
                if values.shape != shape:
                    yield f"{item} in pass mode {name} has shape {values.shape} instead of {shape}"
                elif not (np.isfinite(values) & (values >= 0)).all() or (item != "round_overhead" and not values.all()):
                    yield f"{item} in pass mode {name} is not a positive time"


@dataclass(frozen=True, eq=False)
class Rates:
    """Prices along R generations, each affine in the context length: intercept (s) and slope (s per token).

    A generation covers a narrow range of contexts. Within it the interpolated table is replaced by its least-squares
    line, so that a sum over rounds needs only their number and the sum of their contexts: that is what makes counts
    enough. Where the table is straight over the generation this is exact, and a bend between two measured
    contexts costs second order, since the line's errors average out along the generation.
    """

    target: np.ndarray  # (R, n, 2), a target pass that verifies n proposed tokens, n = 0 .. longest
    draft: np.ndarray  # (R, 2), a draft step over one token
    second_token: np.ndarray  # (R,), what a draft step over two tokens costs more, at the generation's mean context
    plain: np.ndarray  # (R, 2), a token of plain decoding
    overhead: float  # a round
    outside: np.ndarray  # (R,) bool: contexts beyond the measured ones, priced as the nearest measured one


def rates(
    cost: CostModel,
    pass_mode: str | None,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    longest: int,
) -> Rates:
    """Prices along generations with these numbers of prompt and output tokens and proposals of up to `longest` tokens.

    A context beyond the measured ones is priced as the nearest measured context, and `Rates.outside` marks its
    recording: this is the one place that decides it, for every page, command and report (`outside_words` says it).

    Raises:
        SpecVizError: a draft length was not measured.
    """
    times = cost.mode(pass_mode)
    if longest > times.longest_draft:
        raise SpecVizError(
            f"This cost model was measured for draft lengths up to {times.longest_draft}, not {longest}; "
            "choose a shorter one or measure again."
        )
    first = np.asarray(prompt_tokens, np.float64)
    last = first + np.asarray(output_tokens, np.float64)
    lines = _lines(np.asarray(cost.contexts, np.float64), first, last)
    table = times.target_pass.median
    if len(times.widths) == 1:
        by_proposal = np.repeat(table, longest + 1, axis=0)
    else:
        wanted = np.arange(1, longest + 2)
        by_proposal = np.stack([np.interp(wanted, times.widths, column) for column in table.T], axis=-1)
    one, two = times.draft_step.median
    surcharge = _apply(lines, two - one)
    return Rates(
        target=_apply(lines, by_proposal),
        draft=_apply(lines, one),
        second_token=surcharge[..., 0] + surcharge[..., 1] * (first + last) / 2,
        plain=_apply(lines, times.plain_step.median),
        overhead=float(times.round_overhead.median),
        outside=beyond_measured(cost, prompt_tokens, output_tokens),
    )


def recorded_pass_mode(recordings: Sequence[Recording]) -> str | None:
    """The pass mode that prices recordings where none is asked for: their own; None where they name none."""
    return recordings[0].settings.get("pass_mode") if recordings else None


def beyond_measured(cost: CostModel, prompt_tokens: Sequence[int], output_tokens: Sequence[int]) -> np.ndarray:
    """(R,) bool: which generations have contexts that were not measured."""
    first = np.asarray(prompt_tokens, np.float64)
    return (first < cost.contexts[0]) | (first + output_tokens > cost.contexts[-1])


def outside_words(outside: int, recordings: int) -> str:
    """What pages, commands and reports say of contexts beyond the measured ones; empty where there are none.

    Args:
        outside: how many of the `recordings` have such contexts.
    """
    if not outside:
        return ""
    some = "The text has" if recordings == 1 else f"{outside} of {recordings} texts have"
    return f"{some} context lengths beyond the measured ones, priced as the nearest measured length."


def _lines(contexts: np.ndarray, first: np.ndarray, last: np.ndarray, points: int = 65) -> np.ndarray:
    """(R, C, 2): weights that turn a table over contexts into the line nearest to it between `first` and `last`."""
    centred = np.linspace(-1, 1, points)
    half = (last - first)[:, None] / 2
    middle = (last + first)[:, None] / 2
    at = np.clip(middle + half * centred, contexts[0], contexts[-1])  # (R, points)
    # Linear interpolation as a matrix: each point's weights on the contexts either side of it.
    hats = np.stack([np.interp(at, contexts, row) for row in np.eye(contexts.size)], axis=-1)  # (R, points, C)
    level = hats.mean(axis=1)
    slope = np.einsum("p,rpc->rc", centred, hats) / (centred @ centred) / np.maximum(half, 0.5)
    return np.stack((level - slope * middle, slope), axis=-1)


def _apply(lines: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Intercepts and slopes (R, ..., 2) of a table (..., C)."""
    return np.moveaxis(np.tensordot(table, lines, axes=(-1, 1)), -2, 0)
