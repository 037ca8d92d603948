"""Acceptance rules: their mathematics, and the distribution of what they emit, told apart from broken variants."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_models import ScriptedRunner

from specviz.analysis.fidelity import test_distribution as distribution_test
from specviz.bench import rules as bench_rules
from specviz.bench.toys import PROMPT, Simulation, toy_pair
from specviz.engine.acceptance import DrawnRule, FixedNoiseRule
from specviz.engine.decoding import decode
from specviz.engine.drafting import Drafter
from specviz.engine.endings import Endings, Limits
from specviz.engine.engine import observe_all
from specviz.engine.noise import draw, gumbel, states, uniform
from specviz.engine.processing import Processing
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, Sampling
from specviz.replay.rules import (
    LOSSLESS,
    RULES,
    Coupled,
    Greedy,
    Lenient,
    Rejection,
    TargetSampleMatch,
    TopK,
    Typical,
    residual,
    rule_from_settings,
    rule_from_text,
    stays_lossless,
)

SAMPLES = 10_000
ALL_RULES = [rule() for rule in RULES.values()]
LOSSLESS_RULES = [Rejection(), Coupled(), TargetSampleMatch()]


def distributions(vocabulary=6):
    """Pairs of distributions with zeros, certainties and equals among them."""
    weights = st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.0, 1e-6]), min_size=vocabulary, max_size=vocabulary)
    one = weights.filter(sum).map(lambda values: np.array(values) / sum(values))
    return st.tuples(one, one) | one.map(lambda p: (p, p.copy()))


@settings(max_examples=40, deadline=None)
@given(distributions())
@example((np.array([0.0, 0.0, 0.25, 0.25, 0.25, 0.25]), np.array([0.0, 0.0, 0.0, 0.1, 3.0, 1.0]) / 4.1))  # all accepted
def test_effective_distributions_are_distributions_and_lossless_ones_are_the_targets(pair):
    p, q = pair
    for rule in [*ALL_RULES, Lenient(1.0)]:
        accept, effective = rule.accept(p, q), rule.effective(p, q)
        assert ((accept >= 0) & (accept <= 1)).all(), rule
        assert effective.sum() == pytest.approx(1, abs=1e-9) and (effective >= 0).all(), rule
        if isinstance(rule, Rejection) or rule == Lenient(1.0):
            np.testing.assert_allclose(effective, p, atol=1e-9)
        if rule.name == "lenient":
            assert (effective <= p / rule.lenience + 1e-9).all()
    assert residual(p, p).sum() == pytest.approx(1)


@settings(max_examples=25, deadline=None)
@given(distributions())
def test_arrays_and_tensors_give_the_same(pair):
    p, q = pair
    for rule in ALL_RULES:
        if isinstance(rule, Coupled):  # it needs no probabilities to decide
            continue
        for name in ("accept", "effective") if rule == TargetSampleMatch() else ("accept", "after", "effective"):
            found = getattr(rule, name)(torch.tensor(p), torch.tensor(q))
            np.testing.assert_allclose(found.numpy(), getattr(rule, name)(p, q), atol=1e-12)


def test_the_chance_that_coupled_choices_meet():
    p = np.array([0.5, 0.2, 0.2, 0.1, 0.0])
    q = np.array([0.1, 0.6, 0.2, 0.0, 0.1])
    noise = gumbel(states(torch.arange(200_000)), torch.arange(5))
    drafted = (torch.tensor(q).log() + noise).argmax(-1)
    chosen = (torch.tensor(p).log() + noise).argmax(-1)
    accept = Coupled().accept(p, q)
    for token in range(5):
        if q[token]:
            met = (chosen[drafted == token] == token).double().mean().item()
            assert met == pytest.approx(accept[token], abs=0.01)
    assert Coupled().acceptance_rate(p, q) < Rejection().acceptance_rate(p, q)
    assert Coupled().accept(p, p)[:4] == pytest.approx(1)


def test_knobs_of_lossy_rules():
    p, q = np.array([0.6, 0.3, 0.1, 0.0]), np.array([0.25, 0.25, 0.25, 0.25])
    assert TopK(1).accept(p, q).tolist() == [1, 0, 0, 0]
    assert TopK(2).accept(p, q).tolist() == [1, 1, 0, 0]
    assert TopK(9).accept(p, q).tolist() == [1, 1, 1, 0]
    entropy = -(0.6 * math.log(0.6) + 0.3 * math.log(0.3) + 0.1 * math.log(0.1))
    bound = min(0.25, 0.5 * math.exp(-entropy))
    assert 0.1 < bound < 0.3
    assert Typical(0.25).accept(p, q).tolist() == [1, 1, 0, 0]
    assert Typical(0.01).accept(p, q).tolist() == [1, 1, 1, 0]
    certain = np.array([1.0, 0, 0, 0])
    for rule in (TopK(3), Typical(), Lenient(), Rejection(), Greedy()):
        assert rule.accept(certain, certain).tolist()[0] == 1 and rule.accept(certain, q).tolist()[1:] == [0, 0, 0]
    assert Lenient(0.5).accept(p, q)[2] == pytest.approx(0.8)


@pytest.mark.parametrize("rule", ALL_RULES, ids=str)
def test_rules_survive_settings_and_text(rule):
    assert rule_from_settings(rule.settings()) == rule
    assert rule_from_text(str(rule)) == rule
    assert rule.source and rule.claim in ("lossless", "lossy")


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "lenient=",
        "lenient=0",
        "lenient=x",
        "lenient=nan",
        "top_k=0",
        "top_k=1.5",
        "top_k=inf",
        "top_k=nan",
        "rejection=1",
        "typical=2",
    ],
)
def test_a_wrong_rule_is_a_sentence(text):
    with pytest.raises(SpecVizError) as error:
        rule_from_text(text)
    assert str(error.value).endswith(".")


# --- noise -------------------------------------------------------------------------------------------------------


def test_noise_is_uniform_and_gumbel_and_independent_of_neighbours():
    places = uniform(torch.arange(300)[:, None], 1, torch.arange(200)[None])
    counts = torch.histc(places.float(), 50, 0, 1).numpy()
    assert distribution_test(counts, np.full(50, 1 / 50)).passed
    for a, b in ((places[1:], places[:-1]), (places[:, 1:], places[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
    noise = gumbel(states(3, torch.arange(100)), torch.arange(500))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert torch.equal(noise[7], gumbel(states(3, 7), torch.arange(500)))


def test_drawing_never_takes_what_is_impossible():
    p = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0]).expand(5, 5)
    numbers = torch.tensor([0.0, 0.2999, 0.3001, 1 - 2**-52, 0.5], dtype=torch.float64)
    assert draw(p, numbers).tolist() == [1, 1, 3, 3, 3]
    tiny = torch.full((49152,), 1e-12)
    tiny[-5] = 1.0
    assert draw(tiny[None], torch.tensor([0.5])).item() == 49152 - 5


# --- distributions -----------------------------------------------------------------------------------------------


def judged(simulation):
    return bench_rules.judged(simulation, SAMPLES)


@pytest.mark.parametrize("rule", LOSSLESS_RULES, ids=str)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("max_draft", [1, 5])
def test_lossless_rules_emit_the_targets_distribution(rule, threshold, max_draft):
    assert rule.claim == LOSSLESS
    test = judged(Simulation(toy_pair(5, 5), rule, threshold, max_draft))
    assert test.passed, test.verdict


@pytest.mark.parametrize("rule", [Lenient(0.5), TopK(2), Typical(0.09)], ids=str)
def test_lossy_rules_do_not(rule):
    assert not judged(Simulation(toy_pair(5, 5), rule, 0.0, 3)).passed


class NoResidual(Rejection):
    """After a rejection the target's own distribution."""

    def after(self, p, q):
        return p


