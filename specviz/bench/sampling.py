"""`bench sampling`: what is promised of sampled runs, on a real pair.

Part `replay`: under `coupled` every real trace equals its replay, and the output is the same for every setting. Part
`expectation`: under `rejection` many real runs against `replay_expected` on each run's own text. Part `rounds`: a round
under `rejection` against one under `greedy`, with the same number of draft steps, in turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

import numpy as np

from specviz.bench.equality import DRAFT_LENGTHS, THRESHOLDS, TOLERANCE
from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console, table
from specviz.engine.engine import Engine, Settings
from specviz.engine.events import DraftStopped, Event, RoundCommitted, Verified
from specviz.engine.recording import record
from specviz.engine.trace_recorder import TraceRecorder
from specviz.replay import ConfidenceThreshold, FixedLength, Sampling, replay, replay_expected, trace_counts
from specviz.replay.rules import Coupled, Rejection
from specviz.trace import trace_differences

PARTS = ("replay", "expectation", "rounds")
TEMPERATURES = (0.3, 0.7, 1.0, 1.5)
EXPECTED_SETTINGS = ((0.0, 2), (0.0, 5), (0.2, 4), (0.4, 3), (0.6, 5))  # threshold, draft length
EXPECTED_TEMPERATURE, EXPECTED_TOKENS = 0.8, 12
TIMED_DRAFT, TIMED_TOKENS = 4, 64
ROUND_BAR = 0.03


def run(
    prompts: Sequence[list[int]],
    pair: BenchPair,
    *,
    parts: Sequence[str] = PARTS,
    max_new_tokens: int = 24,
    runs: int = 400,
    first_seed: int = 0,
    repeats: int = 5,
) -> bool:
    """Print the parts and verdicts; whether every bar is met.

    Args:
        parts: which of PARTS to run.
        runs: real runs at each setting of part 2, and `first_seed` the seed of the first of them. Ten figures are held
            to two standard errors, so one run in three or so misses by chance; other seeds tell.
        repeats: runs of each rule in part 3, in turns.
    """
    engine = Engine(pair.load(), pass_mode="fast")
    console.print(f"{engine.pair.name}, {pair.precision}, {engine.pair_info().device}", markup=False)
    verdicts = Verdicts()
    if "replay" in parts:
        _replayed(engine, prompts, max_new_tokens, verdicts)
    if "expectation" in parts:
        _expected(engine, prompts[0], runs, first_seed, verdicts)
    if "rounds" in parts:
        _round_times(engine, prompts[0], repeats, verdicts)
    return verdicts.all_met


def _replayed(engine: Engine, prompts: Sequence[list[int]], tokens: int, verdicts: Verdicts) -> None:
    different = outputs = runs = 0
    for seed, prompt in enumerate(prompts):
        for temperature in TEMPERATURES:
            sampling = Sampling(temperature)
            recording = record(engine, prompt, max_new_tokens=tokens, sampling=sampling, seed=seed)
            for threshold, max_draft in itertools.product(THRESHOLDS, DRAFT_LENGTHS):
                policy = ConfidenceThreshold(threshold)
                real = engine.trace(prompt, Settings(policy, max_draft, tokens, sampling, Coupled(), seed))
                lines = trace_differences(real, replay(recording, policy, max_draft), confidence_tolerance=TOLERANCE)
                runs += 1
                different += bool(lines)
                outputs += real.run.output_ids != tuple(recording.output_ids.tolist())
                if lines:
                    console.print(
                        f"prompt {seed}, temperature {temperature}, threshold {threshold}, draft length {max_draft}: "
                        f"{lines[0]}",
                        markup=False,
                    )
            console.print(
                f"prompt {seed + 1} of {len(prompts)}, temperature {temperature}: so far {different} traces and "
                f"{outputs} outputs differ of {runs}"
            )
    verdicts.check("coupled: replayed traces equal the engine's", different == 0, f"{runs - different} of {runs}")
    verdicts.check("coupled: one output for every setting", outputs == 0, f"{runs - outputs} of {runs}")


def _expected(engine: Engine, prompt: list[int], runs: int, first_seed: int, verdicts: Verdicts) -> None:
    """Differences of real runs from the expectation given each run's own text, which is recorded as it was made."""
    sampling = Sampling(EXPECTED_TEMPERATURE)
    shown = table(
        f"Real runs under rejection and their expectation, {runs} runs of {EXPECTED_TOKENS} tokens",
        "threshold", "draft length", "tokens per pass", "expected", "off by", "acceptance", "expected", "off by",
    )  # fmt: skip
    worst = 0.0
    for number, (threshold, max_draft) in enumerate(EXPECTED_SETTINGS):
        policy = ConfidenceThreshold(threshold)
        found, expected = [], []
        seeds = range(first_seed + number * runs, first_seed + (number + 1) * runs)
        for seed in seeds:  # each setting's runs are independent of the others'
            setting = Settings(policy, max_draft, EXPECTED_TOKENS, sampling, Rejection(), seed)
            recorder = TraceRecorder(engine.run_info("", prompt, setting), policy)
            recording = record(
                engine,
                prompt,
                max_new_tokens=EXPECTED_TOKENS,
                max_draft=max_draft,
                sampling=sampling,
                rule=Rejection(),
                seed=seed,
                policy=policy,
                observers=(recorder.observe,),
            )
            found.append(trace_counts(recorder.trace))
            expected.append(replay_expected(recording, policy, max_draft))
        passes = _ratio_and_error(found, expected, "emitted", "rounds")
        rates = _ratio_and_error(found, expected, "accepted", "proposed")
        cells = []
        for real, predicted, error in (passes, rates):
            off = (real - predicted) / error if error else 0.0
            worst = max(worst, abs(off))
            cells += [f"{real:.3f}", f"{predicted:.3f}", f"{off:+.2f} SE"]
        shown.add_row(f"{threshold:.1f}", str(max_draft), *cells)
        console.print(f"threshold {threshold}, draft length {max_draft}: {', '.join(cells)}")
    console.print(shown)
    verdicts.check("expected counts within 2 standard errors of real runs", worst <= 2, f"at most {worst:.2f}")


