"""`bench replay`: how fast whole grids are replayed, on synthetic recordings, with a spot check against `replay`."""

import resource
import time
from collections.abc import Callable

import numpy as np

from specviz.replay import (
    ConfidenceThreshold,
    breakpoints,
    replay,
    replay_grid,
    trace_counts,
)
from specviz.trace import PairInfo, Recording

THRESHOLDS = np.linspace(0, 1, 101)
MAX_DRAFTS = tuple(range(1, 17))
ONE_TOKENS, ONE_LIMIT_SECONDS = 512, 0.050
MANY, MANY_TOKENS, MANY_LIMIT_SECONDS = 1000, 256, 15.0
MEMORY_LIMIT_BYTES = 2e9


def synthetic_recording(random: np.random.Generator, tokens: int, max_draft: int = 16) -> Recording:
    """A recording whose draft is right as often as it is confident, so that every threshold and length differs."""
    vocabulary = 1000

    def ints(size):
        return random.integers(1, vocabulary, size, dtype=np.int32)

    def confidences(size):
        return random.beta(1.2, 1.0, size).clip(1e-3, 1.0).astype(np.float32)

    def floats(*shape):
        return random.random(shape, dtype=np.float32)

    output, confidence = ints(tokens), confidences(tokens)
    wrong = random.random(tokens) >= confidence
    lengths = np.where(wrong, np.clip(tokens - 2 - np.arange(tokens), 0, max_draft - 1), 0)
    steps = int(lengths.sum())
    return Recording(
        prompt_id="synthetic",
        category="synthetic",
        prompt="",
        pair=PairInfo(),
        settings={},
        seed=0,
        finish_reason="length",
        max_new_tokens=tokens,
        output_limit=1 << 20,
        max_draft=max_draft,
        eos_ids=(0,),
        prompt_ids=ints(32),
        output_ids=output,
        draft_token=np.where(wrong, output % (vocabulary - 1) + 1, output).astype(np.int32),
        draft_confidence=confidence,
        draft_entropy=floats(tokens),
        draft_margin=floats(tokens),
        draft_prob_of_emitted=floats(tokens),
        target_prob_of_draft_token=floats(tokens),
        target_rank_of_draft_token=ints(tokens),
        target_entropy=floats(tokens),
        target_prob_of_emitted=floats(tokens),
        target_margin=floats(tokens),
        draft_top_ids=ints((tokens, 5)),
        draft_top_probs=floats(tokens, 5),
        target_top_ids=ints((tokens, 5)),
        target_top_probs=floats(tokens, 5),
        branch_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        branch_token=ints(steps),
        branch_confidence=confidences(steps),
        branch_entropy=floats(steps),
        branch_margin=floats(steps),
    ).validate()


def run(
    *,
    repeats: int = 7,
    many: int = MANY,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> bool:
    """Print the table and whether every bar is met; return the latter.

    Args:
        repeats: runs of the short measurements, of which the median counts; one warm-up comes before.
        many: recordings in the long measurement.
    """
    random = np.random.default_rng(seed)
    one = synthetic_recording(random, ONE_TOKENS)
    recordings = [synthetic_recording(random, MANY_TOKENS) for _ in range(many)]
    cells = THRESHOLDS.size * len(MAX_DRAFTS)
    rows = []
    for on_fail in ("drop", "keep"):
        seconds = _median(
            repeats,
            lambda on_fail=on_fail: replay_grid([one], THRESHOLDS, MAX_DRAFTS, on_fail),
        )
        rows.append(
            (
                f"{cells} cells, one recording of {ONE_TOKENS} tokens, {on_fail}",
                seconds,
                ONE_LIMIT_SECONDS,
            )
        )
    start = time.perf_counter()
    grid = replay_grid(recordings, THRESHOLDS, MAX_DRAFTS)
    seconds = time.perf_counter() - start
    rows.append(
        (
            f"{cells} cells, {many} recordings of {MANY_TOKENS} tokens, drop",
            seconds,
            MANY_LIMIT_SECONDS,
        )
    )
    rows.append(
        (
            "breakpoints, one recording of 512 tokens, draft length 16",
            _median(3, lambda: breakpoints(one, 16)),
            None,
        )
    )
    policy = ConfidenceThreshold(0.5)
    rows.append(
        (
            "replay of one cell, 512 tokens",
            _median(repeats, lambda: replay(one, policy, 8)),
            None,
        )
    )

    met = True
    say(f"{'replay on synthetic recordings, one process':62}{'seconds':>10}{'bar':>8}  verdict")
    for name, seconds, limit in rows:
        verdict = "" if limit is None else "met" if seconds <= limit else "missed"
        met &= verdict != "missed"
        say(f"{name:62}{seconds:10.4f}{limit or '':>8}  {verdict}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    met &= peak <= MEMORY_LIMIT_BYTES
    say(
        f"{'peak memory of the process, GB':62}{peak / 1e9:10.2f}{MEMORY_LIMIT_BYTES / 1e9:8}  "
        f"{'met' if peak <= MEMORY_LIMIT_BYTES else 'missed'}"
    )

    checks = 50
    agreeing = sum(_agrees(grid, recordings, random) for _ in range(checks))
    met &= agreeing == checks
    say(
        f"{'cells that equal the one-cell replay in every count':62}{agreeing:>10}{checks:>8}  "
        f"{'met' if agreeing == checks else 'missed'}"
    )
    return met


def _median(repeats: int, function: Callable[[], object]) -> float:
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _agrees(grid, recordings, random: np.random.Generator) -> bool:
    """Whether one random cell of the grid counts what `replay` shows."""
    row, column, depth = (int(random.integers(size)) for size in grid.counts.rounds.shape)
    trace = replay(
        recordings[row],
        ConfidenceThreshold(float(grid.thresholds[column])),
        int(grid.max_drafts[depth]),
    )
    expected = trace_counts(trace, max(MAX_DRAFTS))
    found = grid.counts.map(lambda values: values[row, column, depth])
    return all(np.array_equal(getattr(found, name), value) for name, value in vars(expected).items())
