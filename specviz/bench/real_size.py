"""`compare --random`: times of a pair of real size with random weights, and what it would gain at forced agreement.

Measured are the passes of every combination of precisions, taking turns, on the device. Agreement cannot be measured
without trained weights, so it is forced: the draft is right with a fixed chance at every position, independently. That
is the assumption this project otherwise refuses (real acceptances come in runs), good enough to compare precisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from specviz.analysis.calibrated import cost_models
from specviz.analysis.curves import grid
from specviz.engine.decoding import never
from specviz.engine.engine import Engine, Settings
from specviz.engine.precision_comparison import Combination
from specviz.engine.random_pair import FORCED_RATES, forced_recordings, random_pair
from specviz.measure.costs import steady_samples

CONTEXTS = (32, 256, 1024)
FORCED_TOKENS = 128


def run(
    size: str,
    combinations: Sequence[Combination],
    *,
    device: str = "auto",
    pass_mode: str = "fast",
    max_draft: int = 8,
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> pd.DataFrame:
    """One row per combination and forced agreement rate.

    Columns: combination, size, memory_bytes, target_pass_ms and draft_step_ms (over one token, shortest context),
    widest_pass_ms (over max_draft + 1 tokens), plain_tokens_per_second, forced_agreement, max_draft (the best draft
    length), tokens_per_second and speedup there (over its own plain decoding), pass_mode, device.
    """
    engines, memory = [], []
    for place, each in enumerate(combinations):
        progress(f"Making {each}", place / len(combinations))
        pair = random_pair(size, each.target, each.draft, device)
        memory.append(pair.memory_bytes)  # before the engine repacks the weights
        engines.append(Engine(pair, pass_mode=pass_mode, widest_draft=max_draft))
    samples = steady_samples(engines, contexts=CONTEXTS, max_draft=max_draft, stopped=stopped, progress=progress)
    rows = []
    for each, engine, taken, cost in zip(combinations, engines, memory, cost_models(samples), strict=True):
        times = cost.mode(pass_mode)
        for rate in FORCED_RATES:
            recordings = forced_recordings(
                engine.pair_info(), engine.fixed_settings(Settings()), rate, tokens=FORCED_TOKENS, max_draft=max_draft
            )
            cells = grid(recordings.recordings, cost, thresholds=[0.0], pass_mode=pass_mode)
            best = int(np.argmax(cells.speedup[0]))
            tokens = sum(len(recording.output_ids) for recording in recordings.recordings)
            rows.append(
                {
                    "combination": str(each),
                    "size": size,
                    "memory_bytes": taken,
                    "target_pass_ms": 1e3 * times.plain_step.median[0],
                    "widest_pass_ms": 1e3 * times.target_pass.median[-1, 0],
                    "draft_step_ms": 1e3 * times.draft_step.median[0, 0],
                    "plain_tokens_per_second": tokens / cells.plain_seconds.sum(),
                    "forced_agreement": rate,
                    "max_draft": int(cells.max_drafts[best]),
                    "tokens_per_second": tokens / cells.seconds[:, 0, best].sum(),
                    "speedup": cells.speedup[0, best],
                    "pass_mode": pass_mode,
                    "device": cost.pair.device,
                }
            )
    return pd.DataFrame(rows)