def _ratio_and_error(found, expected, part: str, whole: str) -> tuple[float, float, float]:
    """Ratio of sums of real runs, of expectations, and the standard error of their difference (delta method)."""
    parts, wholes = (np.array([float(getattr(one, name)) for one in found]) for name in (part, whole))
    expected_parts, expected_wholes = (
        np.array([float(getattr(one, name)) for one in expected]) for name in (part, whole)
    )
    real, predicted = parts.sum() / wholes.sum(), expected_parts.sum() / expected_wholes.sum()
    deviations = (parts - real * wholes) / wholes.mean() - (
        expected_parts - predicted * expected_wholes
    ) / expected_wholes.mean()
    return real, predicted, deviations.std(ddof=1) / len(found) ** 0.5


def _round_times(engine: Engine, prompt: list[int], repeats: int, verdicts: Verdicts) -> None:
    kinds = {"greedy": (Sampling(), None), "rejection": (Sampling(1.0), Rejection())}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    engine.warm_up(prompt)
    forks = [engine.fork() for _ in kinds]
    for repeat in range(repeats):
        runs = [
            _timed_rounds(fork.speculative(prompt, Settings(FixedLength(), TIMED_DRAFT, TIMED_TOKENS, *kind, repeat)))
            for fork, kind in zip(forks, kinds.values(), strict=True)
        ]
        # round by round, so that a slow spell of the machine hits both
        for times in zip(*runs, strict=False):
            for name, taken in zip(kinds, times, strict=True):
                seconds[name] += [] if taken is None else [taken]
    more = median(seconds["rejection"]) / median(seconds["greedy"]) - 1
    counts = ", ".join(f"{median(values) * 1e3:.1f} ms {name} (n = {len(values)})" for name, values in seconds.items())
    verdicts.check(
        f"a round under rejection at most {ROUND_BAR:.0%} slower", more <= ROUND_BAR, f"{more:+.1%}: {counts}"
    )


def _timed_rounds(events: Iterable[Event]) -> Iterator[float | None]:
    """Seconds of each round; None for one that is not like the others: a short proposal, or a first draft step over
    two tokens, as after a proposal that was accepted whole."""
    accepted_whole = False
    for event in events:
        match event:
            case DraftStopped(proposal=tokens):
                proposed = len(tokens)
            case Verified(accepted=tokens):
                accepted = tokens
            case RoundCommitted(times=times):
                alike = proposed == TIMED_DRAFT and not accepted_whole
                yield times.draft + times.verify + times.overhead if alike else None
                accepted_whole = accepted == proposed
