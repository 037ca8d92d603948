"""Tables, the textbook formula, and predicted against measured."""

import random

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import random_cost, toy_recordings

from specviz.analysis.comparison import compare
from specviz.analysis.curves import grid
from specviz.analysis.iid import best_iid_draft_length, expected_tokens_per_pass, iid_speedup
from specviz.analysis.report import describe, sweep_table, write_table
from specviz.errors import SpecVizError


@pytest.fixture(scope="module")
def cells():
    recordings = toy_recordings(15, [0.6, 0.9], 25)
    return grid(recordings, random_cost(5), np.linspace(0, 1, 21), [2, 5], pass_mode="fast", resamples=20)


def test_the_sweep_table_has_a_row_per_cell(cells):
    table = sweep_table(cells)
    assert len(table) == 42
    row = table[(table["threshold"] == cells.thresholds[3]) & (table["max_draft"] == 5)].iloc[0]
    assert row["speedup"] == cells.speedup[3, 1]
    assert row["accepted"] == cells.counts.accepted[3, 1]
    assert row["acceptance_rate"] == pytest.approx(row["accepted"] / row["proposed"])
    assert row["plain_seconds"] / row["predicted_seconds"] == pytest.approx(row["speedup"])
    assert row["recordings"] == 2 and row["pass_mode"] == "fast" and row["device"] == cells.pair.device


def test_the_table_survives_its_file_and_holds_no_formula(cells, tmp_path):
    table = sweep_table(cells).assign(target="=cmd()", draft="@x", device="a, b")
    write_table(table, tmp_path / "deep" / "sweep.csv")
    again = pd.read_csv(tmp_path / "deep" / "sweep.csv")
    numbers = table.select_dtypes("number").columns
    pd.testing.assert_frame_equal(again[numbers], table[numbers], check_dtype=False, check_exact=True)
    assert set(again["target"]) == {"'=cmd()"} and set(again["draft"]) == {"'@x"} and set(again["device"]) == {"a, b"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["sweep.csv"]


def test_the_description_names_what_was_run_and_the_verdict(cells):
    text = describe(cells)
    for part in ("2 prompts", "pass mode fast", "big (bf16) with small (nf4) on CPU, test", "γ=5", "0.500"):
        assert part in text
    assert f"{cells.speedup[10, 1]:.2f}" in text
    assert cells.sentence in text


def test_the_textbook_formula_is_the_mean_over_coin_tosses():
    source = random.Random(0)
    for acceptance, max_draft in ((0.3, 1), (0.8, 5)):
        total = 0
        for _ in range(20_000):
            accepted = 0
            while accepted < max_draft and source.random() < acceptance:
                accepted += 1
            total += accepted + 1
        assert expected_tokens_per_pass(acceptance, max_draft) == pytest.approx(total / 20_000, rel=0.02)


def test_the_ends_of_the_textbook_formula():
    np.testing.assert_allclose(expected_tokens_per_pass([0.0, 1.0, 1.0], [4, 4, 0]), [1, 5, 1])
    assert iid_speedup(1.0, 4, 0.25) == pytest.approx(2.5)
    assert best_iid_draft_length(0.1, 0.5) == 0 and best_iid_draft_length(1.0, 0.1, longest=7) == 7
    for wrong in ((1.2, 3), (-0.1, 3), (float("nan"), 3), (0.5, -1)):
        with pytest.raises(SpecVizError):
            expected_tokens_per_pass(*wrong)


def test_errors_are_relative_to_what_was_measured():
    settings = [
        {"threshold": 0.1, "max_draft": 2},
        {"threshold": 0.2, "max_draft": 3},
        {"threshold": 0.3, "max_draft": 4},
    ]
    found = compare(settings, [1.1, 0.98, 2.0], [1.0, 1.0, 2.0])
    np.testing.assert_allclose(found.table["error"], [0.1, -0.02, 0])
    assert found.median_error == pytest.approx(0.02) and found.worst_error == pytest.approx(0.1)
    assert found.within_bars
    assert not compare(settings, [1.13, 1, 2], [1, 1, 2]).within_bars
    assert not compare(settings, [1.06, 1.06, 2], [1, 1, 2]).within_bars
    assert "+10.0%" in str(found) and "-2.0%" in str(found) and "worst 10.0%" in str(found)


@pytest.mark.parametrize("pair", [([1.0], []), ([], []), ([float("nan")], [1.0]), ([1.0], [0.0])])
def test_what_cannot_be_compared_gets_a_sentence(pair):
    with pytest.raises(SpecVizError):
        compare([{"max_draft": 1}] * len(pair[0]), *pair)
