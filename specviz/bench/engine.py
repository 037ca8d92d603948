"""`bench engine`: our plain and speculative decoding beside transformers' `generate`, in one process, interleaved.

Compared at the same pair, precision, draft length and threshold: plain `generate`; `generate(assistant_model=...)` with
the constant schedule and with transformers' own defaults; our plain decoding; ours speculative in pass modes `fast`
and `invariant`; and, with `compiled`, our compiled passes in `fast`. Beside them stands the memory-bandwidth limit: no
decoding that reads the target's weights once per token can be faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console, progress, spread, table
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.replay import ConfidenceThreshold


def run(
    prompts: Sequence[list[int]],
    pair: BenchPair,
    *,
    threshold: float = 0.5,
    max_draft: int = 5,
    on_fail: str = "drop",
    max_new_tokens: int = 48,
    repeats: int = 3,
    compiled: bool = False,
) -> bool:
    """Print the table and verdicts; whether every bar is met."""
    theirs = pair.load()  # untouched copies for transformers
    ours = pair.load()
    fast = Engine(ours, pass_mode="fast")
    invariant = Engine(ours, pass_mode="invariant", widest_draft=max_draft)
    settings = Settings(ConfidenceThreshold(threshold, on_fail), max_draft, max_new_tokens)
    keep = Settings(ConfidenceThreshold(threshold, "keep"), max_draft, max_new_tokens)

    def generate(prompt: list[int], **arguments) -> int:
        ids = torch.tensor([prompt], device=theirs.target.model.device)
        output = theirs.target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(fast.eos_ids),
            pad_token_id=min(fast.eos_ids),
            **arguments,
        )
        return output.shape[1] - len(prompt)

    def assisted(prompt: list[int], constant: bool) -> int:
        config = theirs.draft.model.generation_config
        config.num_assistant_tokens_schedule = "constant"
        config.num_assistant_tokens = max_draft if constant else 20
        config.assistant_confidence_threshold = threshold if constant else 0.4
        return generate(prompt, assistant_model=theirs.draft.model)

    def engine_run(events) -> int:
        return len(observe_all(events, ()).output_ids)

    ways: dict[str, Callable[[list[int]], int]] = {
        "generate": generate,
        "generate, assisted, constant": lambda p: assisted(p, True),
        "generate, assisted, defaults": lambda p: assisted(p, False),
        "ours, plain": lambda p: engine_run(fast.plain(p, max_new_tokens)),
        "ours, speculative, fast": lambda p: engine_run(fast.speculative(p, settings)),
        "ours, speculative, fast, keep": lambda p: engine_run(fast.speculative(p, keep)),
        "ours, speculative, invariant": lambda p: engine_run(invariant.speculative(p, settings)),
        "ours, speculative, fast, recorded": lambda p: len(fast.trace(p, settings).run.output_ids),
    }
    if compiled:
        compiled_pair = pair.load()
        graph = Engine(compiled_pair, pass_mode="fast", compiled=True)
        began = time.perf_counter()
        graph.warm_up(prompts[0])
        console.print(f"compiling took {time.perf_counter() - began:.0f} s")
        ways["ours, plain, compiled"] = lambda p: engine_run(graph.plain(p, max_new_tokens))
        ways["ours, speculative, compiled"] = lambda p: engine_run(graph.speculative(p, settings))
        ways["ours, speculative, compiled, keep"] = lambda p: engine_run(graph.speculative(p, keep))

    info = fast.pair_info()
    console.print(
        f"{ours.name}, {pair.precision}, {info.device}; threshold {threshold}, draft length {max_draft}, {on_fail}; "
        f"{len(prompts)} prompts, up to {max_new_tokens} new tokens, {repeats} repeats; whole calls, prefill included",
        markup=False,
    )
    rates = _interleaved(ways, prompts, repeats)
    shown = table(
        "Tokens per second: median (quartiles) over prompts and repeats",
        "way",
        "tokens/s",
        "over generate",
        "over our plain",
    )
    for name, values in rates.items():
        row = [
            name,
            spread(values, 1),
            f"{_ratio(rates, name, 'generate'):.2f}",
            f"{_ratio(rates, name, 'ours, plain'):.2f}",
        ]
        shown.add_row(*row)
    weights = sum(p.nbytes for p in theirs.target.model.parameters())
    bandwidth = memory_bandwidth(theirs.target.model.device)
    shown.add_row(f"memory limit of plain decoding ({bandwidth / 1e9:.0f} GB/s)", f"{bandwidth / weights:.1f}", "", "")
    console.print(shown)

    verdicts = Verdicts()
    plain = _ratio(rates, "ours, plain", "generate")
    verdicts.check("eager plain no slower than generate", plain >= 1.0, f"{plain:.2f} ×")
    recorded = 1 / _ratio(rates, "ours, speculative, fast, recorded", "ours, speculative, fast") - 1
    verdicts.check("the trace recorder costs at most 2 %", recorded <= 0.02, f"{recorded:+.1%}")
    if compiled:
        plain_graph = _ratio(rates, "ours, plain, compiled", "generate")
        verdicts.check("compiled plain at least 1.4 × generate", plain_graph >= 1.4, f"{plain_graph:.2f} ×")
        best = max(("generate, assisted, constant", "generate, assisted, defaults"), key=lambda n: median(rates[n]))
        graphs = (name for name in rates if name.startswith("ours, speculative, compiled"))
        speculative = _ratio(rates, max(graphs, key=lambda n: median(rates[n])), best)
        verdicts.check(
            "compiled speculative at least 1.4 × assisted generation", speculative >= 1.4, f"{speculative:.2f} ×"
        )
    return verdicts.all_met


def _interleaved(ways, prompts, repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each way, one figure per turn: every prompt in every repeat.

    In a turn all ways run one after the other, beginning with another one each time, so that a machine that grows
    slower or faster favours none.
    """
    for way in ways.values():
        way(prompts[0])
    rates: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(repeats * len(prompts)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            tokens = ways[name](prompts[turn % len(prompts)])
            rates[name].append(tokens / (time.perf_counter() - began))
        progress("Measuring", (turn + 1) / (repeats * len(prompts)))
    return rates


def _ratio(rates: dict[str, list[float]], name: str, baseline: str) -> float:
    """Median over turns of one way's speed over another's in the same turn."""
    return median(a / b for a, b in zip(rates[name], rates[baseline], strict=True))


def memory_bandwidth(device: torch.device, megabytes: int = 256) -> float:
    """Bytes per second at which `device` reads memory: the best of several sums over a large array."""
    values = torch.ones(megabytes * 250_000, device=device)
    best = float("inf")
    for _ in range(7):
        began = time.perf_counter()
        values.sum().item()
        best = min(best, time.perf_counter() - began)
    return values.nbytes / best
