"""Really running settings, interleaved with plain decoding, to put measured points beside predicted ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specviz.engine.decoding import never
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.trace import Trace


@dataclass(frozen=True)
class Measured:
    """Decoding seconds, prefill excluded: per repeat and prompt, in the order they ran.

    plain_seconds: [repeat][prompt]; speculative_seconds: [setting][repeat][prompt]; traces: [setting][prompt], of the
    last repeat.
    """

    settings: tuple[Settings, ...]
    plain_seconds: list[list[float]]
    speculative_seconds: list[list[list[float]]]
    traces: list[list[Trace]]

    def speedups(self, setting: int) -> list[float]:
        """One speedup per repeat: plain time over speculative time, summed over the prompts."""
        pairs = zip(self.plain_seconds, self.speculative_seconds[setting], strict=True)
        return [sum(plain) / sum(speculative) for plain, speculative in pairs]


def measure(
    engine: Engine,
    prompts: Sequence[list[int]],
    settings: Sequence[Settings],
    *,
    repeats: int = 1,
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> Measured:
    """Run every setting on every prompt, each time beside a plain run of the same prompt in the same process.

    Within a repeat each prompt is first decoded plainly, then with every setting in turn, so that a slow spell of the
    machine hits baseline and settings alike. `stopped` ends the measurement after the prompt in flight;
    what is complete for all settings is returned.
    """
    plain: list[list[float]] = []
    speculative: list[list[list[float]]] = [[] for _ in settings]
    traces: list[list[Trace]] = [[] for _ in settings]
    engine.warm_up(prompts[0])
    for repeat in range(repeats):
        plain.append([])
        for series in speculative:
            series.append([])
        traces = [[] for _ in settings]
        for number, prompt in enumerate(prompts):
            if stopped() and number:
                return Measured(tuple(settings), plain, speculative, traces)
            progress("Measuring", (repeat * len(prompts) + number) / (repeats * len(prompts)))
            finished = observe_all(engine.plain(prompt, settings[0].max_new_tokens), ())
            plain[-1].append(finished.total_seconds - finished.prefill_seconds)
            for row, setting in enumerate(settings):
                trace = engine.trace(prompt, setting)
                speculative[row][-1].append(trace.run.total_seconds - trace.run.prefill_seconds)
                traces[row].append(trace)
    return Measured(tuple(settings), plain, speculative, traces)
