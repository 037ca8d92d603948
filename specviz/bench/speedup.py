"""`bench speedup`: the best fixed setting of a pair, really run beside plain decoding, by category of prompt.

Every prompt is recorded once; the cost model and the replay then name the best threshold, draft length and reading of a
failing token; that one setting is measured on all prompts, interleaved with plain decoding. It was chosen on the
same prompts, which flatters it a little; the sweep's interval on unseen prompts is printed beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from specviz.analysis.curves import grid
from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console, progress, spread, table
from specviz.engine.engine import Engine, Settings
from specviz.engine.measurement import measure
from specviz.engine.recording import record
from specviz.measure.costs import measured_costs
from specviz.replay import ConfidenceThreshold

EAGER_BAR, COMPILED_BAR = 1.05, 1.15
LONGEST_DRAFT = 8


def run(
    prompts: Sequence[list[int]],
    categories: Sequence[str],
    pair: BenchPair,
    *,
    pass_mode: str = "fast",
    compiled: bool = False,
    longest_draft: int = LONGEST_DRAFT,
    max_new_tokens: int = 48,
    repeats: int = 1,
) -> bool:
    """Print the best setting and its measured speedup, over all prompts and by category; whether the bar is met.

    `longest_draft` bounds the draft lengths to choose from; in pass mode `invariant` it sets the width of all passes.
    """
    engine = Engine(
        pair.load(),
        pass_mode=pass_mode,
        widest_draft=longest_draft,
        compiled=compiled,
    )
    console.print(
        f"{engine.pair.name}, {pair.precision}, pass mode {pass_mode}{', compiled' if compiled else ''}, "
        f"{engine.pair_info().device}; {len(prompts)} prompts of up to {max_new_tokens} new tokens",
        markup=False,
    )
    engine.warm_up(prompts[0])
    lengths = [len(prompt) for prompt in prompts]
    contexts = (min(lengths), (min(lengths) + max(lengths)) // 2, max(lengths) + max_new_tokens)
    costs = measured_costs(engine, contexts, max_draft=longest_draft)
    recordings = []
    for number, prompt in enumerate(prompts):
        recordings.append(record(engine, prompt, max_new_tokens=max_new_tokens, max_draft=longest_draft))
        console.print(f"recorded {number + 1} of {len(prompts)}")
    cells = max((grid(recordings, costs, on_fail=way) for way in ("drop", "keep")), key=lambda c: c.best.speedup.value)
    best = cells.best
    console.print(f"predicted: {cells.sentence}", markup=False)

    setting = Settings(ConfidenceThreshold(best.threshold, cells.on_fail), best.max_draft, max_new_tokens)
    measured = measure(engine, prompts, [setting], repeats=repeats, progress=progress)
    plain: dict[str, list[float]] = defaultdict(lambda: [0.0] * repeats)
    speculative: dict[str, list[float]] = defaultdict(lambda: [0.0] * repeats)
    counted: dict[str, int] = defaultdict(int)
    for number, category in enumerate(categories):
        for name in (category, "all"):
            counted[name] += 1
            for repeat in range(repeats):
                plain[name][repeat] += measured.plain_seconds[repeat][number]
                speculative[name][repeat] += measured.speculative_seconds[0][repeat][number]
    shown = table("Measured speedup over our plain decoding, prefill excluded", "category", "prompts", "speedup")
    speedups = {
        name: [a / b for a, b in zip(plain[name], speculative[name], strict=True)]
        for name in sorted(counted, key=lambda n: (n == "all", n))
    }
    for name, values in speedups.items():
        shown.add_row(name, str(counted[name]), spread(values))
    console.print(shown)
    bar = COMPILED_BAR if compiled else EAGER_BAR
    verdicts = Verdicts()
    overall = sorted(speedups["all"])[repeats // 2]
    chosen = f"threshold {best.threshold:.3f}, draft length {best.max_draft}, {cells.on_fail}"
    verdicts.check(f"measured speedup at least {bar} ({chosen})", overall >= bar, f"{overall:.3f} ×")
    return verdicts.all_met
