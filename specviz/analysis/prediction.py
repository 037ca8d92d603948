"""Pricing what happened: seconds, tokens per second and speedup of traces and counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specviz.analysis.cost_model import CostModel, Rates, rates
from specviz.replay import RoundCounts, trace_counts
from specviz.trace import PairInfo, Trace


@dataclass(frozen=True, eq=False)
class Prediction:
    """Times of one generation or many, in seconds; arrays share the leading shape of the counts, () for a trace.

    Only decoding is priced: processing the prompt is not, neither here nor in plain decoding.
    """

    draft_seconds: np.ndarray
    verify_seconds: np.ndarray
    overhead_seconds: np.ndarray
    wasted_seconds: np.ndarray  # the part of draft_seconds that drafted tokens which were not accepted
    plain_seconds: np.ndarray  # plain decoding of the same output
    tokens: np.ndarray  # emitted
    outside: np.ndarray  # bool: some contexts were beyond the measured ones, priced as the nearest measured one
    work: np.ndarray  # (..., F), what prices multiply: see `amounts`

    @property
    def seconds(self) -> np.ndarray:
        return self.draft_seconds + self.verify_seconds + self.overhead_seconds

    @property
    def speedup(self) -> np.ndarray:
        """Over plain autoregressive decoding of the same output."""
        return ratio(self.plain_seconds, self.seconds)

    @property
    def tokens_per_second(self) -> np.ndarray:
        return ratio(self.tokens, self.seconds)

    @property
    def shares(self) -> dict[str, np.ndarray]:
        """Fractions of the time that add up to 1: draft (of accepted tokens), wasted, verify, overhead."""
        parts = {
            "draft": self.draft_seconds - self.wasted_seconds,
            "wasted": self.wasted_seconds,
            "verify": self.verify_seconds,
            "overhead": self.overhead_seconds,
        }
        return {name: ratio(part, self.seconds) for name, part in parts.items()}


@dataclass(frozen=True, eq=False)
class RoundTimes:
    """Seconds of each round of one trace, (rounds,) each, and whose they are."""

    draft: np.ndarray
    verify: np.ndarray
    overhead: np.ndarray
    origin: str  # measured or modelled
    pair: PairInfo  # what was timed


def ratio(part, whole) -> np.ndarray:
    """part / whole, NaN where whole is 0."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole != 0)[()]


def predict(
    what: Trace | RoundCounts,
    cost: CostModel,
    *,
    pass_mode: str | None = None,
    prompt_tokens: Sequence[int] | None = None,
) -> Prediction:
    """What a trace, or counts, would have cost; for a trace exactly the sum of its `round_times`.

    Args:
        what: a trace, or counts whose first axis runs over R recordings.
        pass_mode: default: a trace's own; for counts the cost model's only one, else `invariant`.
        prompt_tokens: (R,) lengths of the prompts; needed with counts only.

    Raises:
        SpecVizError: the cost model does not cover this.
    """
    if isinstance(what, Trace):
        single = trace_counts(what).map(lambda values: np.asarray(values)[None])
        mode = pass_mode or what.run.settings.get("pass_mode")
        found = _predict_counts(single, cost, mode, [len(what.run.prompt_ids)])
        return Prediction(*(getattr(found, name)[0] for name in Prediction.__dataclass_fields__))
    return _predict_counts(what, cost, pass_mode, prompt_tokens)


