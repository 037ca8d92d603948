"""Measures what the page Fidelity shows: `python -m specviz.ui.fidelity_data.make [FOLDER]`, on the built-in pair.

Nothing is timed here: speedups are priced with the pass times that the gallery was recorded with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from specviz.analysis.fidelity import DriftedText, RuleDrift, greedy_exactness, test_distribution
from specviz.bench.rules import judged
from specviz.bench.toys import Simulation, outcome_counts, toy_pair
from specviz.engine.acceptance import (
    ACCEPTANCE,
    DRAFT_DRAW,
    OWN_TOKEN,
    POSITION_NOISE,
    judge_by_chance,
)
from specviz.engine.drift import distributions_along, text_drift
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.noise import draw, gumbel, states, uniform
from specviz.models.loading import encode_prompt, load_pair
from specviz.models.sources import BUILTIN_DRAFT, BUILTIN_TARGET
from specviz.models.token_text import TokenText
from specviz.replay import ConfidenceThreshold, Sampling
from specviz.replay.rules import (
    LOSSLESS,
    SHARED_NOISE,
    AcceptanceRule,
    Coupled,
    Lenient,
    Rejection,
    TargetSampleMatch,
    TopK,
    Typical,
)
from specviz.trace.files import whole_file
from specviz.trace.token_bytes import tokens_to_json
from specviz.ui.fidelity_data import FACTS, FOLDER, TABLE, write_drift
from specviz.ui.gallery import load_item
from specviz.ui.gallery.make import PLAN

TEMPERATURE = 0.8
TEXTS, NEW_TOKENS = 6, 48  # from the gallery's prompts
SHOWN = "lighthouse-seal"
GREEDY_PROMPTS, GREEDY_TOKENS = 4, 32
SAMPLES = 50_000
FIRST_TOKEN_CHOICES = 20  # the first token is sampled with this top-k, so that every outcome is drawn often
THRESHOLD, MAX_DRAFT = 0.2, 4  # of the outputs side by side
LOSSLESS_RULES = (Rejection(), Coupled(), TargetSampleMatch())
RULES = (
    *LOSSLESS_RULES,
    *map(Lenient, (1.0, 0.7, 0.5, 0.3, 0.15, 0.05)),
    *map(TopK, (1, 2, 3, 5, 10)),
    *map(Typical, (0.3, 0.09, 0.03, 0.01, 0.003)),
)
TESTED_RULES = (*LOSSLESS_RULES, Lenient(0.5), TopK(3), Typical(0.09))


def make(folder: Path, say: Callable[[str], None] = print) -> None:
    """Measure everything and write both files into `folder`."""
    priced = load_item(SHOWN).recordings  # its times price the rounds, so the pair runs at its precisions
    precisions = priced.pair.target_precision, priced.pair.draft_precision
    engine = Engine(load_pair(BUILTIN_TARGET, BUILTIN_DRAFT, *precisions), pass_mode="fast")
    sampling = Sampling(TEMPERATURE)
    prompts = {item.name: encode_prompt(engine.pair, item.prompt) for item in PLAN[:TEXTS]}

    texts, pictures = [], []
    for seed, (name, ids) in enumerate(prompts.items()):
        settings = Settings(ConfidenceThreshold(0.3), 4, NEW_TOKENS, sampling, seed=seed)
        output = observe_all(engine.speculative(ids, settings), ()).output_ids
        scored = text_drift(engine, ids, output, sampling, RULES)
        texts.append(
            DriftedText(
                len(ids), scored.confidence, scored.entropy,
                scored.accept, scored.kl, scored.total_variation, scored.surprise,
            )
        )  # fmt: skip
        if name == SHOWN:
            pictures = [
                {
                    "emitted": int(token),
                    "ids": scored.top_ids[at].tolist(),
                    "p": [round(float(value), 5) for value in scored.top_p[at]],
                    "q": [round(float(value), 5) for value in scored.top_q[at]],
                }
                for at, token in enumerate(output)
            ]
        say(f"{name}: {len(output)} tokens scored under {len(RULES)} rules")

    tests = {
        "greedy": [_greedy_test(engine, list(prompts.values())[:GREEDY_PROMPTS])],
        "toys": [_toy_test(rule) for rule in TESTED_RULES],
        "first_token": [_first_token_test(engine, prompts[SHOWN], rule) for rule in TESTED_RULES],
    }
    say("Distributions tested")
    outputs = _outputs(engine, prompts[SHOWN], sampling)
    say("Outputs generated")
    used = {token for text in outputs for token in text["output"]}
    used |= {token for picture in pictures for token in (*picture["ids"], picture["emitted"])}
    text_of = TokenText(engine.pair.tokenizer)
    facts = {
        "pair": asdict(engine.pair_info()),
        "temperature": TEMPERATURE,
        "pass_mode": "fast",
        "cost_model": priced.cost_model,
        "tests": tests,
        "prompt": next(item.prompt for item in PLAN if item.name == SHOWN),
        "texts": outputs,
        "pictures": pictures,
        "tokens": tokens_to_json({token: text_of.bytes_of(token) for token in sorted(used)}),
    }
    write_drift(RuleDrift(RULES, tuple(texts)), folder / TABLE)
    with whole_file(folder / FACTS) as temporary:
        temporary.write_text(json.dumps(facts) + "\n", "utf-8")


def _greedy_test(engine: Engine, prompts: list[list[int]]) -> dict:
    outputs, plain, margins = [], [], []
    for ids in prompts:
        trace = engine.trace(ids, Settings(ConfidenceThreshold(0.3), 4, GREEDY_TOKENS))
        emitted = (trace.steps["status"] == "accepted") | (trace.steps["source"] == "target")
        outputs.append(trace.run.output_ids)
        margins.append(trace.steps["target_margin"][emitted].tolist())
        plain.append(observe_all(engine.plain(ids, GREEDY_TOKENS), ()).output_ids)
    found = greedy_exactness(outputs, plain, margins, engine.pair_info())
    return {"title": "greedy", "passed": found.passed, "expected": True, "verdict": found.verdict}


def _toy_test(rule: AcceptanceRule) -> dict:
    return _told(rule, judged(Simulation(toy_pair(8, 8), rule, 0.3, 3), SAMPLES))


def _first_token_test(engine: Engine, prompt_ids: list[int], rule: AcceptanceRule) -> dict:
    """The first token over many seeds: what the engine draws and decides, on the tokens that can come at all."""
    sampling = Sampling(TEMPERATURE, top_k=FIRST_TOKEN_CHOICES)
    p, q = (rows[0].cpu() for rows in next(distributions_along(engine, prompt_ids, [0], sampling)))
    possible = ((p > 0) | (q > 0)).nonzero()[:, 0]
    p, q = p[possible], q[possible]
    seeds = torch.arange(SAMPLES)
    if rule.fixed_output:  # the target's token is drawn by its own noise, whatever is proposed
        noise = gumbel(states(seeds, POSITION_NOISE, len(prompt_ids)), possible)
        tokens = (p.log() + noise).argmax(-1)
        drafted = (q.log() + noise).argmax(-1) if rule.draft_takes == SHARED_NOISE else q.argmax()
        rate = float((tokens == drafted).double().mean())
    else:
        drafted = draw(q.expand(SAMPLES, -1), uniform(seeds, DRAFT_DRAW, 0, 0))
        numbers = torch.stack((uniform(seeds, ACCEPTANCE, 0, 0), uniform(seeds, OWN_TOKEN, 0, 0)), 1)
        rows = p.expand(SAMPLES, 2, -1)
        accepted, own = judge_by_chance(
            rule, rows, q.expand(SAMPLES, 1, -1), drafted[:, None], torch.ones(SAMPLES, dtype=torch.int64), numbers
        )
        tokens = torch.where(accepted > 0, drafted, own)
        rate = float(accepted.double().mean())
    counts = outcome_counts(tokens[:, None], len(possible))
    told = _told(rule, test_distribution(counts.numpy(), p.double().numpy()))
    return told | {"accepted": round(rate, 4)}


def _told(rule: AcceptanceRule, test) -> dict:
    return {
        "title": str(rule),
        "claim": rule.claim,
        "passed": test.passed,
        "expected": rule.claim == LOSSLESS,
        "verdict": test.verdict,
    }


def _outputs(engine: Engine, ids: list[int], sampling: Sampling) -> list[dict]:
    """The same prompt and seed under several rules, beside the target alone."""
    made = []
    for greedy in (True, False):
        used = Sampling() if greedy else sampling
        plain = observe_all(engine.plain(ids, NEW_TOKENS, sampling=used, seed=1), ()).output_ids
        words = "greedy" if greedy else f"temperature {TEMPERATURE:g}"
        made.append(_text(f"The target alone, {words}", LOSSLESS, None, greedy, plain))
        rules = [None] if greedy else [Coupled(), Rejection(), Lenient(0.3), TopK(3), Typical(0.03)]
        for rule in rules:
            settings = Settings(ConfidenceThreshold(THRESHOLD), MAX_DRAFT, NEW_TOKENS, used, rule, 1)
            output = observe_all(engine.speculative(ids, settings), ()).output_ids
            claim = settings.rule.claim
            made.append(_text(f"{settings.rule} ({claim}), {words}", claim, str(settings.rule), greedy, output))
    return made


def _text(title: str, claim: str, rule: str | None, greedy: bool, output) -> dict:
    return {"title": title, "claim": claim, "rule": rule, "greedy": greedy, "output": list(map(int, output))}


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
