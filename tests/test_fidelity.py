"""Fidelity: tests of distributions, drift computed from distributions, reports, the command and the page."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import streamlit as st
import tiny_models
import torch
from conftest import FIDELITY
from engine_helpers import loaded_pair
from sample_recordings import PAIR, sample_cost
from streamlit.testing.v1 import AppTest

from specviz import cli
from specviz.analysis.fidelity import (
    DriftedText,
    RuleDrift,
    acceptance_picture,
    first_divergence,
    greedy_exactness,
    kl_divergence,
    perplexity,
    total_variation,
    trade_offs,
)
from specviz.analysis.fidelity import test_distribution as distribution_test
from specviz.analysis.fidelity_files import read_fidelity, write_fidelity
from specviz.analysis.fidelity_report import describe_fidelity, fidelity_report
from specviz.analysis.prompts import Prompt
from specviz.bench.rules import on_a_small_pair
from specviz.engine import drift
from specviz.engine.drift import text_drift
from specviz.engine.engine import Engine, Settings
from specviz.engine.fidelity import (
    FIRST_TOKEN_CHOICES,
    TESTED_RULES,
    draw_first_tokens,
    first_token_distributions,
    measure_fidelity,
)
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.models.loading import encode_prompt, load_pair
from specviz.plots import acceptance_picture_figure, trade_off_figure
from specviz.replay import ConfidenceThreshold, Sampling, replay_expected
from specviz.replay.rules import Coupled, Lenient, Rejection, TargetSampleMatch, TopK, Typical
from specviz.ui.requests import FidelityRequest, PairChoice
from specviz.ui.running import load_running_pair
from specviz.ui.workshop import FINISHED, Workshop

ROOT = Path(__file__).parent.parent
RULES = (Rejection(), Coupled(), TargetSampleMatch(), Lenient(1.0), Lenient(0.3), TopK(3), Typical(0.1))
PROMPT = [11, 7, 42, 99, 5]


def test_the_distribution_test_keeps_its_promises():
    random = np.random.default_rng(0)
    p = random.dirichlet(np.full(40, 0.4))
    p[:3] = 0
    p /= p.sum()
    passed = [distribution_test(random.multinomial(5000, p), p) for _ in range(300)]
    assert all(test.passed for test in passed)
    assert 0.4 < np.mean([test.p_value for test in passed]) < 0.6  # p-values of a right claim are uniform
    moved = 0.97 * p + 0.03 * np.roll(p, 5)
    assert not distribution_test(random.multinomial(20_000, moved), p).passed
    impossible = random.multinomial(5000, p)
    impossible[0] += 1
    assert distribution_test(impossible, p).p_value == 0
    with pytest.raises(SpecVizError):
        distribution_test(np.zeros(3), np.full(3, 1 / 3))


def test_distances_by_hand():
    p, other = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.75, 0.0])
    assert total_variation(p, other) == pytest.approx(0.25)
    assert kl_divergence(other, p) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5))
    assert kl_divergence(np.array([0, 0.5, 0.5]), p) == np.inf
    assert first_divergence([1, 2, 3], [1, 2, 3]) is None
    assert first_divergence([1, 2, 3], [1, 5]) == 1 and first_divergence([1, 2], [1, 2, 3]) == 2
    picture = acceptance_picture(Rejection(), p, np.array([0.1, 0.6, 0.3]))
    assert picture.acceptance_rate == pytest.approx(0.6) and picture.total_variation == pytest.approx(0)
    assert picture.residual.tolist() == pytest.approx([0.4, 0, 0])


def test_greedy_exactness_tells_near_ties_from_errors():
    same = greedy_exactness([[1, 2, 3]], [[1, 2, 3]], [[5.0, 0.1, 2.0]], PAIR)
    assert same.passed and same.smallest_margin == 0.1
    near = greedy_exactness([[1, 2, 3]], [[1, 9, 3]], [[5.0, 0.1, 2.0]], PAIR)  # bf16: 0.1 logits are a near-tie
    assert near.passed and near.explained == 1 and near.tokens == 2
    assert not greedy_exactness([[1, 2, 3]], [[1, 9, 3]], [[5.0, 1.0, 2.0]], PAIR).passed


@pytest.fixture(scope="module")
def scored():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    sampling = Sampling(0.9)
    recording = record(engine, PROMPT, max_new_tokens=40, max_draft=4, sampling=sampling, rule=Rejection(), seed=1)
    return recording, text_drift(engine, PROMPT, recording.output_ids.tolist(), sampling, RULES), sampling


def drifted(found):
    names = ("confidence", "entropy", "accept", "kl", "total_variation", "surprise")
    return DriftedText(len(PROMPT), *(getattr(found, name) for name in names))


def test_drift_is_what_full_distributions_say(scored):
    recording, found, sampling = scored
    pair = tiny_models.tiny_pair("llama")
    text = torch.tensor([[*PROMPT, *recording.output_ids.tolist()]])
    with torch.no_grad():
        p, q = (
            (model(text).logits[0, len(PROMPT) - 1 : -1] / sampling.temperature).softmax(-1).double().numpy()
            for model in (pair.target, pair.draft)
        )
    np.testing.assert_allclose(found.confidence, q.max(-1), atol=1e-4)
    np.testing.assert_allclose(found.confidence, recording.draft_confidence, atol=1e-4)
    for row, rule in enumerate(RULES):
        pictures = [acceptance_picture(rule, *at) for at in zip(p, q, strict=True)]
        np.testing.assert_allclose(found.accept[row], [one.acceptance_rate for one in pictures], atol=1e-4)
        np.testing.assert_allclose(found.total_variation[row], [one.total_variation for one in pictures], atol=1e-4)
        np.testing.assert_allclose(found.kl[row], [one.kl for one in pictures], atol=1e-3)
    lossless = [row for row, rule in enumerate(RULES) if rule.claim == "lossless" or rule == Lenient(1.0)]
    assert found.total_variation[lossless].max() < 1e-5
    assert found.total_variation[[4, 5, 6]].mean(-1).min() > 0.01
    assert 1 < perplexity(recording) < 280
    # the picture's columns: each named token's own numbers, and those of all others together
    positions = np.arange(len(p))[:, None]
    named, others = found.ids[:, :-1], np.ones_like(p, bool)
    others[positions, named] = False
    assert (found.ids[:, -1] == -1).all() and (np.sort(named, 1)[:, 1:] != np.sort(named, 1)[:, :-1]).all()
    for name, values in (("p", p), ("q", q), ("overlap", np.minimum(p, q)), ("residual", np.maximum(p - q, 0))):
        column = getattr(found, name)
        np.testing.assert_allclose(column[:, :-1], values[positions, named], atol=1e-4)
        np.testing.assert_allclose(column[:, -1], (values * others).sum(-1), atol=1e-4)
    for row, rule in enumerate(RULES):
        accept, effective = rule.accept(p, q), rule.effective(p, q)
        np.testing.assert_allclose(found.token_effective[row].sum(-1), 1, atol=1e-4)
        np.testing.assert_allclose(found.token_effective[row][:, :-1], effective[positions, named], atol=1e-4)
        if not isinstance(rule, TopK):  # where two tokens tie, rounding says which is the likelier
            np.testing.assert_allclose(found.token_accept[row][:, :-1], accept[positions, named], atol=5e-3)
        stands = rule.drafted(q) * accept
        rate = (found.token_accept[row] * _drafted(rule, found, q, positions, named, others)).sum(-1)
        np.testing.assert_allclose(rate, stands.sum(-1), atol=2e-3)


def _drafted(rule, found, q, positions, named, others):
    drafted = rule.drafted(q)
    return np.concatenate([drafted[positions, named], (drafted * others).sum(-1, keepdims=True)], 1)


def test_all_other_tokens_together_are_no_likely_token():
    """In a flat distribution most of the probability lies outside the picture; that makes no favourite of it."""
    p = torch.full((1, 100), 0.9 / 99)
    p[0, 0] = 0.1
    q = torch.full((1, 100), 0.01)
    found = drift._of_rule(TopK(1), p, q, p.log(), torch.tensor([[0, 1]]))
    assert found["token_accept"].tolist() == [[1, 0, 0]]
    assert found["token_effective"][0, -1].item() == pytest.approx(0.99 * 0.9 * 98 / 99)


def test_trade_offs_follow_the_rounds_of_replay_expected(scored):
    """With the acceptances of the text in place of their means, both count the same rounds and price them alike."""
    recording, found, _ = scored
    agrees = recording.draft_token == recording.output_ids
    chances = np.where(agrees, 1, np.minimum(1, recording.draft_prob_of_emitted / recording.target_prob_of_emitted))
    text = drifted(found)
    known = DriftedText(*(chances[None] if name == "accept" else getattr(text, name)[:1] if name in
                          ("kl", "total_variation", "surprise") else getattr(text, name)
                          for name in DriftedText.__dataclass_fields__))  # fmt: skip
    for tau, gamma in ((0.0, 4), (0.3, 3)):
        expected = replay_expected(recording, ConfidenceThreshold(tau), gamma)
        point = trade_offs(RuleDrift(RULES[:1], (known,)), sample_cost(), tau, gamma, pass_mode="invariant")[0]
        assert point.tokens_per_target_pass == pytest.approx(40 / float(expected.rounds))


def test_trade_offs_by_rule(scored):
    texts = RuleDrift(RULES, (drifted(scored[1]),) * 2)
    points = dict(zip(map(str, RULES), trade_offs(texts, sample_cost(), 0.1, 4, pass_mode="invariant"), strict=True))
    assert points["rejection"].speedup == pytest.approx(points["lenient=1"].speedup)
    assert points["lenient=0.3"].speedup > points["rejection"].speedup > points["coupled"].speedup
    assert points["rejection"].kl == pytest.approx(0, abs=1e-4) and points["lenient=0.3"].kl > 0.01
    never = trade_offs(texts, sample_cost(), 1.0, 4, pass_mode="invariant")
    assert {point.tokens_per_target_pass for point in never} == {1.0}
    assert max(point.kl for point in never) == 0
    figure = trade_off_figure(list(points.values()), PAIR, "a device")
    assert len(figure.data) == 6 and figure.layout.title.subtitle.text.startswith("Modelled")


def test_the_picture_shows_model_text_as_text():
    picture = acceptance_picture(Rejection(), np.array([0.7, 0.3]), np.array([0.2, 0.8]))
    figure = acceptance_picture_figure(picture, ["<b>x</b>", "y"], "rejection")
    assert "&lt;b&gt;" in figure.data[0].y[0] and "<b>" not in figure.data[0].y[0]


# --- a whole report ------------------------------------------------------------------------------------------------

FIRST_THREE = [(rule, on_a_small_pair(rule, 4000)) for rule in (Rejection(), Lenient(0.5))]
SETTINGS = {"sampling": Sampling(4.0, top_p=0.98), "seed": 5, "threshold": 0.02, "max_draft": 3, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tuple(map(str, tiny_models.save_pair(tmp_path_factory.mktemp("pair"), "llama")))


@pytest.fixture(scope="module")
def engine(folder):
    return Engine(load_pair(*folder, "fp32", "fp32", "cpu"))


@pytest.fixture(scope="module")
def measured(engine):
    prompts = [Prompt("1", "", "the cat sat"), Prompt("2", "", "a dog")]
    return measure_fidelity(engine, prompts, samples=4000, **SETTINGS)


def priced(measured):
    return replace(sample_cost(), pair=measured.pair)


@pytest.fixture(scope="module")
def report(measured):
    return fidelity_report(measured, priced(measured), FIRST_THREE)


@pytest.mark.parametrize("rule", TESTED_RULES, ids=str)
def test_first_tokens_are_those_that_the_engine_draws(engine, rule):
    """Seed by seed, at a threshold that always lets the first token be drafted."""
    prompt = encode_prompt(engine.pair, "the cat sat")
    sampling = Sampling(4.0, top_k=FIRST_TOKEN_CHOICES)
    p, q, possible = first_token_distributions(engine, prompt, Sampling(4.0))
    assert p.sum().item() == pytest.approx(1) and (p > 0).sum() == FIRST_TOKEN_CHOICES
    places = draw_first_tokens(rule, p, q, possible, len(prompt), torch.arange(40))
    expected = [
        engine.trace(prompt, Settings(ConfidenceThreshold(0.0), 1, 2, sampling, rule, seed)).run.output_ids[0]
        for seed in range(40)
    ]
    assert possible[places].tolist() == expected
    assert len(set(expected)) > 3


def test_a_report_says_what_was_measured(engine, measured, report):
    assert report.sound
    assert [test.title for test in report.first_token] == list(map(str, TESTED_RULES))
    assert not next(test for test in report.first_token if test.title == "lenient=0.5").passed
    first, second = (text for text in report.drift.texts)
    assert (len(first.confidence), len(second.confidence)) == (24, 24)
    alone = {output.greedy: output.output for output in report.outputs if output.rule is None}
    assert all(
        output.output == alone[output.greedy] for output in report.outputs if output.rule in ("greedy", "coupled")
    )
    # the trace beside the pictures: every place of the text once as emitted, and what was judged before it
    emitted = [token for token in report.trace if token.status in ("accepted", "correction", "bonus", "plain")]
    assert [token.position for token in emitted] == list(range(24))
    assert tuple(token.token for token in emitted) == measured.trace.run.output_ids
    rejected = [place for place, token in enumerate(report.trace) if token.status == "rejected"]
    assert rejected
    for place in rejected:
        after = report.trace[place + 1]
        assert after.status == "correction" and after.position == report.trace[place].position
    said = describe_fidelity(report)
    assert "✓ rejection (lossless): No difference" in said and "✕ lenient=0.5 (lossy)" in said
    assert "coupled (lossless), temperature 4: equal of 24" in said


def test_a_picture_is_that_of_the_full_distributions(measured, report):
    text = measured.texts[0]
    for rule in (Rejection(), Typical(0.03), Coupled()):
        row = report.drift.rules.index(rule)
        ids, picture = report.picture(rule, 7)
        assert ids[-1] == -1 and sorted(ids) == sorted(text.ids[7].tolist())
        assert (np.diff(picture.p[:-1]) <= 0).all()
        assert picture.acceptance_rate == pytest.approx(text.accept[row, 7])
        assert picture.p.sum() == pytest.approx(1, abs=1e-4) and picture.effective.sum() == pytest.approx(1, abs=1e-4)
        assert picture.overlap.sum() + picture.residual.sum() == pytest.approx(1, abs=1e-4)
    figure = acceptance_picture_figure(picture, list("abcdefghijklm"), "coupled")
    assert len(figure.data) == 5


def test_a_report_survives_its_folder(report, tmp_path):
    write_fidelity(report, tmp_path)
    back = read_fidelity(tmp_path)
    assert describe_fidelity(back) == describe_fidelity(report)
    for name in ("pair", "sampling", "trace", "outputs", "greedy", "first_three", "first_token", "tokens", "prompt"):
        assert getattr(back, name) == getattr(report, name), name
    for (ids, one), (other_ids, other) in zip(
        (report.picture(Lenient(0.3), 3), report.picture(TopK(3), 20)),
        (back.picture(Lenient(0.3), 3), back.picture(TopK(3), 20)),
        strict=True,
    ):
        assert ids.tolist() == other_ids.tolist()
        for name in ("p", "q", "overlap", "residual", "accept", "effective", "acceptance_rate", "kl"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-7)
    rules = pd.read_csv(tmp_path / "rules.csv")
    assert rules["rule"].tolist() == list(map(str, report.drift.rules)) and set(rules["claim"]) == {"lossless", "lossy"}
    (tmp_path / "drift.parquet").write_bytes(b"no")
    with pytest.raises(SpecVizError, match="specviz fidelity"):
        read_fidelity(tmp_path)


def test_a_report_is_unsound_where_a_lossless_rule_fails(measured):
    moved = [replace(each, counts=np.roll(each.counts, 1)) for each in measured.first_tokens]
    assert not fidelity_report(replace(measured, first_tokens=moved), priced(measured), FIRST_THREE).sound


@pytest.mark.parametrize(
    ("change", "words"),
    [({"sampling": Sampling()}, "temperature above 0"), ({"samples": 0}, "at least 1"), ({"max_draft": 0}, "draft")],
)
def test_what_cannot_be_measured_is_a_sentence(engine, change, words):
    with pytest.raises(SpecVizError, match=words):
        measure_fidelity(engine, [Prompt("1", "", "x")], **{**SETTINGS, **change})
    with pytest.raises(SpecVizError, match="no prompt"):
        measure_fidelity(engine, [], **SETTINGS)


def test_prices_of_another_pair_are_refused(measured):
    with pytest.raises(SpecVizError, match="same pair"):
        fidelity_report(measured, sample_cost(), FIRST_THREE)


def test_it_stops(engine):
    assert measure_fidelity(engine, [Prompt("1", "", "the cat")], stopped=lambda: True, **SETTINGS) is None


def test_the_command_prints_and_writes_the_report(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("specviz.engine.calibration.TIME_LIMIT", 2.0)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat sat\na dog", "utf-8")
    command = ["fidelity", "--target", folder[0], "--draft", folder[1], "--device", "cpu", "--prompts", str(prompts)]
    command += ["-n", "12", "--samples", "2000", "-t", "0.02"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert describe_fidelity(read_fidelity(tmp_path / "out")).splitlines()[0] == printed.splitlines()[0]
    assert "First token on this pair" in printed and "lenient=0.05" in printed
    assert cli.main([*command, "--temperature", "0"]) == 2
    assert cli.main([*command, "--costs", str(prompts)]) == 2


# --- the committed report and its page -------------------------------------------------------------------------------


def open_page():
    st.cache_resource.clear()
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.run()
    return app.switch_page("pages/fidelity.py").run()


def test_the_committed_report_keeps_the_claims():
    found = read_fidelity(FIDELITY)
    assert found.sound
    tests = (*found.greedy, *found.first_three, *found.first_token)
    assert len(tests) == 13 and all(test.passed == test.expected for test in tests)
    greedy = [output.output for output in found.outputs if output.greedy]
    assert greedy[0] == greedy[1]
    alone, coupled = (one.output for one in found.outputs if not one.greedy and one.rule in (None, "coupled"))
    assert alone == coupled
    assert {"accepted", "rejected", "correction"} <= {token.status for token in found.trace}
    assert all(token.token in found.tokens for token in found.trace)


def test_the_page_moves_without_a_model():
    app = open_page()
    assert not app.exception and not app.error
    assert any("Fastest without any drift" in text.value for text in app.text)
    before = [text.value for text in app.text if "Fastest" in text.value]
    app.slider(key="fidelity-tau").set_value(0.9).run()
    assert [text.value for text in app.text if "Fastest" in text.value] != before
    app.selectbox(key="side-1-From the gallery").select_index(5).run()
    assert any("They part at token" in text.value for text in app.text)
    app.selectbox(key="acceptance-rule-From the gallery").select_index(3).run()
    assert not app.exception and not app.error


def test_the_page_opens_without_a_report_and_says_what_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    app = open_page()
    assert not app.exception and any("No report" in info.value for info in app.info)
    (tmp_path / "fidelity").mkdir()
    (tmp_path / "fidelity" / "fidelity.json").write_text("{}", "utf-8")
    app = open_page()
    assert not app.exception and "cannot be shown" in app.error[0].value


def test_nonsense_in_the_form_is_a_sentence():
    app = open_page()
    app.button(key="fidelity-run").click().run()
    assert any("empty" in warning.value for warning in app.warning)
    app.text_area(key="fidelity-text").set_value("Hello").run()
    app.number_input(key="fidelity-temperature").set_value(0.0).run()
    app.button(key="fidelity-run").click().run()
    assert not app.exception and any("temperature above 0" in warning.value for warning in app.warning)


def test_the_queue_tests_a_prompt_and_the_page_shows_it(folder, monkeypatch):
    monkeypatch.setattr("specviz.engine.calibration.TIME_LIMIT", 2.0)
    shop = Workshop(load_running_pair)
    prompts = (Prompt("own", "", "the <b>cat</b>"), Prompt("2", "", "a dog"))
    pair = PairChoice(*folder, "fp32", "fp32")
    job = shop.submit(FidelityRequest(pair, prompts, 16, 0.02, 3, Sampling(4.0), 1))
    deadline = time.monotonic() + 500
    while not job.over:
        assert time.monotonic() < deadline, job.stage
        time.sleep(0.05)
    assert job.state == FINISHED, job.message
    assert job.fidelity.prompt == "the <b>cat</b>" and len(job.fidelity.drift.texts) == 2
    assert job.fidelity.samples == 50_000 and len(job.fidelity.first_three) == len(TESTED_RULES)
    st.cache_resource.clear()
    monkeypatch.setattr("specviz.ui.fidelity.own_report", lambda: job.fidelity)
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    app.switch_page("pages/fidelity.py").run()
    assert not app.exception and not app.error
    assert app.segmented_control(key="fidelity-report").value == "Your own"
    assert any(text.value == "Prompt: the <b>cat</b>" for text in app.text)