def round_times(trace: Trace, cost: CostModel, *, pass_mode: str | None = None) -> RoundTimes:
    """What each round of a trace would have cost. Arguments and errors as in `predict`."""
    rounds = trace.rounds
    prompt = len(trace.run.prompt_ids)
    mode = pass_mode or trace.run.settings.get("pass_mode")
    longest = int(rounds["proposed"].max(initial=0))
    price = rates(cost, mode, [prompt], [len(trace.run.output_ids)], longest)
    context, steps = prompt + rounds["start"].astype(np.int64), rounds["draft_steps"].astype(np.int64)
    # As in `trace_counts`: the first step after a fully accepted proposal takes in two tokens.
    all_used = (rounds["accepted"] == rounds["proposed"]) & (rounds["proposed"] > 0) & (rounds["withheld"] == 0)
    two_tokens = np.concatenate(([False], all_used[:-1])) & (steps > 0)
    return RoundTimes(
        draft=_line(price.draft[0], steps, steps * context + steps * (steps - 1) // 2)
        + two_tokens * price.second_token[0],
        verify=_line(price.target[0, rounds["proposed"]], 1, context),
        overhead=np.full(len(context), price.overhead),
        origin="modelled",
        pair=cost.pair,
    )


def measured_round_times(trace: Trace) -> RoundTimes:
    """The times of a measured trace."""
    times = (trace.rounds[f"{name}_seconds"] for name in ("draft", "verify", "overhead"))
    return RoundTimes(*times, origin="measured", pair=trace.run.pair)


def amounts(counts: RoundCounts, price: Rates) -> np.ndarray:
    """What prices multiply: (..., F) with the shape of the counts, in the order of `unit_prices`.

    Draft steps, the sum of their contexts, draft steps over two tokens, rounds, then for each measured width of a
    target pass the rounds, and the sum of their contexts.
    """
    used = price.between.shape[0]
    passes, contexts = (each[..., :used] @ price.between for each in (counts.proposal_lengths, counts.verify_context))
    single = (counts.draft_steps, counts.draft_context, counts.two_token_steps, counts.rounds)
    return np.concatenate((np.stack(np.broadcast_arrays(*single), axis=-1), passes, contexts), axis=-1)


def unit_prices(price: Rates) -> np.ndarray:
    """(R, ..., F) seconds for each unit of `amounts`."""
    overhead = np.broadcast_to(price.overhead, price.second_token.shape)
    single = np.stack((price.draft[..., 0], price.draft[..., 1], price.second_token, overhead), axis=-1)
    return np.concatenate((single, price.passes[..., 0], price.passes[..., 1]), axis=-1)


def longest_proposal(counts: RoundCounts) -> int:
    """The most tokens that any round proposed."""
    used = counts.proposal_lengths.any(axis=tuple(range(counts.proposal_lengths.ndim - 1)))
    return int(np.flatnonzero(used).max(initial=0))


def _predict_counts(counts: RoundCounts, cost, pass_mode, prompt_tokens) -> Prediction:
    shape = np.shape(counts.rounds)
    others = tuple(range(1, len(shape)))
    longest = longest_proposal(counts)
    emitted = counts.emitted.max(axis=others, initial=0)  # the output does not depend on the cell
    price: Rates = rates(cost, pass_mode, prompt_tokens, emitted, longest)

    def per_recording(values):
        """Give (R, ...) one axis per further axis of the counts."""
        return values.reshape(values.shape[0], *(1 for _ in others), *values.shape[1:])

    work = amounts(counts, price)
    units = per_recording(unit_prices(price))

    def seconds(part: slice) -> np.ndarray:
        return np.einsum("...f,...f->...", work[..., part], units[..., part])

    draft = seconds(slice(0, 3))
    prompts = per_recording(np.asarray(prompt_tokens, np.int64))
    tokens = counts.emitted.astype(np.int64)
    plain = _line(per_recording(price.plain), tokens, tokens * prompts + tokens * (tokens - 1) // 2)
    wasted_steps = counts.draft_steps - counts.accepted
    return Prediction(
        draft_seconds=draft,
        verify_seconds=seconds(slice(4, None)),
        overhead_seconds=seconds(slice(3, 4)),
        wasted_seconds=draft * np.nan_to_num(ratio(wasted_steps, counts.draft_steps)),
        plain_seconds=plain,
        tokens=tokens,
        outside=np.broadcast_to(per_recording(price.outside), shape),
        work=work,
    )


def _line(intercept_and_slope: np.ndarray, number, contexts) -> np.ndarray:
    return intercept_and_slope[..., 0] * number + intercept_and_slope[..., 1] * contexts
