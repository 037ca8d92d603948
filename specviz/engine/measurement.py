"""Really running settings, interleaved with plain decoding, to put measured points beside predicted ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specviz.engine.decoding import never
from specviz.engine.engine import Engine, Settings
from specviz.engine.events import Event, Finished, RoundCommitted
from specviz.engine.trace_recorder import TraceRecorder
from specviz.trace import Trace

FEWEST_RUNS = 3  # of a measured setting, so that its spread is known for one prompt too
MOST_PROMPTS = 10  # of a measured setting: it runs for real


def repeats_of(prompts: int) -> int:
    """How often each of so many prompts is run, for at least `FEWEST_RUNS` runs together."""
    return math.ceil(FEWEST_RUNS / prompts)


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

    On each prompt the plain run and all settings take turns round by round, always the one that has come least far
    in the text, so that a slow spell of the machine hits baseline and settings at the same tokens. `stopped` ends the
    measurement after the prompt in flight; what is complete for all settings is returned.
    """
    plain: list[list[float]] = []
    speculative: list[list[list[float]]] = [[] for _ in settings]
    traces: list[list[Trace]] = [[] for _ in settings]
    engine.warm_up(prompts[0])
    baseline, engines = engine.fork(), [engine.fork() for _ in settings]
    for repeat in range(repeats):
        plain.append([])
        for series in speculative:
            series.append([])
        traces = [[] for _ in settings]
        for number, prompt in enumerate(prompts):
            if stopped() and number:
                return Measured(tuple(settings), plain, speculative, traces)
            progress("Measuring", (repeat * len(prompts) + number) / (repeats * len(prompts)))
            first = settings[0]
            plain_run = baseline.plain(prompt, first.max_new_tokens, **first.of_text())
            runs = [_Run(plain_run)]
            for fork, setting in zip(engines, settings, strict=True):
                recorder = TraceRecorder(fork.run_info("", prompt, setting), setting.policy)
                runs.append(_Run(fork.speculative(prompt, setting), recorder))
            while waiting := [run for run in runs if run.finished is None]:
                min(waiting, key=lambda run: run.emitted).advance()
            plain[-1].append(runs[0].decoding_seconds)
            for row, run in enumerate(runs[1:]):
                speculative[row][-1].append(run.decoding_seconds)
                traces[row].append(run.recorder.trace)
    return Measured(tuple(settings), plain, speculative, traces)


class _Run:
    """A generation that can be advanced by one round at a time."""

    def __init__(self, events: Iterator[Event], recorder: TraceRecorder | None = None):
        self._events, self.recorder = events, recorder
        self.emitted = 0
        self.finished: Finished | None = None

    def advance(self) -> None:
        for event in self._events:
            if self.recorder:
                self.recorder.observe(event)
            match event:
                case RoundCommitted(emitted=tokens):
                    self.emitted += len(tokens)
                    return
                case Finished():
                    self.finished = event

    @property
    def decoding_seconds(self) -> float:
        """Prefill excluded."""
        return self.finished.total_seconds - self.finished.prefill_seconds
