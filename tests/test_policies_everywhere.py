"""Every policy: settings, replay against the slow reference, counts against traces, and the engine's own traces."""

import inspect
import json

import numpy as np
import pytest
import tiny_models
from analysis_helpers import EOS, toy_recordings
from engine_helpers import loaded_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_samples import POLICIES, one_of_each
from reference_round import random_toy, recording_from_toy, reference_trace
from sklearn.metrics import roc_curve

from specviz.analysis.oracle import optimal_oracles, stop_oracles
from specviz.engine.engine import Engine, Settings
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.replay import POLICIES as REGISTRY
from specviz.replay import PolicyReplayer, policy_from_settings, replay, trace_counts
from specviz.replay.contexts import AFTER_PUNCTUATION as PUNCTUATION
from specviz.replay.contexts import (
    CODE,
    ELSEWHERE,
    INSIDE_WORD,
    NUMBER,
    REPEATED,
    SENTENCE_START,
    ContextTracker,
    vocabulary_flags,
)
from specviz.replay.policies.adaptive import cheapest_threshold
from specviz.trace import trace_differences


def test_there_is_a_sample_of_every_policy_but_the_oracles():
    names = {policy.name for policy in one_of_each()}
    assert names | {"stop_oracle", "optimal_oracle"} == set(REGISTRY)
    assert all(inspect.getdoc(policy) for policy in REGISTRY.values())


@settings(max_examples=100, deadline=None)
@given(POLICIES)
def test_settings_are_json_and_invert(policy):
    written = json.loads(json.dumps(policy.settings()))
    assert policy_from_settings(written) == policy
    assert policy_from_settings(written).settings() == policy.settings()


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    tokens=st.integers(1, 40),
    gamma=st.integers(1, 16),
    policy=POLICIES,
)
def test_replay_equals_the_reference_under_every_policy(seed, agreement, tokens, gamma, policy):
    toy = random_toy(seed, agreement=agreement)
    recording = recording_from_toy(*toy, 16, tokens, EOS, (3, 1))
    # State may outlive a generation, so each side has its own object and meets the prompt twice.
    mine, reference = policy_from_settings(policy.settings()), policy_from_settings(policy.settings())
    for _ in range(2):
        replayed = replay(recording, mine, gamma)
        expected = reference_trace(*toy, reference, gamma, tokens, EOS, (3, 1))
        assert trace_differences(replayed, expected) == []
        np.testing.assert_array_equal(replayed.rounds["withheld"], expected.rounds["withheld"])
        np.testing.assert_array_equal(replayed.steps["near_tie"], expected.steps["near_tie"])


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 40), gamma=st.integers(1, 8), policy=POLICIES)
def test_counts_without_traces_are_those_of_the_traces(seed, tokens, gamma, policy):
    recordings = toy_recordings(seed, [0.4, 0.8, 1.0], tokens)
    counts = PolicyReplayer(recordings, gamma).counts(policy_from_settings(policy.settings()))
    for row, recording in enumerate(recordings):
        expected = trace_counts(replay(recording, policy, gamma))
        for name, value in vars(expected).items():
            np.testing.assert_array_equal(getattr(counts, name)[row], value, err_msg=name)


PROMPTS = [[11, 7, 42, 99, 5], [60, 61, 62]]


@pytest.mark.parametrize(("family", "ends"), [("llama", True), ("gpt2", False), ("qwen2", False)])
def test_every_policy_replays_as_the_engine_runs_it(family, ends):
    engine = Engine(loaded_pair(tiny_models.tiny_pair(family, ends=ends)), pass_mode="fast")
    recordings = [record(engine, prompt, max_new_tokens=32) for prompt in PROMPTS]
    replayer = PolicyReplayer(recordings, 6)
    cost = _any_cost()
    pairs = [([policy] * 2, [policy_from_settings(policy.settings())] * 2) for policy in one_of_each()]
    for oracles in (stop_oracles(replayer), optimal_oracles(replayer, cost, "fast")):
        pairs.append((oracles, [policy_from_settings(oracle.settings()) for oracle in oracles]))
    stopped = set()
    for ours, theirs in pairs:
        # One prompt after the other: what a policy carries on from one to the next must be the same on both sides.
        for recording, in_replay, in_engine in zip(recordings, ours, theirs, strict=True):
            real = engine.trace(recording.prompt_ids.tolist(), Settings(in_engine, 6, 32))
            replayed = replay(recording, in_replay, 6)
            assert trace_differences(real, replayed, confidence_tolerance=1e-4) == [], in_replay
            assert replayed.run.output_ids == tuple(recording.output_ids.tolist())
            stopped |= set(replayed.rounds["stop_reason"])
    assert stopped >= set(REGISTRY) - {"fixed", "heuristic"}, "a policy that never stopped was not tested"


