"""`bench replay`, the part that needs models: is a replayed trace the engine's own, and what does a recording cost?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from statistics import median

from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.recording import record
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import trace_differences

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(21))
DRAFT_LENGTHS = (1, 2, 3, 5, 8, 16)
TOLERANCE = 1e-4  # of confidences, in fp32; an exact recording leaves none
RECORDING_BAR = 1.6


def run(
    prompts: Sequence[list[int]],
    pair: BenchPair,
    *,
    pass_mode: str = "fast",
    exact: bool = False,
    max_new_tokens: int = 48,
    cost_tokens: int = 256,
) -> bool:
    """Print how many real traces equal their replay, and recording time over plain time; whether both bars are met.

    Args:
        exact: record every draft step in a pass of the engine's own shape and ask for confidences equal to the bit.
        cost_tokens: length of the output whose recording is timed.
    """
    engine = Engine(pair.load(), pass_mode=pass_mode, widest_draft=16)
    console.print(
        f"{engine.pair.name}, {pair.precision}, pass mode {pass_mode}, {engine.pair_info().device}; "
        f"{len(prompts)} prompts of {max_new_tokens} new tokens",
        markup=False,
    )
    verdicts = Verdicts()
    grid = list(itertools.product(THRESHOLDS, DRAFT_LENGTHS))
    different = 0
    for number, prompt in enumerate(prompts):
        recording = record(engine, prompt, max_new_tokens=max_new_tokens, method="exact" if exact else "fast")
        for threshold, max_draft in grid:
            policy = ConfidenceThreshold(threshold)
            real = engine.trace(prompt, Settings(policy, max_draft, max_new_tokens))
            lines = trace_differences(
                real, replay(recording, policy, max_draft), confidence_tolerance=0.0 if exact else TOLERANCE
            )
            if lines:
                different += 1
                console.print(
                    f"prompt {number}, threshold {threshold}, draft length {max_draft}: {lines[0]}", markup=False
                )
        console.print(f"prompt {number + 1} of {len(prompts)} compared")
    runs = len(prompts) * len(grid)
    verdicts.check("replayed traces equal the engine's", different == 0, f"{runs - different} of {runs}")
    ratio = recording_cost(engine, prompts[0], cost_tokens)
    verdicts.check(f"recording at most {RECORDING_BAR} × plain decoding", ratio <= RECORDING_BAR, f"{ratio:.2f} ×")
    return verdicts.all_met


def recording_cost(engine: Engine, prompt: list[int], max_new_tokens: int, repeats: int = 3) -> float:
    """Median over repeats of recording time over the time of plain generation of the same output, interleaved."""
    engine.warm_up(prompt)
    ratios = []
    for _ in range(repeats):
        began = time.perf_counter()
        observe_all(engine.plain(prompt, max_new_tokens), ())
        plain = time.perf_counter() - began
        began = time.perf_counter()
        record(engine, prompt, max_new_tokens=max_new_tokens)
        ratios.append((time.perf_counter() - began) / plain)
    return median(ratios)
