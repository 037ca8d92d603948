"""Bootstrap replicates of a priced set: other prompts and other pass times, as chance would have had them.

A speedup over several prompts is total plain time over total time. Two things make it uncertain: which prompts were
recorded, and how precisely the passes were timed. Each replicate draws both: prompts with replacement (Efron and
Tibshirani 1993, chapter 6), and every entry of the cost model from the distribution of its median. Within a replicate
all settings, and plain decoding, are priced with the same draw, so differences between settings are paired; entries
are drawn independently, so the times of a plain step and of a target pass err independently, as they were measured.

The error of a median of n repetitions is `Timing.standard_error` times Student's t with n - 1 degrees of freedom, since
the spread itself is known from n repetitions only (Student 1908); times are drawn on a logarithmic scale, as they
cannot be negative. Where chance draws a plain step that is longer than a target pass, the pass is priced like the plain
step (`rates`), so that no replicate is faster than its tokens per target pass. Drawn tables are not made consistent
otherwise: they lie around a table that is, and doing it twice would move the interval to one side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specviz.analysis.bootstrap import RESAMPLES, limits, resample_weights, stretches
from specviz.analysis.cost_model import CostModel, Tables, Timing, rates
from specviz.analysis.prediction import unit_prices

LARGEST_ERROR = np.log(10)  # of a median, on the logarithmic scale: three repetitions may say anything of their spread


class Replicates:
    """B replicates of R recordings under one cost model.

    Args:
        prompt_tokens: (R,) lengths of the prompts.
        output_tokens: (R,) lengths of the outputs.
        weights: (B, R) how often each recording is drawn; drawn here by default.
    """

    def __init__(
        self,
        cost: CostModel,
        pass_mode: str | None,
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int],
        *,
        resamples: int = RESAMPLES,
        seed: int = 0,
        weights: np.ndarray | None = None,
    ) -> None:
        self.weights = resample_weights(len(prompt_tokens), resamples, seed) if weights is None else weights
        tables = drawn_tables(cost, pass_mode, len(self.weights), np.random.default_rng([seed, 1]))
        price = rates(cost, pass_mode, prompt_tokens, output_tokens, 0, tables)
        tokens, prompts = (np.asarray(values, np.float64)[:, None] for values in (output_tokens, prompt_tokens))
        plain = price.plain[..., 0] * tokens + price.plain[..., 1] * (tokens * prompts + tokens * (tokens - 1) / 2)
        self.plain = (self.weights * plain.T).sum(axis=1)  # (B,) seconds of plain decoding
        # (R F, B): seconds for each unit, times how often the recording is drawn
        # single precision: a relative error of a millionth is nothing in an interval, and it takes half the time
        units = (unit_prices(price) * self.weights.T[..., None]).transpose(0, 2, 1).reshape(-1, len(self.weights))
        self._units = units.astype(np.float32)

    @property
    def alone(self) -> bool:
        """Whether there is but one recording, so that nothing is known of other prompts."""
        return self.weights.shape[1] < 2

    def seconds(self, work: np.ndarray) -> np.ndarray:
        """(B, K) seconds of all recordings drawn, of `amounts` (R, K, F)."""
        rows = work.transpose(1, 0, 2).reshape(work.shape[1], -1).astype(np.float32)
        return (rows @ self._units).T.astype(np.float64)

    def speedup_limits(self, work: np.ndarray, level: float) -> np.ndarray:
        """(2, K): intervals of the pooled speedup of K settings, of `amounts` (R, K, F); NaN for one recording."""
        if self.alone:
            return np.full((2, work.shape[1]), np.nan)
        parts = [
            limits(self.plain[:, None] / self.seconds(work[:, cells]), level) for cells in stretches(work.shape[1])
        ]
        return np.concatenate(parts, axis=1)


def drawn_tables(cost: CostModel, pass_mode: str | None, draws: int, source: np.random.Generator) -> Tables:
    """Tables as other measurements of the same passes would have given them, `draws` of them."""
    times, repeats = cost.mode(pass_mode), cost.repeats

    def draw(timing: Timing) -> np.ndarray:
        error = timing.standard_error(repeats)
        share = np.divide(error, timing.median, out=np.zeros_like(error), where=timing.median > 0)
        errors = share * source.standard_t(max(1, repeats - 1), (draws, *share.shape))
        return timing.median * np.exp(np.clip(errors, -LARGEST_ERROR, LARGEST_ERROR))

    return Tables(*map(draw, (times.target_pass, times.draft_step, times.plain_step, times.round_overhead)))
