"""The statuses of tokens: what a round that proposed nothing ends in, and one look for all that draw them."""

import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sample_recordings import sample_recording

from specviz.analysis.fidelity_files import FACTS, read_fidelity
from specviz.engine.terminal_view import STYLES, TerminalView
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import PairInfo, RunInfo, TraceBuilder, read_trace_csv, write_trace_csv
from specviz.trace.statuses import DRAFT_STATUSES, STATUSES, TARGET_STATUSES, target_status
from specviz.ui.gallery import gallery_folder
from specviz.ui.status_style import COLOUR_SHARE, COLOURED_TEXT, status_css

ROOT = Path(__file__).parent.parent


def test_the_targets_token_is_plain_only_where_nothing_was_proposed():
    assert [target_status(*counts) for counts in ((0, 0), (3, 3), (3, 2), (3, 0))] == [
        *("plain", "bonus", "correction", "correction")
    ]


@pytest.mark.parametrize("on_fail", ["drop", "keep"])
@pytest.mark.parametrize("tau", [0.0, 0.4, 0.9, 1.0])
def test_a_replayed_round_is_plain_exactly_when_it_proposed_nothing(tau, on_fail):
    for seed in range(5):
        rounds = replay(sample_recording(40, seed), ConfidenceThreshold(tau, on_fail), 4).rounds
        own = rounds["target_status"] != ""
        whole = own & (rounds["accepted"] == rounds["proposed"])
        assert np.array_equal(rounds["target_status"] == "plain", own & (rounds["proposed"] == 0))
        assert np.array_equal(rounds["target_status"] == "bonus", whole & (rounds["proposed"] > 0))


def test_plain_decoding_is_plain_throughout():
    builder = TraceBuilder(PairInfo())
    for token in (5, 6):
        builder.add_round(
            drafted=[], distances=[], withheld=0, stop_reason="budget", accepted=0, target_tokens=[token],
            target_margins=[3.0],
        )  # fmt: skip
    trace = builder.finish(RunInfo("measured", PairInfo(), {}, "hi", (1,), (5, 6), "length"))
    assert trace.steps["status"].tolist() == ["plain", "plain"] == trace.rounds["target_status"].tolist()


def test_a_trace_of_version_1_reads_with_plain_named(tmp_path):
    """It called every target token of a round without a rejection `bonus`."""
    trace = replay(sample_recording(40, 3), ConfidenceThreshold(0.5), 4)
    assert {"plain", "bonus", "correction"} <= set(trace.rounds["target_status"])
    write_trace_csv(trace, tmp_path, lambda token: str(token))
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["version"] == 2
    (tmp_path / "run.json").write_text(json.dumps(run | {"version": 1}))
    for name in ("rounds.csv", "steps.csv"):
        path = tmp_path / name
        path.write_text(path.read_text().replace(",plain", ",bonus"))
    old, _ = read_trace_csv(tmp_path)
    for name, table in (("target_status", "rounds"), ("status", "steps")):
        assert np.array_equal(getattr(old, table)[name], getattr(trace, table)[name])


def test_an_older_fidelity_report_reads_with_plain_named(tmp_path):
    for path in (gallery_folder() / "fidelity").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    facts = json.loads((tmp_path / FACTS).read_text())
    rounds = (["withheld", "bonus"], ["accepted", "bonus"], ["bonus"], ["accepted", "withheld", "bonus"], ["bonus"])
    facts["trace"] = [[1, status, 0] for statuses in rounds for status in statuses]
    (tmp_path / FACTS).write_text(json.dumps(facts))
    assert [token.status for token in read_fidelity(tmp_path).trace if token.status in TARGET_STATUSES] == [
        *("plain", "bonus", "plain", "bonus", "plain")
    ]


def test_every_status_has_its_own_colour_and_second_cue_but_plain_which_has_neither():
    for cue in ("colour", "glyph"):
        assert len({getattr(status, cue) for status in STATUSES.values()}) == len(STATUSES)
    plain = STATUSES["plain"]
    assert (plain.colour, plain.glyph, plain.line) == ("", "", "none")
    assert set(DRAFT_STATUSES) | set(TARGET_STATUSES) == set(STATUSES)


def test_the_colours_are_written_once():
    """Charts, terminal, pages and reports take them from the table."""
    colours = {status.colour.lower() for status in STATUSES.values()} - {"", "#999999", "#8a8781"}
    for path in (ROOT / "specviz" / "ui").rglob("*.*"):
        if path.suffix in (".css", ".js", ".html", ".py"):
            assert not colours & set(re.findall("#[0-9a-f]{6}", path.read_text("utf-8").lower())), path


def test_the_terminal_draws_every_status_and_nothing_on_plain():
    assert STYLES["plain"] == "" and set(STYLES) == set(STATUSES)
    console = Console(record=True, force_terminal=True, color_system="truecolor", width=100, file=io.StringIO())
    console.print(TerminalView.key())
    assert console.export_text().split() == [
        *("accepted", "✓", "rejected", "✕", "correction", "↺", "bonus", "+", "plain")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_coloured_text_has_enough_contrast(theme):
    """WCAG AA: 4.5 to 1."""
    page = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"][theme]
    paper, ink = (rgb(page[name]) for name in ("backgroundColor", "textColor"))
    for name in (*COLOURED_TEXT, "accepted"):
        mixed = (COLOUR_SHARE * rgb(STATUSES[name].colour) + (100 - COLOUR_SHARE) * ink) / 100
        lighter, darker = sorted((luminance(mixed), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


def test_the_style_sheet_has_every_status():
    css = status_css(".panel")
    for name, status in STATUSES.items():
        assert f'--glyph-{name}: "{status.glyph}"' in css and f"--fill-{name}:" in css and f"--{name}:" in css
    assert ".panel .plain" not in css, "neutral ink, no line"


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)], float)


def luminance(colour: np.ndarray) -> float:
    """Relative luminance of sRGB, WCAG 2."""
    parts = colour / 255
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])
