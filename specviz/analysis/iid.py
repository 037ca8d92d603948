"""The textbook formula, for the lesson that shows where it goes wrong. Nothing else uses it.

It assumes that every drafted token is accepted with one probability, independent of all others. Real text is easy in
stretches and hard in others, so acceptances come in runs, and the formula misses what a threshold gains.
"""

import numpy as np

from specviz.errors import SpecVizError


def expected_tokens_per_pass(acceptance, max_draft) -> np.ndarray:
    """Expected tokens per target pass, (1 - a^(g + 1)) / (1 - a) (Leviathan et al. 2023, equation 1).

    Args:
        acceptance: a, the chance that a drafted token is accepted, in [0, 1].
        max_draft: g, tokens drafted each round; broadcasts with `acceptance`.
    """
    acceptance, max_draft = np.broadcast_arrays(np.asarray(acceptance, np.float64), np.asarray(max_draft, np.int64))
    if not ((acceptance >= 0) & (acceptance <= 1)).all():
        raise SpecVizError("An acceptance rate must lie between 0 and 1.")
    if (max_draft < 0).any():
        raise SpecVizError("A draft length cannot be negative.")
    certain = acceptance == 1
    spread = np.where(certain, 0.5, 1 - acceptance)
    return np.where(certain, max_draft + 1.0, (1 - acceptance ** (max_draft + 1)) / spread)[()]


def iid_speedup(acceptance, max_draft, draft_cost) -> np.ndarray:
    """Expected speedup over plain decoding (Leviathan et al. 2023, theorem 3.8).

    Assumes besides that verifying any number of tokens takes as long as one plain step.

    Args:
        draft_cost: c, the time of a draft step over that of a target pass.
    """
    return expected_tokens_per_pass(acceptance, max_draft) / (np.asarray(max_draft) * np.asarray(draft_cost) + 1)


def best_iid_draft_length(acceptance: float, draft_cost: float, longest: int = 16) -> int:
    """The draft length in 0..longest with the highest `iid_speedup`; 0 means: do not speculate."""
    return int(np.argmax(iid_speedup(acceptance, np.arange(longest + 1), draft_cost)))
