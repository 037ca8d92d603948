"""Measuring what passes cost, for the cost model: the pair itself, on its device, in the engine's own passes.

All things measured take turns within each repetition, each time in another order, so that a slow spell of the machine
hits all of them alike and none always runs with the caches that another leaves behind.
`specviz.analysis.calibrated` makes a cost model of the samples and takes the spells out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np
import torch

from specviz.engine.clock import clock_for
from specviz.engine.decoding import never
from specviz.engine.drafting import Drafter
from specviz.engine.engine import DRAFT_WIDTH, Engine, Settings
from specviz.engine.events import Event, RoundCommitted
from specviz.engine.runner import ModelRunner
from specviz.errors import SpecVizError
from specviz.replay import FixedLength
from specviz.trace import PairInfo

DEFAULT_CONTEXTS = (32, 192, 448)
DEFAULT_REPEATS = 21
TIME_LIMIT = 45.0  # seconds
_FEWEST_REPEATS = 3
_WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17)
_SPARE = 64  # room behind the longest context for the passes that are measured


@dataclass(frozen=True)
class PassSamples:
    """Seconds, n of each: C context lengths, W widths of target passes (one in pass mode `invariant`).

    target_pass: (W, C, n), one target pass with the judgement of its proposal; draft_step: (2, C, n), one draft step
    over one token and over two; plain_step: (C, n), one token of plain decoding; round_overhead: (n,), what
    real rounds spent besides; measured_at, load_average, processors: as in the cost model.
    """

    pair: PairInfo
    pass_mode: str
    compiled: bool
    contexts: tuple[int, ...]
    widths: tuple[int, ...]
    target_pass: np.ndarray
    draft_step: np.ndarray
    plain_step: np.ndarray
    round_overhead: np.ndarray
    measured_at: str = ""
    load_average: float | None = None
    processors: int = 0


def calibrate(
    engine: Engine,
    *,
    contexts: Sequence[int] = DEFAULT_CONTEXTS,
    max_draft: int = 16,
    repeats: int = DEFAULT_REPEATS,
    time_limit: float = TIME_LIMIT,
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> PassSamples:
    """Measure the passes of `engine` in its pass mode.

    Args:
        contexts: context lengths in tokens, prompt included; texts between the shortest and longest can be priced.
        max_draft: longest draft length to price; in pass mode `invariant` that of the engine's one width.
        repeats: how often each thing is measured, at most.
        time_limit: seconds after which no further repetition begins, once there are three.

    Raises:
        SpecVizError: stopped, or a context that the pair does not have.
    """
    return calibrate_together(
        [engine],
        contexts=contexts,
        max_draft=max_draft,
        repeats=repeats,
        time_limit=time_limit,
        stopped=stopped,
        progress=progress,
    )[0]


def calibrate_together(
    engines: Sequence[Engine],
    *,
    contexts: Sequence[int] = DEFAULT_CONTEXTS,
    max_draft: int = 16,
    repeats: int = DEFAULT_REPEATS,
    time_limit: float = TIME_LIMIT,
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> list[PassSamples]:
    """Measure several engines that are to be compared: at each context length they take turns within each repetition,
    so that repetition n of one saw the same machine as repetition n of the others. Arguments as for `calibrate`.
    """
    contexts = tuple(sorted({min(int(context), longest_measured(engines)) for context in contexts}))
    if contexts[0] < 2:
        raise SpecVizError("A context length to be measured is below 2 tokens; give longer ones.")
    ends = time.monotonic() + time_limit
    load = load_average()
    benches = [_Bench(engine, contexts, max_draft, repeats, stopped) for engine in engines]
    for bench in benches:
        bench.prefill(progress)
    began = time.monotonic()
    measured = 0
    order = np.random.default_rng(0)
    for repeat in range(-1, repeats):  # the first turn warms up and is overwritten
        if measured >= _FEWEST_REPEATS and time.monotonic() > ends:
            break
        turns = [turn for bench in benches for turn in bench.turns(repeat)]
        for place in order.permutation(len(turns)):
            turns[place]()
        measured = repeat + 1
        progress("Measuring passes", _share_done(measured, repeats, began, ends))
    load = None if load is None else max(load, load_average())
    return [bench.samples(measured, load) for bench in benches]


def longest_measured(engines: Sequence[Engine]) -> int:
    """The longest context, in tokens, at which the passes of all these engines can be measured."""
    return min(engine.max_context for engine in engines) - _SPARE


def load_average() -> float | None:
    """Of the last minute, where the system keeps one."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _share_done(measured: int, repeats: int, began: float, ends: float) -> float:
    """Share of the time that the repetitions take, from how long those so far took; `ends`: of the time limit."""
    now = time.monotonic()
    spent = now - began
    each = spent / (measured + 1)
    left = max((min(_FEWEST_REPEATS, repeats) - measured) * each, min((repeats - measured) * each, ends - now))
    return spent / (spent + left) if left > 0 else 1.0


