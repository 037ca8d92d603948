"""Fidelity: tests of distributions, drift computed from distributions, the data on file, and the page."""

from pathlib import Path

import numpy as np
import pytest
import streamlit as st
import tiny_models
import torch
from engine_helpers import loaded_pair
from sample_recordings import PAIR, sample_cost
from streamlit.testing.v1 import AppTest

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
from specviz.engine.drift import text_drift
from specviz.engine.engine import Engine
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.plots import acceptance_picture_figure, trade_off_figure
from specviz.replay import ConfidenceThreshold, Sampling, replay_expected
from specviz.replay.rules import Coupled, Lenient, Rejection, TargetSampleMatch, TopK, Typical
from specviz.ui import fidelity_data

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
    np.testing.assert_allclose(found.top_p[:, :3].max(-1), p.max(-1), atol=1e-4)
    assert 1 < perplexity(recording) < 280


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
    drift = RuleDrift(RULES, (drifted(scored[1]),) * 2)
    points = dict(zip(map(str, RULES), trade_offs(drift, sample_cost(), 0.1, 4, pass_mode="invariant"), strict=True))
    assert points["rejection"].speedup == pytest.approx(points["lenient=1"].speedup)
    assert points["lenient=0.3"].speedup > points["rejection"].speedup > points["coupled"].speedup
    assert points["rejection"].kl == pytest.approx(0, abs=1e-4) and points["lenient=0.3"].kl > 0.01
    never = trade_offs(drift, sample_cost(), 1.0, 4, pass_mode="invariant")
    assert {point.tokens_per_target_pass for point in never} == {1.0}
    assert max(point.kl for point in never) == 0
    figure = trade_off_figure(list(points.values()), PAIR, "a device")
    assert len(figure.data) == 6 and figure.layout.title.subtitle.text.startswith("Modelled")


def test_the_picture_shows_model_text_as_text():
    picture = acceptance_picture(Rejection(), np.array([0.7, 0.3]), np.array([0.2, 0.8]))
    figure = acceptance_picture_figure(picture, ["<b>x</b>", "y"], "rejection")
    assert "&lt;b&gt;" in figure.data[0].y[0] and "<b>" not in figure.data[0].y[0]


def test_drift_survives_its_file(scored, tmp_path):
    drift = RuleDrift(RULES, (drifted(scored[1]),) * 2)
    fidelity_data.write_drift(drift, tmp_path / "drift.parquet")
    back = fidelity_data.read_drift(tmp_path / "drift.parquet")
    assert back.rules == drift.rules and len(back.texts) == 2
    np.testing.assert_allclose(back.texts[1].kl, drift.texts[1].kl, rtol=1e-6)
    np.testing.assert_allclose(back.texts[0].confidence, drift.texts[0].confidence)
    assert back.texts[0].prompt_tokens == len(PROMPT)


# --- the committed data and its page ---------------------------------------------------------------------------------


def test_the_committed_data_keeps_the_claims():
    found = fidelity_data.load()
    for tests in found.tests.values():
        assert tests and all(test["passed"] == test["expected"] for test in tests)
    greedy = [text.output for text in found.texts if text.greedy]
    assert greedy[0] == greedy[1]
    alone, coupled = (text.output for text in found.texts if not text.greedy and text.rule in (None, "coupled"))
    assert alone == coupled
    for text in found.drift.texts:
        assert text.accept.shape == (len(found.drift.rules), len(text.confidence))
    assert len(found.pictures) > 20
    assert all(picture.emitted in found.tokens for picture in found.pictures)


def test_the_page_moves_without_a_model():
    st.cache_resource.clear()
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.run()
    app.switch_page("pages/fidelity.py").run()
    assert not app.exception and not app.error
    assert any("Fastest without any drift" in text.value for text in app.text)
    before = [text.value for text in app.text if "Fastest" in text.value]
    app.slider(key="fidelity-tau").set_value(0.9).run()
    assert [text.value for text in app.text if "Fastest" in text.value] != before
    app.selectbox(key="side-1").select_index(5).run()
    assert any("They part at token" in text.value for text in app.text)
    app.selectbox(key="acceptance-rule").select_index(3).run()
    assert not app.exception and not app.error


def test_damaged_data_is_a_sentence(tmp_path):
    (tmp_path / "fidelity.json").write_text("{}", "utf-8")
    with pytest.raises(SpecVizError, match="fidelity_data.make"):
        fidelity_data.load(tmp_path)
