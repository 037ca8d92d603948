"""`heuristic` and `dynamic` do what `generate(assistant_model=...)` does, seen in its forward calls."""

import copy

import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair

from specviz.bench.assisted import CASES, Watched, compare, our_rounds
from specviz.bench.reporting import Verdicts
from specviz.engine.engine import Engine
from specviz.replay import ConfidenceThreshold
from specviz.replay.policies import DynamicThreshold, Heuristic

NEW_TOKENS, PROMPTS = 40, 20


def prompts():
    source = torch.Generator().manual_seed(0)
    return [torch.randint(3, 270, (3 + number % 9,), generator=source).tolist() for number in range(PROMPTS)]


@pytest.fixture(scope="module")
def pair():
    return tiny_models.tiny_pair("llama", seed=3, ends=True)


def watched(pair, case):
    return Watched(copy.deepcopy(pair.target), copy.deepcopy(pair.draft), case, (0,))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.sklearn_installed}")
def test_rounds_are_those_of_transformers(pair, case):
    theirs, policy = watched(pair, case), case.make_policy()
    engine = Engine(loaded_pair(pair), pass_mode="fast", widest_draft=case.max_draft)
    lengths, seen = set(), 0
    for prompt in prompts():
        output, rounds = theirs.rounds(prompt, NEW_TOKENS)
        assert our_rounds(engine, prompt, policy, case.max_draft, NEW_TOKENS) == (output, rounds)
        lengths |= {proposed for _, proposed, _ in rounds}
        seen += len(rounds)
    assert seen > 10 * PROMPTS and len(lengths) > 3, "nothing varied, so nothing was compared"


@pytest.mark.parametrize("wrong", [Heuristic(6), DynamicThreshold(0.4), ConfidenceThreshold(0.4, "drop")])
def test_the_comparison_sees_another_policy(pair, wrong):
    case = CASES[0] if wrong.name == "dynamic" else CASES[2]
    theirs = watched(pair, case)
    engine = Engine(loaded_pair(pair), pass_mode="fast", widest_draft=case.max_draft)
    assert any(
        our_rounds(engine, prompt, wrong, case.max_draft, NEW_TOKENS) != theirs.rounds(prompt, NEW_TOKENS)
        for prompt in prompts()[:5]
    )


def test_the_bench_compares_every_case_and_sees_another_draft(pair, capsys):
    verdicts = Verdicts()
    compare(verdicts, loaded_pair(pair), loaded_pair(pair), prompts()[:3], 16)
    assert verdicts.all_met and capsys.readouterr().out.count("3 of 3 prompts") == len(CASES)
    other = loaded_pair(tiny_models.tiny_pair("llama", seed=4, ends=True))
    compare(verdicts, other, loaded_pair(pair), prompts()[:3], 16)
    assert not verdicts.all_met
