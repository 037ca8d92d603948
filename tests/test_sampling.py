"""Sampling: transformers' processors, temperature 0, seeds, replay of coupled recordings, expectations of others."""

import copy

import numpy as np
import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair
from transformers import GenerationConfig

from specviz.analysis.fidelity import test_distribution as distribution_test
from specviz.engine.acceptance import DrawnRule
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.processing import Processing
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, Policy, Sampling, replay, replay_expected, trace_counts
from specviz.replay.policies import LlamaCpp
from specviz.replay.rules import RULES, Coupled, Greedy, Lenient, Rejection, TargetSampleMatch
from specviz.trace import read_recordings, read_trace_csv, trace_differences, write_recordings, write_trace_csv
from specviz.trace.recording import RecordingSet

PROMPT = [11, 7, 42, 99, 5]
NEW_TOKENS = 32
TEMPERATURES = (0.3, 0.7, 1.0, 1.5)


@pytest.fixture(scope="module")
def engine():
    return Engine(loaded_pair(tiny_models.tiny_pair("llama", ends=True)), pass_mode="fast")


@pytest.fixture(scope="module")
def invariant():
    return Engine(loaded_pair(tiny_models.tiny_pair("qwen2")), pass_mode="invariant", widest_draft=8)


def output(engine, policy=None, max_draft=4, tokens=NEW_TOKENS, **settings):
    return engine.trace(
        PROMPT, Settings(policy or ConfidenceThreshold(0.3), max_draft, tokens, **settings)
    ).run.output_ids


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 7},
        {"temperature": 0.9, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 0.8, "repetition_penalty": 1.3},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 0.8},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 10_000},
    ],
)
def test_logits_are_processed_as_transformers_processes_them(values):
    model = tiny_models.tiny_pair("llama").target
    config = GenerationConfig(**{"do_sample": True, "top_k": 0, "top_p": 1.0, **values})
    theirs = model._get_logits_processor(config, input_ids_seq_length=3)
    logits = 4 * torch.randn(3, 280, generator=torch.Generator().manual_seed(1))
    logits[0, :5] = -torch.inf
    contexts = [[5, 9], [5, 9, 200], [5, 9, 200, 5]]
    ours = Processing(Sampling(**values))(logits, contexts)
    for row, context in enumerate(contexts):
        expected = theirs(torch.tensor([context]), logits[row : row + 1].clone())
        assert torch.equal(ours[row : row + 1], expected)


def test_a_reduced_head_is_penalised_by_token_not_by_row(engine):
    head = copy.copy(engine.draft_runner.head)
    head._cover(torch.tensor([7, 200, 9]))
    head.vocabulary = 201
    logits = torch.tensor([[1.0, -1.0, 2.0]])
    found = Processing(Sampling(repetition_penalty=2), head)(logits, [[200, 5, 9]])
    assert found.tolist() == [[1.0, -2.0, 1.0]]


@pytest.mark.parametrize("rule", [rule() for rule in RULES.values()], ids=str)
def test_temperature_0_is_greedy_under_every_rule(engine, rule):
    greedy = output(engine)
    assert output(engine, sampling=Sampling(0.0), rule=rule, seed=9) == greedy
    if not isinstance(rule, Greedy):
        assert output(engine, sampling=Sampling(1e-5), rule=rule, seed=9) == greedy
        assert output(engine, sampling=Sampling(1.0, top_k=1), rule=rule, seed=9) == greedy
        assert output(engine, sampling=Sampling(1.0, top_p=0.0), rule=rule, seed=9) == greedy
    plain = observe_all(engine.plain(PROMPT, NEW_TOKENS, sampling=Sampling(1.0, top_k=1)), ()).output_ids
    assert plain == greedy


def test_certain_tokens_have_no_rival_and_survive_their_files(engine, tmp_path):
    """At top-k 1 every other logit is -inf, so margins are infinite: no near-tie, and readable again."""
    settings = Settings(ConfidenceThreshold(0.3), 4, 16, Sampling(1.0, top_k=1), Coupled(), 3)
    trace = engine.trace(PROMPT, settings)
    margins = trace.steps["target_margin"]
    assert np.isinf(margins[~np.isnan(margins)]).all() and not trace.steps["near_tie"].any()
    assert (trace.steps["confidence"][trace.steps["source"] == "draft"] == 1).all()
    write_trace_csv(trace, tmp_path / "trace", lambda token: b"x")
    assert trace_differences(read_trace_csv(tmp_path / "trace")[0], trace) == []
    recording = record(engine, PROMPT, max_new_tokens=16, max_draft=4, sampling=settings.sampling, seed=3)
    write_recordings(RecordingSet([recording]), tmp_path / "set.parquet")
    assert read_recordings(tmp_path / "set.parquet").recordings[0] == recording
    assert trace_differences(trace, replay(recording, settings.policy, 4)) == []


def test_greedy_with_a_repetition_penalty_is_generates(engine):
    model = tiny_models.tiny_pair("llama", ends=True).target
    ids = torch.tensor([PROMPT])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                            repetition_penalty=1.4)[0, len(PROMPT) :]  # fmt: skip
    ours = output(engine, sampling=Sampling(repetition_penalty=1.4))
    assert list(ours) == theirs.tolist()
    assert ours != output(engine)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [None, Rejection(), Lenient(0.3)], ids=str)
