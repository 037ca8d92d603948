"""A slice of every full measurement on a small saved pair: that it runs, what it prints, and that it can fail."""

from dataclasses import replace

import pytest
import tiny_models

from specviz.bench import engine as bench_engine
from specviz.bench import equality as bench_equality
from specviz.bench import exact as bench_exact
from specviz.bench import predict as bench_predict
from specviz.bench import sampling as bench_sampling
from specviz.bench import speedup as bench_speedup
from specviz.bench.pair import BenchPair
from specviz.engine.acceptance import GreedyRule
from specviz.replay import replay, replay_expected

PROMPTS = [[11, 7, 42, 99, 5], [5, 6, 7]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    target, draft = tiny_models.save_pair(tmp_path_factory.mktemp("pair"), "llama")
    return BenchPair(str(target), str(draft))


@pytest.fixture
def few_settings(monkeypatch):
    monkeypatch.setattr(bench_exact, "THRESHOLDS", (0.0, 0.6))
    monkeypatch.setattr(bench_exact, "DRAFT_LENGTHS", (1, 16))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_exact_holds_on_a_small_pair(pair, few_settings, precision, capsys):
    assert bench_exact.run(PROMPTS, replace(pair, precision=precision), max_new_tokens=16)
    assert "NOT MET" not in capsys.readouterr().out


def test_exact_fails_for_a_rule_that_accepts_a_token_too_many(pair, few_settings, monkeypatch):
    judge = GreedyRule.judge

    def generous(self, logits, proposal, text):
        verdict = judge(self, logits, proposal, text)
        return replace(verdict, accepted=min(len(proposal), verdict.accepted + 1))

    monkeypatch.setattr(GreedyRule, "judge", generous)
    assert not bench_exact.run(PROMPTS[:1], pair, max_new_tokens=16)


def test_replay_equals_the_engine_and_a_wrong_replay_does_not(pair, monkeypatch, capsys):
    monkeypatch.setattr(bench_equality, "THRESHOLDS", (0.0, 0.4))
    monkeypatch.setattr(bench_equality, "DRAFT_LENGTHS", (3,))
    bench_equality.run(PROMPTS[:1], pair, max_new_tokens=16, cost_tokens=16)
    assert "met      replayed traces equal the engine's: 2 of 2" in capsys.readouterr().out
    monkeypatch.setattr(bench_equality, "replay", lambda recording, policy, gamma: replay(recording, policy, gamma + 1))
    bench_equality.run(PROMPTS[:1], pair, max_new_tokens=16, cost_tokens=16)
    assert "NOT MET  replayed traces" in capsys.readouterr().out


def test_speedup_measures_the_best_setting_by_category(pair, capsys):
    bench_speedup.run(PROMPTS, ["chat", "code"], pair, max_new_tokens=12)
    printed = capsys.readouterr().out
    for words in ("chat", "code", "all", "measured speedup at least 1.05"):
        assert words in printed


def test_engine_compares_with_generate(pair, capsys):
    bench_engine.run(PROMPTS, pair, max_new_tokens=8, max_draft=3, repeats=2)
    printed = capsys.readouterr().out
    for way in (
        "generate, assisted, constant",
        "generate, assisted, defaults",
        "ours, plain",
        "ours, speculative, fast",
    ):
        assert way in printed
    assert "memory limit" in printed and "trace recorder" in printed


@pytest.mark.slow
def test_predict_lines_up_twelve_settings(pair, capsys):
    bench_predict.run(PROMPTS, pair, max_new_tokens=12)
    printed = capsys.readouterr().out
    assert sum(line.lstrip().startswith("0.") and "%" in line for line in printed.splitlines()) == 12
    assert "absolute error" in printed


def test_sampled_traces_equal_their_replay_and_a_wrong_replay_does_not(pair, monkeypatch, capsys):
    monkeypatch.setattr(bench_sampling, "TEMPERATURES", (0.7,))
    monkeypatch.setattr(bench_sampling, "THRESHOLDS", (0.0, 0.4))
    monkeypatch.setattr(bench_sampling, "DRAFT_LENGTHS", (3,))
    assert bench_sampling.run(PROMPTS[:1], pair, parts=["replay"], max_new_tokens=12)
    assert "one output for every setting: 2 of 2" in capsys.readouterr().out
    monkeypatch.setattr(bench_sampling, "replay", lambda recording, policy, gamma: replay(recording, policy, gamma + 1))
    assert not bench_sampling.run(PROMPTS[:1], pair, parts=["replay"], max_new_tokens=12)


@pytest.mark.slow
def test_expectations_are_those_of_real_runs_and_wrong_ones_are_not(pair, monkeypatch):
    monkeypatch.setattr(bench_sampling, "EXPECTED_SETTINGS", ((0.0, 3),))
    assert bench_sampling.run(PROMPTS[:1], pair, parts=["expectation"], runs=60)
    monkeypatch.setattr(
        bench_sampling, "replay_expected", lambda recording, policy, gamma: replay_expected(recording, policy, 1)
    )
    assert not bench_sampling.run(PROMPTS[:1], pair, parts=["expectation"], runs=60)


def test_rounds_of_both_rules_are_timed(pair, capsys):
    bench_sampling.run(PROMPTS[:1], pair, parts=["rounds"], repeats=1)
    assert "ms greedy (n = " in capsys.readouterr().out
