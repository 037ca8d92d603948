"""Small recordings and cost models for the tests of analysis and plots."""

import numpy as np
from reference_round import random_toy, recording_from_toy

from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.trace import PairInfo

EOS = (0,)
PAIR = PairInfo(target="big", draft="small", device="CPU, test", target_precision="bf16", draft_precision="nf4")


def exactly(seconds) -> Timing:
    return Timing(seconds, seconds, seconds)


def toy_recordings(seed, agreements, tokens=30, levels=1000, max_draft=8):
    """One recording per agreement, with prompts of 1, 2, 3, 1 ... tokens."""
    return [
        recording_from_toy(
            *random_toy(seed + index, agreement=agreement, levels=levels), max_draft, tokens, EOS, prompt
        )
        for index, agreement in enumerate(agreements)
        for prompt in [tuple(range(1, 2 + index % 3))]
    ]


def random_cost(seed: int, contexts=(0, 20, 200), straight=False, widest=17) -> CostModel:
    """Times drawn at random for both pass modes; `straight` makes every table a line over contexts."""
    random = np.random.default_rng(seed)
    at = np.asarray(contexts, np.float64)

    def table(*rows, least=0.5, most=2.0):
        if straight:
            level, slope = random.uniform(least, most, (*rows, 1)), random.uniform(0, 0.02, (*rows, 1))
            return exactly(level + slope * at)
        return exactly(random.uniform(least, most, (*rows, at.size)))

    def times(widths, overhead):
        """A plain step takes no longer than any target pass with its round's overhead."""
        targets = table(len(widths))
        plain = table(least=0.2, most=0.5)
        shortened = plain.median * min(1.0, ((targets.median + overhead) / plain.median).min())
        return PassTimes(widths, targets, table(2), exactly(shortened), exactly(overhead))

    modes = {"fast": times(tuple(range(1, widest + 1)), 0.1), "invariant": times((widest,), 0.2)}
    return CostModel(PAIR, contexts, modes, repeats=5)


def flat_cost(verify=1.0, draft=0.1, two=0.1, plain=1.0, overhead=0.0, widest=17) -> CostModel:
    """Times that depend on nothing; a verification may be given per width."""
    verify = np.broadcast_to(np.asarray(verify, np.float64), (widest,))[:, None] * np.ones(2)
    drafts = exactly([[draft] * 2, [two] * 2])
    fast = PassTimes(tuple(range(1, widest + 1)), exactly(verify), drafts, exactly([plain] * 2), exactly(overhead))
    return CostModel(PAIR, (0, 1000), {"fast": fast}, repeats=3)