class _Bench:
    """Runners with a text of each context length in their caches, and the measurements made on them."""

    def __init__(
        self, engine: Engine, contexts: tuple[int, ...], max_draft: int, repeats: int, stopped: Callable[[], bool]
    ):
        self._engine, self._contexts, self._stopped = engine, contexts, stopped
        self._clock = clock_for(engine.target_runner.device)
        invariant = engine.pass_mode == "invariant"
        widths = {engine.widest_draft + 1} if invariant else {*_WIDTHS, max_draft + 1}
        self._widths = tuple(sorted(width for width in widths if invariant or width <= max_draft + 1))
        self._targets = np.empty((len(self._widths), len(contexts), repeats))
        self._drafts = np.empty((2, len(contexts), repeats))
        self._plains = np.empty((len(contexts), repeats))
        self._overheads = np.empty((2, repeats))  # of speculative rounds, of plain ones
        generator = torch.Generator().manual_seed(0)
        size = min(1000, engine.pair.target.model.config.get_text_config().vocab_size)
        self._text = torch.randint(1, size, (contexts[-1] + _SPARE,), generator=generator).tolist()
        self._rule = engine.rule_at_work(Settings(), self._prompt)
        # each context in a cache of the size that a generation ending there would have
        self._target = [self._begun(engine.target_runner, context) for context in contexts]
        self._plain = [self._begun(engine.plain_runner, context) for context in contexts]
        self._draft = [self._begun(engine.draft_runner, context) for context in contexts]
        self._rounds = [_Rounds(self._speculative), _Rounds(self._plainly)]

    def turns(self, repeat: int) -> list[Callable[[], None]]:
        """Everything to measure once in this repetition, in any order."""
        turns = [partial(self._time_round, kind, repeat) for kind in range(2)]
        for at in range(len(self._contexts)):
            turns += [partial(self._time_target, row, at, repeat) for row in range(len(self._widths))]
            turns += [partial(self._time_draft, tokens, at, repeat) for tokens in (1, 2)]
            turns.append(partial(self._time_plain, at, repeat))
        return turns

    def samples(self, measured: int, load: float | None) -> PassSamples:
        """What the first `measured` repetitions found, on a machine with this load average."""
        overhead, plain_overhead = self._overheads[:, :measured]
        return PassSamples(
            pair=self._engine.pair_info(),
            pass_mode=self._engine.pass_mode,
            compiled=self._engine.compiled,
            contexts=self._contexts,
            widths=self._widths,
            target_pass=self._targets[..., :measured],
            draft_step=self._drafts[..., :measured],
            plain_step=self._plains[..., :measured] + plain_overhead,
            round_overhead=overhead,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            load_average=load,
            processors=os.cpu_count() or 0,
        )

    def _begun(self, runner: ModelRunner, context: int) -> ModelRunner:
        fork = runner.fork(runner.width)
        fork.begin(context + max(DRAFT_WIDTH, 0 if runner.width else self._widths[-1]))
        return fork

    def prefill(self, progress: Callable[[str, float], None]) -> None:
        for at, context in enumerate(self._contexts):
            progress("Filling caches", at / len(self._contexts))
            for runners in (self._target, self._plain, self._draft):
                self._end_if_stopped()
                runners[at].prefill(self._text[:context])

    def _time_target(self, row: int, at: int, repeat: int) -> None:
        self._targets[row, at, repeat] = self._target_pass(self._target[at], self._widths[row])

    def _time_plain(self, at: int, repeat: int) -> None:
        self._plains[at, repeat] = self._target_pass(self._plain[at], 1)

    def _time_draft(self, tokens: int, at: int, repeat: int) -> None:
        self._drafts[tokens - 1, at, repeat] = self._draft_step(at, tokens)

    def _time_round(self, kind: int, repeat: int) -> None:
        """What a real round, speculative or plain, spends in neither draft nor target."""
        self._end_if_stopped()
        overhead = self._rounds[kind].overhead_of_next()
        self._end_if_stopped()
        self._overheads[kind, repeat] = max(overhead, 0.0)

    def _target_pass(self, runner: ModelRunner, width: int) -> float:
        """Seconds of one pass over `width` tokens (fewer rows are padded) with the judgement of the proposal."""
        self._end_if_stopped()
        tokens, text = self._text[runner.length : runner.length + width], self._text[: runner.length + 1]
        began = self._clock.mark()
        self._rule.judge(runner.logits(runner.forward(tokens)), tokens[1:], text)
        ended = self._clock.mark()
        runner.rollback(len(tokens))
        return self._clock.seconds(began, ended)

    def _draft_step(self, at: int, tokens: int) -> float:
        """Seconds of one draft step over `tokens` tokens, statistics and decision included."""
        self._end_if_stopped()
        runner = self._draft[at]
        drafter = Drafter(runner, FixedLength(), 1, rule=self._rule)
        text = self._text[: runner.length + tokens]
        began = self._clock.mark()
        drafter.policy.stops(drafter.step(text, [], 0))
        ended = self._clock.mark()
        runner.rollback(tokens)
        return self._clock.seconds(began, ended)

    def _speculative(self) -> Iterator[Event]:
        return self._engine.speculative(self._prompt, Settings(FixedLength(), 1, _SPARE), self._stopped)

    def _plainly(self) -> Iterator[Event]:
        return self._engine.plain(self._prompt, _SPARE, self._stopped)

    @property
    def _prompt(self) -> list[int]:
        return self._text[: self._contexts[0]]

    def _end_if_stopped(self) -> None:
        if self._stopped():
            raise SpecVizError("The calibration was stopped; nothing of it is kept.")


class _Rounds:
    """Real rounds, one at a time; a generation that has ended is begun again, outside what is timed."""

    def __init__(self, generate: Callable[[], Iterator[Event]]) -> None:
        self._generate = generate
        self._events: Iterator[Event] = iter(())

    def overhead_of_next(self) -> float:
        """Seconds besides draft and target; NaN where a stopped generation has no next round."""
        for _ in range(2):
            for event in self._events:
                if isinstance(event, RoundCommitted):
                    return event.times.overhead
            self._events = self._generate()
        return float("nan")
