"""The optimal oracle: as good as brute force, and better than every policy."""

import numpy as np
import pytest
from analysis_helpers import EOS, flat_cost, random_cost, toy_recordings
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_samples import POLICIES
from reference_round import random_toy, recording_from_toy

from specviz.analysis import predict
from specviz.analysis.cost_model import rates
from specviz.analysis.oracle import captured, fastest_plan, optimal_oracles, stop_oracles
from specviz.bench import oracle as bench_oracle
from specviz.bench.oracle import SIZES, brute_force, check_oracle
from specviz.bench.reporting import Verdicts
from specviz.replay import ConfidenceThreshold, PolicyReplayer, replay

MODES = st.sampled_from(["fast", "invariant"])


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.4, 0.7, 1.0]),
    size=st.sampled_from([*SIZES, (12, 2), (12, 8)]),
    cost_seed=st.integers(0, 10**6),
    mode=MODES,
)
def test_the_optimal_oracle_equals_brute_force(seed, agreement, size, cost_seed, mode):
    tokens, max_draft = size
    recording = recording_from_toy(*random_toy(seed, agreement=agreement), 8, tokens, EOS, (1, 2))
    price = rates(random_cost(cost_seed), mode, [2], [len(recording.output_ids)], max_draft)
    arguments = {
        "target": price.target[0],
        "draft": price.draft[0],
        "second_token": float(price.second_token[0]),
        "overhead": price.overhead,
    }
    replayer = PolicyReplayer([recording], max_draft)
    _, seconds = fastest_plan(replayer.rounds[0], max_draft, **arguments)
    remember = size not in SIZES
    assert seconds == pytest.approx(brute_force(recording, max_draft, **arguments, remember=remember))
    (policy,) = optimal_oracles(replayer, random_cost(cost_seed), mode)
    trace = replay(recording, policy, max_draft)
    assert float(predict(trace, random_cost(cost_seed), pass_mode=mode).seconds) == pytest.approx(seconds)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    tokens=st.integers(1, 40),
    max_draft=st.integers(1, 8),
    policy=POLICIES,
    cost_seed=st.integers(0, 10**6),
    mode=MODES,
)
def test_no_policy_beats_the_optimal_oracle(seed, agreement, tokens, max_draft, policy, cost_seed, mode):
    recordings = toy_recordings(seed, [agreement] * 2, tokens)
    cost = random_cost(cost_seed)
    replayer = PolicyReplayer(recordings, max_draft)

    def seconds(policies):
        found = predict(replayer.counts(policies), cost, pass_mode=mode, prompt_tokens=replayer.prompt_tokens)
        return found.seconds

    best = seconds(optimal_oracles(replayer, cost, mode))
    assert (best <= seconds(policy) * (1 + 1e-12)).all()
    assert (best <= seconds(stop_oracles(replayer)) * (1 + 1e-12)).all()


def test_the_stop_oracle_never_proposes_a_wrong_token():
    recordings = toy_recordings(3, [0.3, 0.7, 1.0], 40)
    replayer = PolicyReplayer(recordings, 8)
    counts = replayer.counts(stop_oracles(replayer))
    assert (counts.proposed == counts.accepted).all()
    assert counts.withheld.sum() > 0
    # Nothing that proposes right tokens only can accept more than it: withholding can only shorten runs.
    other = replayer.counts(ConfidenceThreshold(0.0))
    assert (counts.rounds <= other.rounds).all()


def test_an_oracle_with_free_drafts_drafts_to_the_first_wrong_token():
    recordings = toy_recordings(5, [0.6], 40)
    replayer = PolicyReplayer(recordings, 8)
    (oracle,) = optimal_oracles(replayer, flat_cost(verify=1.0, draft=1e-9, two=1e-9))
    counts, best = replayer.counts([oracle]), replayer.counts(stop_oracles(replayer))
    assert counts.rounds == best.rounds


def test_the_captured_share():
    assert captured([10, 10], [10, 10], [5, 5]) == 0
    assert captured([10, 10], [5, 5], [5, 5]) == 1
    assert captured([10, 10], [15, 10], [5, 5]) == -0.5
    assert np.isnan(captured([10], [11], [10]))


def test_the_bench_checks_both_claims_and_sees_an_oracle_gone_wrong(monkeypatch):
    verdicts = Verdicts()
    check_oracle(verdicts, recordings=10, contests=1, tokens=24)
    assert verdicts.all_met
    plan = bench_oracle.fastest_plan
    monkeypatch.setattr(bench_oracle, "fastest_plan", lambda *a, **k: (plan(*a, **k)[0], plan(*a, **k)[1] * 1.001))
    check_oracle(verdicts, recordings=10, contests=0)
    assert not verdicts.all_met