class ResidualNotNormalised(Rejection):
    """The residual's missing mass goes to the last token, as when a running sum never reaches the number drawn."""

    def after(self, p, q):
        positive = (p - q).clip(0)
        last = torch.zeros_like(positive)
        last[..., -1] = 1 - positive.sum(-1)
        return positive + last


class AcceptsWhatTheTargetLikesBetter(Rejection):
    def accept(self, p, q):
        return (p > q) * 1.0


class BonusFromTheDraft(Simulation):
    def judge(self, p, q, proposal, proposal_length, *rest):
        p = p.clone()
        rows = torch.arange(len(p))
        drafted = (proposal_length > 0).nonzero()[:, 0]
        p[rows[drafted], proposal_length[drafted]] = q[rows[drafted], proposal_length[drafted] - 1]
        return super().judge(p, q, proposal, proposal_length, *rest)


class CacheNotRolledBack(Simulation):
    """The models go on seeing the last rejected token in the place before the newest one."""

    stale = None

    def after_round(self, text, length, accepted, proposal, proposal_length):
        last = proposal.gather(1, (proposal_length - 1).clamp(min=0)[:, None])[:, 0]
        rejected = (accepted < proposal_length) & (accepted > 0)
        self.stale = (length + accepted, torch.where(rejected, last, -1))

    def token_before(self, text, at, back):
        token = super().token_before(text, at, back)
        if self.stale is None or back == 1:
            return token
        newest, last = self.stale
        return torch.where((at == newest + 1) & (last >= 0), last, token)


