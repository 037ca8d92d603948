"""`bench exact`: does the output depend on the settings, and is it what transformers' `generate` gives?

Part 1, at the given precision in pass mode `invariant`: every threshold and draft length, the failing token withheld
on every other prompt and proposed on the rest; outputs compared, and the target's logits at every output position
compared bit for bit. Part 2: outputs of both pass modes (`fast`: a third of the settings on each prompt, in turn)
against greedy `generate` of an untouched copy of the target; a difference is a near-tie when the target's own margin
there is below what rounding can change, and is listed with it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import torch

from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts, console, table
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.events import Event, Verified
from specviz.models.loading import load_model
from specviz.replay import ConfidenceThreshold
from specviz.trace import near_tie_epsilons

THRESHOLDS = (0.0, 0.3, 0.6, 0.9, 1.0)
DRAFT_LENGTHS = (1, 2, 4, 8, 16)
WIDEST = 16
SHARE = 3  # in pass mode `fast` a prompt is run with one setting in three, another third from prompt to prompt


def run(
    prompts: Sequence[list[int]],
    pair: BenchPair,
    *,
    max_new_tokens: int = 64,
) -> bool:
    """Print both parts and verdicts; whether everything holds."""
    verdicts = Verdicts()
    loaded = pair.load()
    engine = Engine(loaded, pass_mode="invariant", widest_draft=WIDEST)
    fast = Engine(loaded, pass_mode="fast")
    info = engine.pair_info()
    console.print(
        f"{loaded.name}, {pair.precision}, {info.device}, {len(prompts)} prompts of {max_new_tokens} new tokens"
    )
    settings = {
        on_fail: [
            Settings(ConfidenceThreshold(t, on_fail), g, max_new_tokens)
            for t, g in itertools.product(THRESHOLDS, DRAFT_LENGTHS)
        ]
        for on_fail in ("drop", "keep")
    }

    other_outputs = other_logits = 0
    outputs, margins = [], []
    for number, prompt in enumerate(prompts):
        reference = None
        for setting in settings["keep" if number % 2 else "drop"]:
            digests: list[str] = []
            trace = engine.trace(prompt, setting, observers=(lambda event, d=digests: logit_digests(engine, event, d),))
            found = (trace.run.output_ids, digests)
            if reference is None:
                reference = found
                margins.append(_margins(trace))
            other_outputs += found[0] != reference[0]
            other_logits += found[1] != reference[1]
        outputs.append(list(reference[0]))
        console.print(
            f"prompt {number + 1} of {len(prompts)}: {other_outputs} outputs, {other_logits} logits differ so far"
        )
    runs = len(prompts) * len(settings["drop"])
    verdicts.check("outputs equal for all settings", other_outputs == 0, f"{other_outputs} of {runs} runs differ")
    verdicts.check(
        "target logits bitwise equal for all settings", other_logits == 0, f"{other_logits} of {runs} runs differ"
    )

    epsilon = near_tie_epsilons(info)[1]
    untouched = load_model(pair.target, pair.precision, pair.device).model
    differences = table("First differences from generate", "prompt", "pass mode", "position", "margin", "near-tie")
    explained = equal = compared = 0
    for number, (prompt, ours, margin) in enumerate(zip(prompts, outputs, margins, strict=True)):
        theirs = _generate(untouched, prompt, max_new_tokens, engine.eos_ids)
        found = [("invariant", ours)]
        for setting in settings["keep" if number % 2 else "drop"][number % SHARE :: SHARE]:
            found.append(("fast", list(observe_all(fast.speculative(prompt, setting), ()).output_ids)))
        for mode, output in found:
            compared += 1
            if output == theirs:
                equal += 1
                continue
            position = next(i for i, (a, b) in enumerate(itertools.zip_longest(output, theirs)) if a != b)
            near = margin[position] < epsilon if position < len(margin) else False
            explained += near
            shown = margin[position] if position < len(margin) else float("nan")
            differences.add_row(str(number), mode, str(position), f"{shown:.4f}", "yes" if near else "no")
    if equal < compared:
        console.print(differences)
    verdicts.check(
        f"outputs equal generate up to near-ties (margin below {epsilon})",
        equal + explained == compared,
        f"{equal} of {compared} equal, {explained} differ at a near-tie",
    )
    return verdicts.all_met


@torch.inference_mode()
def logit_digests(engine: Engine, event: Event, digests: list[str]) -> None:
    """Append a hash of the target's logits at each output position that a round decided."""
    if isinstance(event, Verified):
        logits = engine.target_runner.logits(event.hidden)
        known = event.accepted + (event.target_token is not None)
        digests += [hashlib.blake2b(row.cpu().numpy().tobytes(), digest_size=16).hexdigest() for row in logits[:known]]


def _margins(trace) -> list[float]:
    """The target's margin at every output position."""
    steps = trace.steps
    decided = (steps["status"] == "accepted") | (steps["source"] == "target")
    return steps["target_margin"][decided].tolist()


def _generate(model, prompt: list[int], max_new_tokens: int, eos_ids: frozenset[int]) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(eos_ids),
        pad_token_id=min(eos_ids),
    )
    return output[0, len(prompt) :].tolist()