def _any_cost():
    from analysis_helpers import flat_cost

    return flat_cost(verify=np.linspace(1, 2, 17), draft=0.2, two=0.25)


def test_the_comparison_sees_a_policy_whose_state_differs():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    recording = record(engine, PROMPTS[0], max_new_tokens=32)
    policy = policy_from_settings({"policy": "heuristic", "start": 4})
    replay(recording, policy, 6)  # carries its length on
    real = engine.trace(PROMPTS[0], Settings(policy_from_settings(policy.settings()), 6, 32))
    assert trace_differences(real, replay(recording, policy, 6), confidence_tolerance=1e-4) != []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 0.9]) | st.floats(0.0078125, 1, width=32), st.booleans()),
        min_size=6,
        max_size=40,
    ).filter(lambda items: len({right for _, right in items}) == 2)
)
def test_the_dynamic_threshold_is_that_of_scikit_learn(items):
    probabilities, matches = zip(*items, strict=True)
    fpr, tpr, thresholds = roc_curve([int(match) for match in matches], probabilities)
    expected = thresholds[np.argmin(fpr + 3 * (1 - tpr))]
    assert cheapest_threshold(*zip(*sorted(items), strict=True)) == expected


def test_kinds_of_positions():
    words = ["The", " cat", "s", ".", " 4", "2", ",", "\n", "```", " x", " sat", " on", " it"]
    flags = vocabulary_flags(lambda token: words[token].encode(), len(words))
    tracker = ContextTracker(flags)

    def kind(*text, then):
        tracker.begin(text)
        return tracker.kind_of(then)

    assert kind(then=0) == SENTENCE_START
    assert kind(0, then=1) == ELSEWHERE
    assert kind(0, 1, then=2) == INSIDE_WORD
    assert kind(0, 1, then=9) == ELSEWHERE
    assert kind(0, 3, then=1) == SENTENCE_START == kind(0, 7, then=1)
    assert kind(0, 6, then=1) == PUNCTUATION
    assert kind(0, 4, then=5) == NUMBER
    assert kind(8, 9, then=0) == CODE != kind(8, 9, 8, then=0)
    assert kind(9, 10, 11, 12, 9, 10, 11, then=12) == REPEATED
    assert kind(9, 10, 11, then=12) != REPEATED  # nothing has followed these three yet
    tracker.begin((9, 10, 11, 12))
    assert [tracker.kind_of_drafted(depth, token) for depth, token in enumerate((9, 10, 11, 12))][-1] == REPEATED
    assert tracker.kind_of(9) == ELSEWHERE, "drafting must leave the text alone"
    tracker.begin(())
    assert tracker.kind_of(10**9) == SENTENCE_START


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"policy": "cumulative", "bound": 1.5}, "between 0 and 1"),
        ({"policy": "entropy", "bound": -1}, "at least 0"),
        ({"policy": "margin", "bound": float("nan")}, "between 0 and 1"),
        ({"policy": "heuristic", "start": 0}, "whole number of at least 1"),
        ({"policy": "heuristic", "start": 2.5}, "whole number"),
        ({"policy": "llama_cpp", "n_min": -1}, "at least 0"),
        ({"policy": "adaedl", "goal": 2}, "goal acceptance rate"),
        ({"policy": "draft_verify", "on_fail": "maybe"}, '"drop" or "keep"'),
        ({"policy": "learned", "weights": [1], "intercept": 0, "bound": 0.5}, "5 weights"),
        ({"policy": "context", "thresholds": {}, "token_flags": ""}, "one threshold for each"),
        ({"policy": "cost_aware", "verify_seconds": [1], "draft_seconds": 1, "token_seconds": 1}, "do not fit"),
        (
            {
                "policy": "cost_aware",
                "verify_seconds": [1],
                "draft_seconds": 1,
                "token_seconds": 1,
                "chances": [0.5],
                "next_chances": [0.5],
            },
            "two target passes",
        ),
    ],
)
def test_wrong_settings_get_a_sentence(settings_, message):
    with pytest.raises(SpecVizError, match=message):
        policy_from_settings(settings_)
