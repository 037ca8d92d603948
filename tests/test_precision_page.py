"""The Precision page: on a comparison that comes with it, on one of its own, and without bitsandbytes."""

import shutil
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import streamlit as st
import tiny_models
from streamlit.testing.v1 import AppTest

from specviz.analysis.precision_files import read_comparison
from specviz.analysis.precisions import combination_table, error_table
from specviz.analysis.prompts import Prompt
from specviz.engine import precision_comparison as measuring
from specviz.engine.calibration import calibrate_together
from specviz.engine.memory_probe import Footprint
from specviz.ui.precision_panel import pack_lines
from specviz.ui.precisions import reliabilities
from specviz.ui.requests import CompareRequest, PairChoice
from specviz.ui.running import compare_at_precisions
from specviz.ui.workshop import FAILED, FINISHED, Workshop

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "specviz" / "ui" / "gallery" / "precisions"


def open_page():
    st.cache_resource.clear()
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    return app.switch_page("pages/precision.py").run()


def test_the_numbers_on_the_page_are_those_of_the_command():
    """The gallery's folder is what `compare` wrote, tables included; the page shows the same numbers."""
    comparison = read_comparison(COMMITTED)
    app = open_page()
    assert not app.exception and not app.error
    shown, errors = app.dataframe[0].value, app.dataframe[1].value
    table = combination_table(comparison)
    written = pd.read_csv(COMMITTED / "combinations.csv")
    for row, (_, expected) in enumerate(table.iterrows()):
        assert shown["target:draft"][row] == expected.combination == written["combination"][row]
        assert written["speedup"][row] == pytest.approx(expected.speedup)
        assert shown["over its own plain"][row].startswith(f"{written['speedup'][row]:.2f} ×")
        assert shown["over bf16 plain"][row].startswith(f"{written['speedup_over_full'][row]:.2f} ×")
        assert shown["plain"][row] == f"{written['plain_tokens_per_second'][row]:.1f} tokens/s"
        assert shown["there"][row] == f"{written['tokens_per_second'][row]:.1f} tokens/s"
    models = pd.read_csv(COMMITTED / "models.csv")
    assert len(models) == len(errors) == len(error_table(comparison))
    for row in range(len(models)):
        assert errors["says the same"][row] == f"{models['agreement'][row]:.1%}"
        assert errors["divergence, mean"][row] == f"{models['divergence_mean'][row]:.4f}"
        assert errors["perplexity"][row] == f"{models['perplexity'][row]:.2f}"


def test_every_thousandth_of_the_threshold_is_the_curve_itself():
    comparison = read_comparison(COMMITTED)
    combination = comparison.combinations[1]
    curve = combination.curve(3)
    (line,) = pack_lines(comparison, [combination], 3)
    for index in (0, 137, 500, 862, 1000):
        at = curve.at(index / 1000)
        assert line["speedup"][index] == pytest.approx(curve.speedup[at], abs=1e-4)
        rate = combination.tokens.sum() / curve.seconds[:, at].sum()
        assert line["rate"][index] == pytest.approx(rate, abs=1e-4)
        assert line["overFull"][index] == pytest.approx(rate / comparison.baseline.plain_rate, abs=1e-4)
    full = pack_lines(comparison, [comparison.baseline], 3)[0]
    np.testing.assert_allclose(full["speedup"], full["overFull"], atol=2e-4)
    assert full["plainOverFull"] == 1


def test_without_bitsandbytes_and_without_a_gallery_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    app = open_page()
    assert not app.exception and not app.error
    assert any("bitsandbytes is not installed" in info.value for info in app.info)
    assert len(app.dataframe) == 2, "what was measured elsewhere is shown all the same"
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path))
    app = open_page()
    assert not app.exception and any("No comparison" in info.value for info in app.info)
    shutil.copytree(COMMITTED, tmp_path / "precisions")
    (tmp_path / "precisions" / "nf4-bf16.parquet").write_bytes(b"damaged")
    app = open_page()
    assert not app.exception and "cannot be compared" in app.error[0].value


@pytest.mark.parametrize("path", sorted(path.name for path in (ROOT / "pages").glob("*.py")))
def test_every_page_opens_without_bitsandbytes(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    st.cache_resource.clear()
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300).run()
    app.switch_page(f"pages/{path}").run()
    assert not app.exception and not app.error and app.title


def test_nonsense_in_the_form_is_a_sentence():
    app = open_page()
    app.multiselect(key="compare-combinations").set_value(["bf16:bf16"]).run()
    app.button(key="compare-run").click().run()
    assert any("at least two" in warning.value for warning in app.warning)


def test_the_queue_measures_a_comparison(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "probe", lambda *_: Footprint(1.0, 1))
    monkeypatch.setattr("specviz.measure.costs.calibrate_together", partial(calibrate_together, repeats=3))
    pair = PairChoice(*map(str, tiny_models.save_pair(tmp_path, "llama")))
    shop = Workshop(lambda *_: pytest.fail("no single pair is loaded"), compare=compare_at_precisions)
    prompts = (Prompt("1", "", "the cat"),)
    job = shop.submit(CompareRequest(pair, ("fp32:fp32", "bf16:fp32"), prompts, 12, 3))
    wrong = shop.submit(CompareRequest(pair, ("fp32:fp32", "int4:fp32"), prompts, 12, 3))
    deadline = time.monotonic() + 500
    while not (job.over and wrong.over):
        assert time.monotonic() < deadline, job.stage
        time.sleep(0.05)
    assert job.state == FINISHED, job.message
    assert [c.label for c in job.comparison.combinations] == ["fp32:fp32", "bf16:fp32"]
    assert wrong.state == FAILED and "int4" in wrong.message


def test_every_combination_has_its_reliability():
    comparison = read_comparison(COMMITTED)
    diagrams, pair = reliabilities(list(comparison.combinations))
    assert pair.target == comparison.baseline.recordings.pair.target
    for combination, (name, diagram) in zip(comparison.combinations, diagrams.items(), strict=True):
        assert name.startswith(combination.label)
        right = sum((r.draft_token == r.output_ids).sum() for r in combination.recordings.recordings)
        assert (diagram.count * diagram.rate).sum() == pytest.approx(right)