def test_a_seed_reproduces_a_run_and_another_does_not(engine, rule):
    sampling = Sampling(1.0)
    first = output(engine, sampling=sampling, rule=rule, seed=5)
    assert output(engine, sampling=sampling, rule=rule, seed=5) == first
    assert output(engine, sampling=sampling, rule=rule, seed=6) != first


@pytest.mark.parametrize("rule", [Coupled(), TargetSampleMatch()], ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_fixed_output_does_not_depend_on_how_it_was_drafted(invariant, rule, temperature):
    sampling = Sampling(temperature, top_p=0.95)
    outputs = {
        output(invariant, ConfidenceThreshold(tau, on_fail), gamma, 20, sampling=sampling, rule=rule, seed=3)
        for tau, gamma, on_fail in ((0.0, 8, "drop"), (0.2, 3, "keep"), (0.5, 1, "drop"), (1.0, 5, "drop"))
    }
    assert len(outputs) == 1
    assert outputs == {observe_all(invariant.plain(PROMPT, 20, sampling=sampling, seed=3), ()).output_ids}


@pytest.mark.parametrize("rule", [Coupled(), TargetSampleMatch()], ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_replay_equals_the_engine_while_sampling(engine, rule, temperature):
    sampling = Sampling(temperature, repetition_penalty=1.1)
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8, sampling=sampling, rule=rule, seed=4)
    assert (recording.draft_token != recording.output_ids).any()
    for tau, gamma, on_fail in (
        (0.0, 8, "drop"),
        (0.2, 5, "drop"),
        (0.4, 3, "keep"),
        (0.6, 1, "drop"),
        (1.0, 2, "drop"),
    ):
        policy = ConfidenceThreshold(tau, on_fail)
        real = engine.trace(PROMPT, Settings(policy, gamma, NEW_TOKENS, sampling, rule, 4))
        assert trace_differences(real, replay(recording, policy, gamma), confidence_tolerance=1e-4) == []
        assert real.run.seed == 4 and real.run.settings["sampling"]["temperature"] == temperature


def test_an_exact_coupled_recording_equals_the_engine_in_bf16_to_the_bit():
    pair = tiny_models.with_dtype(tiny_models.tiny_pair("llama"), torch.bfloat16)
    engine = Engine(loaded_pair(pair), pass_mode="invariant", widest_draft=8)
    sampling = Sampling(0.9, top_k=40)
    recording = record(engine, PROMPT, max_new_tokens=24, max_draft=8, method="exact", sampling=sampling, seed=1)
    for tau, gamma in ((0.0, 8), (0.3, 4)):
        policy = ConfidenceThreshold(tau)
        real = engine.trace(PROMPT, Settings(policy, gamma, 24, sampling, seed=1))
        assert trace_differences(real, replay(recording, policy, gamma)) == []


def test_a_draft_of_reduced_vocabulary_samples_and_replays(tmp_path):
    from specviz.models.draft_model import DraftConfig, DraftModel  # noqa: F401  (a tiny one is made below)

    pair = tiny_models.tiny_pair("llama")
    engine = Engine(loaded_pair(pair), pass_mode="fast")
    head = engine.draft_runner.head
    kept = sorted(set(range(0, 280, 2)) | {7, 99})
    original = type(head).__call__
    head._cover(torch.tensor(kept))
    head.__class__ = type("Reduced", (type(head),), {"__call__": lambda self, hidden: original(self, hidden)[:, kept]})
    for rule in (Coupled(), Rejection(), Lenient(0.5)):
        trace = engine.trace(PROMPT, Settings(FixedLength(), 4, 24, Sampling(1.0), rule, 2))
        drafted = trace.steps["token"][trace.steps["source"] == "draft"]
        assert set(drafted.tolist()) <= set(kept)
        assert (trace.rounds["accepted"] > 0).any()
    recording = record(engine, PROMPT, max_new_tokens=24, max_draft=4, sampling=Sampling(1.0), seed=2)
    real = engine.trace(PROMPT, Settings(ConfidenceThreshold(0.1), 4, 24, Sampling(1.0), seed=2))
    assert trace_differences(real, replay(recording, ConfidenceThreshold(0.1), 4), confidence_tolerance=1e-4) == []


@pytest.mark.slow
def test_first_tokens_of_a_real_pair_have_the_targets_distribution(engine):
    """Rejection through the whole engine, against transformers' own logits of the untouched target."""
    sampling = Sampling(0.8, top_k=8)
    target = tiny_models.tiny_pair("llama", ends=True).target
    with torch.no_grad():
        exact = Processing(sampling)(target(torch.tensor([PROMPT])).logits[0, -1:], [PROMPT]).softmax(-1)[0].double()
    counts = np.zeros(280)
    for seed in range(400):
        counts[output(engine, ConfidenceThreshold(0.1), 2, 2, sampling=sampling, rule=Rejection(), seed=seed)[0]] += 1
    test = distribution_test(counts, exact.numpy())
    assert test.passed, test.verdict
    assert not distribution_test(counts, np.roll(exact.numpy(), 1)).passed


# --- expectations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_fail", ["drop", "keep"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8)], ids=["greedy", "coupled"])
def test_expected_counts_of_fixed_output_are_those_of_the_replay(engine, sampling, on_fail):
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8, sampling=sampling, seed=1)
    for tau, gamma in ((0.0, 8), (0.2, 3), (0.5, 5), (1.0, 2)):
        policy = ConfidenceThreshold(tau, on_fail)
        exact = trace_counts(replay(recording, policy, gamma))
        found = replay_expected(recording, policy, gamma)
        for name in type(exact).__dataclass_fields__:
            np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_expected_rounds_given_the_text_are_those_of_many_runs(engine):
    """Real runs under rejection: counts minus their expectation given each run's own text average to nothing."""
    sampling, runs = Sampling(0.9), 120
    differences = {"rounds": [], "accepted": [], "proposed": [], "draft_steps": [], "two_token_steps": []}
    policy = ConfidenceThreshold(0.15)
    for seed in range(runs):
        trace = engine.trace(PROMPT, Settings(policy, 3, 8, sampling, Rejection(), seed))
        recording = record(
            engine, PROMPT, max_new_tokens=8, max_draft=3, sampling=sampling, rule=Rejection(), seed=seed, policy=policy
        )
        assert tuple(recording.output_ids) == trace.run.output_ids  # max_draft 3 too, so it is the same run
        found, expected = trace_counts(trace), replay_expected(recording, policy, 3)
        for name, values in differences.items():
            values.append(float(getattr(found, name)) - float(getattr(expected, name)))
    for name, values in differences.items():
        error = np.std(values, ddof=1) / runs**0.5
        assert error > 0 and abs(np.mean(values)) < 3.5 * error, name


