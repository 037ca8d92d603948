"""Pass times that cannot be true together: found, told from noise, and made consistent.

What must hold at every context length: a plain step takes at most what a target pass and its round's overhead take
(both run the target once, the round does more besides), and a wider pass takes at least what a narrower one takes (it
could be the narrower one, padded). Without the first, a speedup could exceed its tokens per target pass.

Where medians break this by no more than their own errors, the table is replaced by the nearest one that obeys it:
isotonic regression, weighted with the precision of each median, is the most likely table given the measurements and
the order (Barlow, Bartholomew, Bremner and Brunk 1972, chapter 2). Raising only the one side, or lowering only the
other, would obey the order too, but it would make speedups systematically lower or higher than measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, stdtrit  # scipy.stats takes a second to import

if TYPE_CHECKING:
    from specviz.analysis.cost_model import PassTimes, Timing

NOISE = 3.0  # standard errors of a difference that chance explains, where errors are well known
# Matrix kernels of neighbouring widths differ by up to about a tenth for reasons of their own, such as tiles that fit
# or do not, however quiet the machine.
KERNELS = 0.1
_LEAST_ERROR = 1e-3  # of a median, as a share: no clock and no machine is steadier


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest values that do not fall along the last axis, by weighted least squares.

    The max-min formula: the value at i is the largest over j <= i of the smallest over k >= i of the weighted mean of
    j .. k (Robertson, Wright and Dykstra 1988, section 1.4). For rows of some twenty values it is fast enough, and
    it treats any number of rows at once.

    Args:
        values: (..., n).
        weights: (..., n), positive.
    """
    length = values.shape[-1]
    values, weights = np.broadcast_arrays(values, weights)
    result = np.full(values.shape, -np.inf)
    for first in range(length):
        sums = np.cumsum(values[..., first:] * weights[..., first:], axis=-1)
        means = sums / np.cumsum(weights[..., first:], axis=-1)
        smallest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
        result[..., first:] = np.maximum(result[..., first:], smallest)
    return result


def rising(times: PassTimes, repeats: int) -> PassTimes:
    """Times that obey everything above, nearest to these; what obeys it already stays as it is."""
    chain, errors = _chain(times, repeats)
    plain, *passes = np.moveaxis(isotonic(chain.T, errors.T**-2.0), -1, 0)
    drafts, draft_errors = times.draft_step.median.T, _errors(times.draft_step, repeats).T
    return replace(
        times,
        plain_step=times.plain_step.moved_to(plain),
        target_pass=times.target_pass.moved_to(np.stack(passes) - times.round_overhead.median),
        draft_step=times.draft_step.moved_to(isotonic(drafts, draft_errors**-2.0).T),
    )


def possible(times: PassTimes, repeats: int) -> PassTimes:
    """Times in which no plain step takes longer than a target pass with its round's overhead, nearest to these.

    This is what older cost models need so that no speedup exceeds its tokens per target pass. Everything else about
    them stays, also where times fall with the width, so that figures change only where they were impossible.
    """
    chain, errors = _chain(times, repeats)
    # With the passes in the order of their times only the plain step can break the order.
    order = np.concatenate((np.zeros((1, chain.shape[1]), np.int64), 1 + np.argsort(chain[1:], axis=0, kind="stable")))
    sorted_chain, sorted_errors = (np.take_along_axis(values, order, 0) for values in (chain, errors))
    if (np.diff(sorted_chain, axis=0) >= 0).all():
        return times
    nearest = np.empty_like(chain)
    np.put_along_axis(nearest, order, isotonic(sorted_chain.T, sorted_errors.T**-2.0).T, 0)
    moved = ~np.isclose(nearest, chain, rtol=1e-12, atol=0)
    passes = np.where(moved[1:], nearest[1:] - times.round_overhead.median, times.target_pass.median)
    return replace(
        times,
        plain_step=times.plain_step.moved_to(np.where(moved[0], nearest[0], chain[0])),
        target_pass=times.target_pass.moved_to(passes),
    )


def contradictions(times: PassTimes, repeats: int, contexts: tuple[int, ...], widths: bool = True) -> list[str]:
    """What breaks the order by more than noise and kernels explain, in words, worst first.

    Args:
        widths: whether passes are compared with narrower ones too, not only with the plain step.
    """
    noise = -stdtrit(max(1, repeats - 1), ndtr(-NOISE))  # few repetitions say little about their own spread
    chain, errors = _chain(times, repeats)
    names = ["a plain step", *(f"a pass over {width} token{'s' * (width > 1)}" for width in times.widths)]
    broken = []
    for column, context in enumerate(contexts):
        for later in range(1, len(chain)):
            earlier = int(chain[: later if widths else 1, column].argmax())
            longer, shorter = chain[earlier, column], chain[later, column]
            error = np.hypot(errors[earlier, column], errors[later, column])
            excess = longer - shorter
            if excess > max(noise * error, KERNELS * longer):
                words = (
                    f"{names[earlier]} took {_milliseconds(longer)} and {names[later]} {_milliseconds(shorter)} "
                    f"(after {context} tokens)"
                )
                broken.append((excess / longer, words))
    one, two = times.draft_step.median
    errors_one, errors_two = _errors(times.draft_step, repeats)
    for column, context in enumerate(contexts if widths else ()):
        excess = one[column] - two[column]
        if excess > max(noise * np.hypot(errors_one[column], errors_two[column]), KERNELS * one[column]):
            words = (
                f"a draft step over 1 token took {_milliseconds(one[column])} and over 2 tokens "
                f"{_milliseconds(two[column])} (after {context} tokens)"
            )
            broken.append((excess / one[column], words))
    return [words for _, words in sorted(broken, key=lambda pair: -pair[0])]


def _chain(times: PassTimes, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Medians and their errors (1 + W, C): a plain step, then target passes by width with the overhead of a round."""
    passes = times.target_pass.median + times.round_overhead.median
    pass_errors = np.hypot(_errors(times.target_pass, repeats), _errors(times.round_overhead, repeats))
    return (
        np.concatenate((times.plain_step.median[None], passes)),
        np.concatenate((_errors(times.plain_step, repeats)[None], pass_errors)),
    )


def _errors(timing: Timing, repeats: int) -> np.ndarray:
    return np.maximum(timing.standard_error(repeats), _LEAST_ERROR * timing.median)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
