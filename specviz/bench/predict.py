"""`bench predict`: speedups predicted from recordings and the cost model, against really measured ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from specviz.analysis.comparison import compare
from specviz.analysis.prediction import predict
from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console, progress
from specviz.engine.engine import Engine, Settings
from specviz.engine.measurement import measure
from specviz.engine.recording import record
from specviz.measure.costs import measured_costs
from specviz.replay import ConfidenceThreshold, replay

THRESHOLDS, DRAFT_LENGTHS = (0.0, 0.3, 0.6, 0.9), (2, 4, 8)


def run(
    prompts: Sequence[list[int]],
    pair: BenchPair,
    *,
    pass_mode: str = "fast",
    max_new_tokens: int = 48,
    repeats: int = 1,
) -> bool:
    """Print 12 settings with predicted and measured speedup; whether the errors keep to the bars."""
    engine = Engine(pair.load(), pass_mode=pass_mode, widest_draft=8)
    console.print(
        f"{engine.pair.name}, {pair.precision}, pass mode {pass_mode}, {engine.pair_info().device}; "
        f"{len(prompts)} prompts of {max_new_tokens} new tokens, {repeats} repeats; prefill excluded",
        markup=False,
    )
    longest = max(len(prompt) for prompt in prompts) + max_new_tokens
    contexts = (min(len(prompt) for prompt in prompts), (longest + 32) // 2, longest)
    began = time.perf_counter()
    costs = [measured_costs(engine, contexts, max_draft=8)]
    seconds = time.perf_counter() - began
    settings = [
        Settings(ConfidenceThreshold(t), g, max_new_tokens) for t, g in itertools.product(THRESHOLDS, DRAFT_LENGTHS)
    ]
    measured = measure(engine, prompts, settings, repeats=repeats, progress=progress)
    costs.append(measured_costs(engine, contexts, max_draft=8))
    recordings = [record(engine, prompt, max_new_tokens=max_new_tokens) for prompt in prompts]

    predicted = []
    for setting in settings:
        traces = [replay(recording, setting.policy, setting.max_draft) for recording in recordings]
        # a calibration before and one after the runs, so that a slow drift of the machine weighs on neither alone
        prices = [predict(trace, cost) for cost in costs for trace in traces]
        predicted.append(sum(float(p.plain_seconds) for p in prices) / sum(float(p.seconds) for p in prices))
    speedups = [sorted(measured.speedups(row))[repeats // 2] for row in range(len(settings))]
    rows = [{"threshold": s.policy.threshold, "max_draft": s.max_draft} for s in settings]
    comparison = compare(rows, predicted, speedups)
    console.print(str(comparison), markup=False)
    verdicts = Verdicts()
    verdicts.check("one calibration at most 60 s", seconds <= 60, f"{seconds:.0f} s")
    verdicts.check(
        "median error at most 5 %, worst at most 12 %",
        comparison.within_bars,
        f"{comparison.median_error:.1%} and {comparison.worst_error:.1%}",
    )
    return verdicts.all_met
