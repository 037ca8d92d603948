"""`bench policies`: does the engine do what the replay says under every policy, and how long does the arena take?"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from specviz.analysis.arena import CONTESTANTS, arena
from specviz.analysis.cost_model import CostModel, PassTimes, Timing
from specviz.analysis.fitting import Training
from specviz.analysis.oracle import optimal_oracles, stop_oracles
from specviz.bench.pair import BenchPair
from specviz.bench.replay import synthetic_recording
from specviz.bench.reporting import Verdicts, console
from specviz.engine.engine import Engine, Settings
from specviz.engine.recording import record
from specviz.models.token_text import TokenText
from specviz.replay import PolicyReplayer, policy_from_settings, replay
from specviz.replay.contexts import vocabulary_flags
from specviz.trace import PairInfo, trace_differences

TOLERANCE = 1e-4  # of confidences, in fp32
MAX_DRAFT = 8
ARENA_RECORDINGS, ARENA_TOKENS, ARENA_LIMIT_SECONDS = 40, 256, 20.0


def run(prompts: Sequence[list[int]], pair: BenchPair, *, pass_mode: str = "fast", max_new_tokens: int = 48) -> bool:
    """Print how many real traces equal their replay, for every contestant at three values of its knob, and the time of
    an arena on made-up recordings; whether both bars are met."""
    verdicts = Verdicts()
    time_arena(verdicts)
    engine = Engine(pair.load(), pass_mode=pass_mode, widest_draft=16)
    console.print(
        f"{engine.pair.name}, {pair.precision}, pass mode {pass_mode}, {engine.pair_info().device}; "
        f"{len(prompts)} prompts of {max_new_tokens} new tokens",
        markup=False,
    )
    recordings = [record(engine, prompt, max_new_tokens=max_new_tokens) for prompt in prompts]
    replayer = PolicyReplayer(recordings, MAX_DRAFT)
    texts = TokenText(engine.pair.tokenizer)
    flags = vocabulary_flags(texts.bytes_of, len(engine.pair.tokenizer))
    training = Training(replayer, made_up_cost(16), "fast", "clamp", flags)
    runs = different = 0
    for label, per_prompt in _policies(training):
        found = 0
        twins = {id(policy): policy_from_settings(policy.settings()) for policy in per_prompt}
        for number, (recording, policy) in enumerate(zip(recordings, per_prompt, strict=True)):
            # One object serves all prompts of a side, so what it carries on from one to the next is compared too.
            real = engine.trace(prompts[number], Settings(twins[id(policy)], MAX_DRAFT, max_new_tokens))
            lines = trace_differences(real, replay(recording, policy, MAX_DRAFT), confidence_tolerance=TOLERANCE)
            found += bool(lines)
            if lines:
                console.print(f"{label}, prompt {number}: {lines[0]}", markup=False)
        runs, different = runs + len(recordings), different + found
        console.print(f"{label}: {len(recordings) - found} of {len(recordings)} equal", markup=False)
    verdicts.check(
        "replayed traces equal the engine's under every policy", different == 0, f"{runs - different} of {runs}"
    )
    return verdicts.all_met


def _policies(training: Training):
    """(label, one policy per prompt): every contestant at a low, a middle and a high value of its knob; the oracles."""
    number = len(training.replayer)
    for contestant in CONTESTANTS:
        values = contestant.knob_values(MAX_DRAFT)
        for value in sorted({values[0], values[len(values) // 2], values[-1]}):
            policy = contestant.make(value, training)
            yield f"{contestant.label} {contestant.knob} {value:g}", [policy] * number
    yield "Stop oracle", stop_oracles(training.replayer)
    yield "Optimal oracle", optimal_oracles(training.replayer, training.cost, training.pass_mode, training.outside)


def made_up_cost(longest: int) -> CostModel:
    """Times in the proportions of a small pair on a CPU, for what needs prices but no measurement."""

    def timing(values):
        return Timing(values, values, values)

    widths = np.arange(1, longest + 2)
    times = PassTimes(
        widths=tuple(widths.tolist()),
        target_pass=timing((0.1 + 0.004 * widths)[:, None] * np.ones(2)),
        draft_step=timing(np.array([[0.017, 0.017], [0.02, 0.02]])),
        plain_step=timing(np.array([0.1, 0.1])),
        round_overhead=timing(np.array(0.0005)),
    )
    return CostModel(PairInfo(), (1, 4096), {"fast": times}, repeats=1)


def time_arena(verdicts: Verdicts, recordings: int = ARENA_RECORDINGS, tokens: int = ARENA_TOKENS) -> None:
    """Time one arena on made-up recordings."""
    source = np.random.default_rng(0)
    made = [synthetic_recording(source, tokens) for _ in range(recordings)]
    letters = vocabulary_flags(lambda token: f" {chr(97 + token % 26)}".encode(), 1000)
    began = time.perf_counter()
    result = arena(made, made_up_cost(16), flags=letters, outside="clamp")
    seconds = time.perf_counter() - began
    verdicts.check(
        f"an arena of {len(result.entries)} policies on {recordings} recordings of {tokens} tokens takes at most "
        f"{ARENA_LIMIT_SECONDS:.0f} s",
        len(result.entries) >= 16 and seconds <= ARENA_LIMIT_SECONDS,
        f"{seconds:.1f} s",
    )