BROKEN = {
    "no residual": lambda pair: Simulation(pair, NoResidual(), 0.0, 3),
    "residual not normalised": lambda pair: Simulation(pair, ResidualNotNormalised(), 0.0, 3),
    "accepting on p > q": lambda pair: Simulation(pair, AcceptsWhatTheTargetLikesBetter(), 0.0, 3),
    "bonus token from q": lambda pair: BonusFromTheDraft(pair, Rejection(), 0.3, 1),
    "threshold on the drawn token": lambda pair: Simulation(pair, Rejection(), 0.3, 3, drawn_token_decides=True),
    "cache not rolled back": lambda pair: CacheNotRolledBack(pair, Rejection(), 0.0, 3),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_same_test_fails_for_a_broken_rule(name):
    test = judged(BROKEN[name](toy_pair(5, 5)))
    assert not test.passed, test.verdict


@pytest.mark.parametrize("rule", LOSSLESS_RULES, ids=str)
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_what_stopping_keeps_a_rule_lossless(rule, looks, keep):
    """The claim of `stays_lossless` for every combination, its one exception included."""
    simulation = Simulation(toy_pair(5, 5), rule, 0.6, 3, drawn_token_decides=looks, keep=keep)
    assert judged(simulation).passed == stays_lossless(rule, looks, "keep" if keep else "drop")


@pytest.mark.parametrize("rule", [Rejection(), Coupled(), TargetSampleMatch(), Lenient(0.5), TopK(2)], ids=str)
@pytest.mark.parametrize(("threshold", "max_draft"), [(0.0, 3), (0.5, 2)])
def test_the_engines_loop_emits_what_the_simulation_does(rule, threshold, max_draft):
    pair = toy_pair(3, 6)
    seeds = range(40)
    expected = Simulation(pair, rule, threshold, max_draft).run(torch.tensor(seeds), tokens=7).tokens.tolist()
    found = [loop(pair, rule, seed, threshold, max_draft)[:7] for seed in seeds]
    assert found == expected


def test_the_bench_runs_and_fails_for_a_broken_rule(monkeypatch, capsys):
    monkeypatch.setattr(bench_rules, "VOCABULARIES", (5,))
    monkeypatch.setattr(bench_rules, "THRESHOLDS", (0.0, 0.6))
    monkeypatch.setattr(bench_rules, "DRAFT_LENGTHS", (3,))
    assert bench_rules.run(samples=SAMPLES)
    monkeypatch.setattr(bench_rules, "LOSSLESS_RULES", (NoResidual(),))
    assert not bench_rules.run(samples=SAMPLES)
    assert "NOT MET  rejection is lossless" in capsys.readouterr().out


def loop(pair, rule, seed, threshold, max_draft):
    processing = (Processing(Sampling(temperature=1)),) * 2
    if rule.fixed_output:
        shared = isinstance(rule, Coupled)
        at_work = FixedNoiseRule(*processing, draft_head=None, vocabulary=pair.vocabulary, seed=seed, shared=shared)
    else:
        at_work = DrawnRule(rule, *processing, draft_head=None, seed=seed)
    target, draft = (
        ScriptedRunner(lambda text, table=table: table[text[-2], text[-1]].log(), width)
        for table, width in ((pair.target, None), (pair.draft, 2))
    )
    drafter = Drafter(draft, ConfidenceThreshold(threshold), max_draft, Endings(), at_work)
    events = decode(target, list(PROMPT), Limits(7 + max_draft), drafter=drafter, rule=at_work)
    return list(observe_all(events, ()).output_ids)
