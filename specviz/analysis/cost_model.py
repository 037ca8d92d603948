"""What passes cost on one pair and device: tables of measured seconds, and how they are read.

The engine measures (`specviz.engine.calibration`), this module keeps the medians and interpolates. Nothing is fitted
to a formula: kernels change with the width of a pass, so times over widths are steps and bends, not lines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime

import numpy as np

from specviz.analysis.consistent import contradictions, possible
from specviz.errors import SpecVizError
from specviz.trace import PairInfo, Recording

FORMAT_VERSION = 1
PASS_MODES = ("invariant", "fast")
SHORTEST_TIME, LONGEST_TIME = 1e-9, 3600.0  # seconds that one pass may take
MOST_TOKENS = 10**9  # of a context or a pass
MOST_REPEATS = 10**6
# Load average for each processor from which others are at work too: the measurement itself keeps at most all of them
# busy.
BUSY = 1.25
ROUNDING = 1e-9  # a share by which sums may differ from what they stand for


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

    def standard_error(self, repeats: int) -> np.ndarray:
        """Of the medians, in seconds: 1.25 (Q3 − Q1) / (1.35 √n), as for the notches of box plots.

        A median of n normal values has about 1.25 times the error of their mean, and their quartiles are 1.35 standard
        deviations apart; quartiles do not mind a few slow repetitions (McGill, Tukey and Larsen 1978, "Variations of
        box plots", The American Statistician 32).
        """
        return 1.25 * (self.upper - self.lower) / (1.35 * math.sqrt(repeats))

    def moved_to(self, medians: np.ndarray) -> "Timing":
        """The same relative spread around other medians; where the median is 0, so are the quartiles."""
        factor = np.divide(medians, self.median, out=np.zeros_like(self.median), where=self.median != 0)
        lower, upper = np.minimum(self.lower * factor, medians), np.maximum(self.upper * factor, medians)
        return Timing(medians, lower, upper)

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
    def medians(self) -> "Tables":
        return Tables(
            self.target_pass.median, self.draft_step.median, self.plain_step.median, self.round_overhead.median
        )

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
        measured_at: date and time (UTC, ISO 8601) of the measurement, or the date alone; empty where an older file
            does not say.
        load_average: of the machine over the last minute of the measurement, this process included; None where the
            system has none.
        processors: how many the machine has; 0 where an older file does not say.

    Raises:
        SpecVizError: shapes do not fit, a time is no number of seconds from a nanosecond to an hour, or a plain step
            takes longer than a target pass with the overhead of its round: then a speedup could exceed its tokens per
            target pass.
    """

    pair: PairInfo
    contexts: tuple[int, ...]
    modes: Mapping[str, PassTimes]
    repeats: int
    measured_at: str = ""
    load_average: float | None = None
    processors: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "contexts", tuple(int(context) for context in self.contexts))
        _refuse(next(_malformed(**vars(self)), None))
        _refuse(next(_impossible(self.modes), None))

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

    @property
    def busy(self) -> bool:
        """Whether other programs kept the machine busy while the passes were timed, as far as is known."""
        return bool(self.load_average and self.processors and self.load_average > BUSY * self.processors)

    @property
    def origin(self) -> str:
        """One sentence: when and where the times were measured."""
        words = f"Pass times measured on {self.pair.device or 'an unknown device'}, {_when(self.measured_at)}"
        if self.busy:
            words += (
                f", while the machine was busy (load average {self.load_average:.1f}, {self.processors} processors)"
            )
        return f"{words}."

    def to_json(self) -> dict:
        """JSON-able, for the metadata of a recording set; `from_json` inverts it."""
        return {
            "version": FORMAT_VERSION,
            "pair": asdict(self.pair),
            "contexts": list(self.contexts),
            "repeats": self.repeats,
            "measured_at": self.measured_at,
            "load_average": self.load_average,
            "processors": self.processors,
            "modes": {name: times.to_json() for name, times in self.modes.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping) -> "CostModel":
        """Invert `to_json`.

        Older files hold medians as they were measured, in which noise may have made a plain step longer than a target
        pass. Within the noise they are made possible here (`consistent.possible`), beyond it they are refused.

        Raises:
            SpecVizError: the values are no cost model, a newer one, or times that cannot be true together.
        """
        try:
            if values["version"] > FORMAT_VERSION:
                raise SpecVizError("This cost model was written by a newer SpecViz; update SpecViz.")
            repeats = int(values["repeats"])
            modes = {
                name: PassTimes(
                    widths=tuple(int(width) for width in times["widths"]),
                    compiled=bool(times["compiled"]),
                    **{item: Timing(**times[item]) for item in _TIMINGS},
                )
                for name, times in values["modes"].items()
            }
            contexts = tuple(int(context) for context in values["contexts"])
            facts = {name: values[name] for name in ("measured_at", "load_average", "processors") if name in values}
            pair = PairInfo(**values["pair"])
            _refuse(next(_malformed(pair, contexts, modes, repeats, **facts), None))
            for name, times in modes.items():
                broken = contradictions(times, repeats, contexts, widths=False)
                if broken:
                    raise SpecVizError(f"This cost model is unusable: {broken[0]}, which cannot be; measure it again.")
                modes[name] = possible(times, repeats)
            return cls(pair, contexts, modes, repeats, **facts)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SpecVizError("The cost model in this file is damaged; measure it again.") from error


def _refuse(problem: str | None) -> None:
    if problem:
        raise SpecVizError(f"This cost model is unusable: {problem}; measure it again.")


def _malformed(
    pair: PairInfo,
    contexts: tuple[int, ...],
    modes: Mapping[str, PassTimes],
    repeats: int,
    measured_at: str = "",
    load_average: float | None = None,
    processors: int = 0,
):
    """Yield what is wrong with shapes, names and ranges."""
    names = [value for name, value in vars(pair).items() if name != "versions"]
    if not all(isinstance(name, str) for name in names) or not isinstance(pair.versions, Mapping):
        yield "it does not name its pair"
    if not contexts or contexts[0] < 0 or contexts[-1] > MOST_TOKENS or (np.diff(contexts) <= 0).any():
        yield f"its context lengths are {list(contexts)}"
    if not 1 <= repeats <= MOST_REPEATS:
        yield f"it was measured {repeats} times"
    if not isinstance(measured_at, str) or not _is_date(measured_at):
        yield "its date is no date"
    if load_average is not None and not 0 <= load_average < math.inf or not 0 <= processors < math.inf:
        yield f"its load average is {load_average} on {processors} processors"
    if not modes or not set(modes) <= set(PASS_MODES):
        yield f"its pass modes are {list(modes)}"
    for name, times in modes.items():
        widths = times.widths
        if not widths or widths[0] < 1 or widths[-1] > MOST_TOKENS or (np.diff(widths) <= 0).any():
            yield f"its widths are {list(widths)}"
        if name == "fast" and widths[0] != 1 or name == "invariant" and len(widths) != 1:
            yield f"widths {list(widths)} do not fit pass mode {name}"
        shapes = ((len(widths), len(contexts)), (2, len(contexts)), (len(contexts),), ())
        for item, shape in zip(_TIMINGS, shapes, strict=True):
            timing = getattr(times, item)
            for values in (timing.median, timing.lower, timing.upper):
                if values.shape != shape:
                    yield f"{item} in pass mode {name} has shape {values.shape} instead of {shape}"
            shortest = 0.0 if item == "round_overhead" else SHORTEST_TIME
            within = [
                (values >= 0) & (values <= LONGEST_TIME) for values in (timing.median, timing.lower, timing.upper)
            ]
            if not (all(each.all() for each in within) and (timing.median >= shortest).all()):
                yield f"{item} in pass mode {name} is not a positive time of at most an hour"
            if not ((timing.lower <= timing.median) & (timing.median <= timing.upper)).all():
                yield f"{item} in pass mode {name} has a median outside its quartiles"


def _when(measured_at: str) -> str:
    """The date for a reader, with the time of day if it is known."""
    if not measured_at:
        return "before SpecViz kept the date"
    try:
        return f"{date.fromisoformat(measured_at):%Y-%m-%d}"
    except ValueError:
        return f"{datetime.fromisoformat(measured_at):%Y-%m-%d %H:%M} UTC"


def _is_date(text: str) -> bool:
    try:
        return not text or bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _impossible(modes: Mapping[str, PassTimes]):
    """Yield which times cannot be true together."""
    for name, times in modes.items():
        least = times.target_pass.median.min(axis=0) + times.round_overhead.median
        if (times.plain_step.median > least * (1 + ROUNDING)).any():
            yield f"in pass mode {name} a plain step takes longer than a target pass and the overhead of its round"


@dataclass(frozen=True, eq=False)
class Tables:
    """Seconds by context length (C) of one cost model, or of many at once: then every array has a leading axis."""

    target: np.ndarray  # (..., W, C)
    draft: np.ndarray  # (..., 2, C)
    plain: np.ndarray  # (..., C)
    overhead: np.ndarray  # (...,)


@dataclass(frozen=True, eq=False)
class Rates:
    """Prices along R generations, each affine in the context length: intercept (s) and slope (s per token).

    A generation covers a narrow range of contexts. Within it the interpolated table is replaced by its least-squares
    line, so that a sum over rounds needs only their number and the sum of their contexts: that is what makes counts
    enough. Where the table is straight over the generation this is exact, and a bend between two measured
    contexts costs second order, since the line's errors average out along the generation.
    """

    passes: np.ndarray  # (R, ..., W, 2), a target pass of each measured width
    between: np.ndarray  # (n, W), the weights of the measured widths in a pass over n proposed tokens, n = 0 .. longest
    draft: np.ndarray  # (R, ..., 2), a draft step over one token
    second_token: np.ndarray  # (R, ...), what a draft step over two tokens costs more, at the mean context
    plain: np.ndarray  # (R, ..., 2), a token of plain decoding
    overhead: np.ndarray  # (...,), a round
    outside: np.ndarray  # (R,) bool: contexts beyond the measured ones, priced as the nearest measured one

    @property
    def target(self) -> np.ndarray:
        """(R, ..., n, 2), a target pass that verifies n proposed tokens, n = 0 .. longest."""
        return self.between @ self.passes


def rates(
    cost: CostModel,
    pass_mode: str | None,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    longest: int,
    tables: Tables | None = None,
) -> Rates:
    """Prices along generations with these numbers of prompt and output tokens and proposals of up to `longest` tokens.

    A context beyond the measured ones is priced as the nearest measured context, and `Rates.outside` marks its
    recording: this is the one place that decides it, for every page, command and report (`outside_words` says it).

    At every context of a generation a round is priced at no less than a plain step, as in the table: where the
    least-squares line of their difference would fall below 0, it is made flatter around its middle.

    Args:
        tables: seconds to use instead of the cost model's medians.

    Raises:
        SpecVizError: a draft length was not measured.
    """
    times = cost.mode(pass_mode)
    if longest > times.longest_draft:
        raise SpecVizError(
            f"This cost model was measured for draft lengths up to {times.longest_draft}, not {longest}; "
            "choose a shorter one or measure again."
        )
    tables = tables or times.medians
    first = np.asarray(prompt_tokens, np.float64)
    last = first + np.asarray(output_tokens, np.float64)
    lines = _lines(np.asarray(cost.contexts, np.float64), first, last)
    plain = _not_below_zero(_apply(lines, tables.plain), first, last)
    draft = _not_below_zero(_apply(lines, tables.draft[..., 0, :]), first, last)
    base = plain[..., None, :].copy()
    base[..., 0] -= tables.overhead[..., None]
    passes = base + _not_below_zero(_apply(lines, tables.target) - base, first, last)
    surcharge = _at(_apply(lines, tables.draft[..., 1, :] - tables.draft[..., 0, :]), (first + last) / 2)
    return Rates(
        passes=passes,
        between=_between(times.widths, longest),
        draft=draft,
        # two tokens may have been timed as faster than one, but no step takes less than no time
        second_token=np.maximum(surcharge, -np.minimum(_at(draft, first), _at(draft, last))),
        plain=plain,
        overhead=tables.overhead,
        outside=beyond_measured(cost, prompt_tokens, output_tokens),
    )


def _between(widths: Sequence[int], longest: int) -> np.ndarray:
    """(longest + 1, W): linear interpolation between the measured widths; with one width every pass has it."""
    wanted = np.arange(1, longest + 2)
    return np.stack([np.interp(wanted, widths, row) for row in np.eye(len(widths))], axis=-1)


def _at(lines: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """Values (R, ...) of lines (R, ..., 2) at contexts (R,)."""
    return lines[..., 0] + lines[..., 1] * contexts.reshape(-1, *(1 for _ in lines.shape[2:]))


def _not_below_zero(lines: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Lines (R, ..., 2) that are nowhere below 0 from `first` to `last` (R,), with the same middle."""
    middle, half = (last + first) / 2, (last - first) / 2
    level = np.maximum(_at(lines, middle), 0.0)
    if (np.minimum(_at(lines, first), _at(lines, last)) >= 0).all():
        return lines
    middle, half = (values.reshape(-1, *(1 for _ in level.shape[1:])) for values in (middle, half))
    steepest = level / np.maximum(half, 0.5)
    slope = np.clip(lines[..., 1], -steepest, steepest)
    return np.stack((level - slope * middle, slope), axis=-1)


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
