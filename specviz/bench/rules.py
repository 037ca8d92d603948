"""`bench rules`: which acceptance rules emit the target's distribution, and under which stopping.

On small pairs whose distributions are known, the joint distribution of the first three tokens is drawn many times and
tested against the exact one. Lossless rules have to pass for every threshold and draft length; stopping by the drawn
token's own probability has to fail where it is said not to be lossless; lossy rules are listed as they are.
"""

from __future__ import annotations

import itertools

import torch

from specviz.analysis.fidelity import DistributionTest, test_distribution
from specviz.bench.reporting import Verdicts, console, table
from specviz.bench.toys import Simulation, ToyPair, outcome_counts, toy_pair
from specviz.replay.rules import (
    AcceptanceRule,
    Coupled,
    Lenient,
    Rejection,
    TargetSampleMatch,
    TopK,
    Typical,
    stays_lossless,
)

SAMPLES = 50_000
VOCABULARIES = (5, 8, 12)
THRESHOLDS = (0.0, 0.3, 0.6, 0.9)
DRAFT_LENGTHS = (1, 3, 5)
LOSSLESS_RULES = (Rejection(), Coupled(), TargetSampleMatch())
LOSSY_RULES = (Lenient(0.5), TopK(2), Typical(0.09))


def run(*, samples: int = SAMPLES) -> bool:
    """Print tables and verdicts; whether every claim holds."""
    verdicts = Verdicts()
    pairs = [toy_pair(vocabulary, vocabulary) for vocabulary in VOCABULARIES]
    sizes = ", ".join(map(str, VOCABULARIES))
    console.print(f"First three tokens on pairs of {sizes} tokens, {samples:,} samples a test")
    shown = table("Worst test of each rule", "rule", "claim", "tests", "failed", "least p", "TV", "bound")
    for rule in (*LOSSLESS_RULES, *LOSSY_RULES):
        settings = itertools.product(pairs, THRESHOLDS, DRAFT_LENGTHS)
        tests = [judged(Simulation(pair, rule, tau, gamma), samples) for pair, tau, gamma in settings]
        failed = sum(not test.passed for test in tests)
        worst = min(tests, key=lambda test: (test.p_value, test.bound - test.total_variation))
        shown.add_row(
            str(rule), rule.claim, str(len(tests)), str(failed),
            f"{worst.p_value:.2g}", f"{worst.total_variation:.4f}", f"{worst.bound:.4f}",
        )  # fmt: skip
        if rule in LOSSLESS_RULES:
            verdicts.check(f"{rule} is lossless", failed == 0, f"{len(tests) - failed} of {len(tests)} tests passed")
        else:
            verdicts.check(f"{rule} is told apart from the target", failed > 0, f"{failed} of {len(tests)} tests")
    console.print(shown)
    for rule, looks, keep in itertools.product(LOSSLESS_RULES, (False, True), (False, True)):
        on_fail = "keep" if keep else "drop"
        test = judged(Simulation(pairs[0], rule, 0.6, 3, drawn_token_decides=looks, keep=keep), samples)
        expected = stays_lossless(rule, looks, on_fail)
        by = "the drawn token's probability" if looks else "the draft's confidence"
        verdicts.check(
            f"{rule}, stopped by {by}, {on_fail}: {'' if expected else 'not '}lossless",
            test.passed == expected,
            f"p = {test.p_value:.2g}",
        )
    return verdicts.all_met


def on_a_small_pair(rule: AcceptanceRule, samples: int) -> DistributionTest:
    """The one test that a report on fidelity shows: 8 tokens, threshold 0.3, draft length 3."""
    return judged(Simulation(toy_pair(8, 8), rule, 0.3, 3), samples)


def judged(simulation: Simulation, samples: int) -> DistributionTest:
    """Test the first three tokens of `samples` generations against the pair's exact distribution."""
    pair: ToyPair = simulation.pair
    tokens = simulation.run(torch.arange(samples)).tokens
    return test_distribution(outcome_counts(tokens, pair.vocabulary).numpy(), pair.exact_joint().numpy())
