"""`bench precision`: is the output independent of the settings at each precision, and where not, how often and why?

At every precision the pair runs in pass mode `invariant`; outputs, and the target's logits at every output position bit
for bit, are compared over thresholds and draft lengths, and traces with their replay. bf16, nf4, fp4 and int8 without
outlier columns (int8+t0) must come out equal. LLM.int8 (Dettmers et al. 2022) chooses outlier columns over all rows of
a pass, so a row depends on its neighbours: for it the flips are counted, with the target's margin at each, and so are
those of a plain text read again in passes of another width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from specviz.bench.exact import logit_digests
from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console, table
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.events import Verified
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.models.precision import precision_problem, rows_are_independent
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import trace_differences

PRECISIONS = ("bf16", "nf4", "fp4", "int8+t0", "int8")
SETTINGS = ((0.0, 1), (0.0, 8), (0.4, 4), (0.7, 8), (1.0, 2))  # threshold, draft length
WIDEST = 8
WIDTH = 5  # of the passes in which a plain text is read again


def run(
    prompts: Sequence[list[int]],
    pair: BenchPair,
    *,
    precisions: Sequence[str] = PRECISIONS,
    max_new_tokens: int = 48,
) -> bool:
    """Print a table and verdicts; whether everything that must hold holds."""
    verdicts = Verdicts()
    engine = None
    shown = table(
        f"Runs that differ, {len(prompts)} prompts of up to {max_new_tokens} new tokens",
        "precision",
        "outputs",
        "logits",
        "replays",
        f"flips in passes of {WIDTH}",
        "margin of flips: median, largest",
    )
    for precision in precisions:
        if problem := precision_problem(precision, pair.device):
            console.print(f"{precision} was left out: {problem}", markup=False)
            continue
        engine = Engine(replace(pair, precision=precision).load(), pass_mode="invariant", widest_draft=WIDEST)
        runs = len(prompts) * len(SETTINGS)
        outputs = logits = replays = positions = 0
        flips: list[float] = []
        for number, prompt in enumerate(prompts):
            found = _compare_settings(engine, prompt, max_new_tokens)
            outputs, logits, replays = (a + b for a, b in zip((outputs, logits, replays), found, strict=True))
            read, flipped = _read_again(engine, prompt, max_new_tokens)
            positions += read
            flips += flipped
            console.print(
                f"{precision}: prompt {number + 1} of {len(prompts)}; so far differ {outputs} outputs, {logits} logits "
                f"and {replays} replays of {(number + 1) * len(SETTINGS)} runs; {len(flips)} flips of {positions}"
            )
        margins = f"{median(flips):.3f}, {max(flips):.3f}" if flips else "–"
        shown.add_row(
            precision,
            f"{outputs} of {runs}",
            f"{logits} of {runs}",
            f"{replays} of {runs}",
            f"{len(flips)} of {positions}",
            margins,
        )
        if rows_are_independent(precision):
            figure = f"{outputs} outputs, {logits} logits and {replays} replays of {runs} runs differ"
            verdicts.check(f"{precision}: equal bit for bit for all settings", outputs + logits + replays == 0, figure)
    if engine is None:
        raise SpecVizError("None of these precisions can run here, so nothing was measured; choose others.")
    console.print(f"{engine.pair.name}, {engine.pair_info().device}", markup=False)
    console.print(shown)
    return verdicts.all_met


def _compare_settings(engine: Engine, prompt: list[int], max_new_tokens: int) -> tuple[int, int, int]:
    """How many settings differ from the first in their output and in their logits, and from their replay."""
    recording = record(engine, prompt, max_new_tokens=max_new_tokens, max_draft=WIDEST, method="exact")
    reference = None
    outputs = logits = replays = 0
    for threshold, max_draft in SETTINGS:
        policy = ConfidenceThreshold(threshold)
        digests: list[str] = []
        observe = (lambda event, digests=digests: logit_digests(engine, event, digests),)
        trace = engine.trace(prompt, Settings(policy, max_draft, max_new_tokens), observers=observe)
        replays += bool(trace_differences(trace, replay(recording, policy, max_draft)))
        reference = reference or (trace.run.output_ids, digests)
        outputs += trace.run.output_ids != reference[0]
        logits += digests != reference[1]
    return outputs, logits, replays


@torch.inference_mode()
def _read_again(engine: Engine, prompt: list[int], max_new_tokens: int) -> tuple[int, list[float]]:
    """Write plainly, one token a pass, and read that text again in passes of `WIDTH`.

    Returns:
        The positions read, and the target's margin (logits, when writing) at each where its most likely token differs.
    """
    margins: list[float] = []

    def keep(event) -> None:
        if isinstance(event, Verified):
            margins.append(event.target_margins[0])

    output = list(observe_all(engine.plain(prompt, max_new_tokens), (keep,)).output_ids)
    runner = engine.target_runner.fork(None)
    runner.begin(len(prompt) + len(output))
    runner.prefill(prompt[:-1])
    fed, said = [prompt[-1], *output[:-1]], []
    for first in range(0, len(fed), WIDTH):
        said += runner.logits(runner.forward(fed[first : first + WIDTH])).argmax(-1).tolist()
    return len(output), [margin for margin, a, b in zip(margins, said, output, strict=True) if a != b]
