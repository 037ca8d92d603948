"""`bench policies`: the bars of the stopping policies.

How long an arena takes; whether the optimal oracle is as fast as brute force and no policy faster; whether
transformers' policies make the rounds that transformers makes; whether the engine does what the replay says under
every policy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from specviz.analysis.arena import arena
from specviz.bench.assisted import compare
from specviz.bench.contests import LETTERS, contestants_on, made_up_cost
from specviz.bench.oracle import check_oracle
from specviz.bench.pair import BenchPair
from specviz.bench.replay import synthetic_recording
from specviz.bench.reporting import Verdicts, console
from specviz.engine.engine import Engine, Settings
from specviz.engine.recording import record
from specviz.models.token_text import TokenText
from specviz.replay import PolicyReplayer, policy_from_settings, replay
from specviz.replay.contexts import vocabulary_flags
from specviz.trace import trace_differences

TOLERANCE = 1e-4  # of confidences, in fp32
MAX_DRAFT = 8
PARITY_PROMPTS = 20
ARENA_RECORDINGS, ARENA_TOKENS, ARENA_LIMIT_SECONDS = 40, 256, 20.0


def run(prompts: Sequence[list[int]], pair: BenchPair, *, pass_mode: str = "fast", max_new_tokens: int = 48) -> bool:
    """Print every figure with its bar; whether all are met.

    Traces are compared for every contestant at three values of its knob, rounds with transformers over the first
    PARITY_PROMPTS prompts.
    """
    verdicts = Verdicts()
    time_arena(verdicts)
    check_oracle(verdicts)
    engine = Engine(pair.load(), pass_mode=pass_mode, widest_draft=16)
    console.print(
        f"{engine.pair.name}, {pair.precision}, pass mode {pass_mode}, {engine.pair_info().device}; "
        f"{len(prompts)} prompts of {max_new_tokens} new tokens",
        markup=False,
    )
    compare(verdicts, pair.load(), engine.pair, prompts[:PARITY_PROMPTS], max_new_tokens)
    recordings = [record(engine, prompt, max_new_tokens=max_new_tokens) for prompt in prompts]
    replayer = PolicyReplayer(recordings, MAX_DRAFT)
    texts = TokenText(engine.pair.tokenizer)
    flags = vocabulary_flags(texts.bytes_of, len(engine.pair.tokenizer))
    runs = different = 0
    for label, per_prompt in contestants_on(replayer, made_up_cost(16), flags):
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


def time_arena(verdicts: Verdicts, recordings: int = ARENA_RECORDINGS, tokens: int = ARENA_TOKENS) -> None:
    """Time one arena on made-up recordings."""
    source = np.random.default_rng(0)
    made = [synthetic_recording(source, tokens) for _ in range(recordings)]
    began = time.perf_counter()
    result = arena(made, made_up_cost(16), flags=LETTERS)
    seconds = time.perf_counter() - began
    verdicts.check(
        f"an arena of {len(result.entries)} policies on {recordings} recordings of {tokens} tokens takes at most "
        f"{ARENA_LIMIT_SECONDS:.0f} s",
        len(result.entries) >= 16 and seconds <= ARENA_LIMIT_SECONDS,
        f"{seconds:.1f} s",
    )