def test_rejection_is_not_replayed_and_lossy_is_not_recorded(engine):
    recording = record(engine, PROMPT, max_new_tokens=8, sampling=Sampling(1.0), rule=Rejection())
    with pytest.raises(SpecVizError, match="by chance"):
        replay(recording, FixedLength(), 4)
    with pytest.raises(SpecVizError, match="lossless"):
        record(engine, PROMPT, max_new_tokens=8, sampling=Sampling(1.0), rule=Lenient())

    class Learns(FixedLength):
        def end_round(self, proposed, accepted, tokens):
            pass

    with pytest.raises(SpecVizError, match="accepted before"):
        replay_expected(recording, Learns(), 4)
    assert Policy.end_round(Learns(), 1, 1, []) is None


def test_a_recording_of_the_first_schema_reads_as_before(engine, tmp_path, monkeypatch):
    recording = record(engine, PROMPT, max_new_tokens=8)
    np.testing.assert_array_equal(recording.target_prob_of_emitted, recording.target_top_probs[:, 0])
    from specviz.trace import parquet

    types = {name: kind for name, kind in parquet.ARRAY_TYPES.items() if name != "target_prob_of_emitted"}
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "ARRAY_TYPES", types)
        patch.setattr(parquet, "SCHEMA_VERSION", 1)
        write_recordings(RecordingSet([recording]), tmp_path / "old.parquet")
    assert read_recordings(tmp_path / "old.parquet").recordings[0] == recording


# --- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e-9},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_k": float("inf")},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
    ],
)
def test_wrong_sampling_is_a_sentence(values):
    with pytest.raises(SpecVizError) as error:
        Sampling(**values)
    assert str(error.value).endswith(".")


def test_a_seed_that_is_no_64_bit_number_is_a_sentence():
    with pytest.raises(SpecVizError, match="The seed is 1000"):
        Settings(sampling=Sampling(1.0), seed=10**20)
    assert Settings(sampling=Sampling(1.0), seed=-5).seed == -5


def test_at_temperature_0_a_rule_by_another_name_is_greedy_and_replays(engine):
    recording = record(engine, PROMPT, max_new_tokens=8, max_draft=4, rule=Lenient(0.3))
    assert recording.settings["rule"] == "greedy" and "lenience" not in recording.settings
    real = engine.trace(PROMPT, Settings(ConfidenceThreshold(0.3), 4, 8, rule=Rejection()))
    assert trace_differences(real, replay(recording, ConfidenceThreshold(0.3), 4), confidence_tolerance=1e-4) == []


def test_a_policy_that_takes_drawn_tokens_back_is_refused_where_chance_decides():
    with pytest.raises(SpecVizError, match="withholds tokens"):
        Settings(LlamaCpp(), sampling=Sampling(1.0), rule=Rejection())
    Settings(LlamaCpp(), sampling=Sampling(1.0))


def test_greedy_with_a_temperature_is_refused(engine):
    with pytest.raises(SpecVizError, match="coupled"):
        output(engine, sampling=Sampling(0.7), rule=Greedy())
    assert isinstance(engine.rule_at_work(Settings(sampling=Sampling(0.5), rule=Rejection()), PROMPT), DrawnRule)
