"""The right data in the right traces, origins told apart, and token texts that stay texts."""

import sys
from dataclasses import replace
from subprocess import run

import numpy as np
import plotly.graph_objects as go
import pytest
from analysis_helpers import PAIR, random_cost, toy_recordings

from specviz.analysis import grid, measured_point, metrics, predict, round_times, speedup_curve
from specviz.plots import (
    acceptance_figure,
    confidence_figure,
    heat_map_figure,
    run_lengths_figure,
    speedup_figure,
    time_figure,
    timeline_figure,
)
from specviz.plots.style import describe_pair, new_figure, plain
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import PairInfo

COST = random_cost(5)
EVIL = "<b>bold</b><script>alert(1)</script> & <a href='x'>link</a>"


@pytest.fixture(scope="module")
def recordings():
    return toy_recordings(15, [0.6, 0.9], 25)


@pytest.fixture(scope="module")
def trace(recordings):
    return replay(recordings[0], ConfidenceThreshold(0.4), 5)


@pytest.fixture(scope="module")
def curves(recordings):
    return {
        "γ = 5": speedup_curve(recordings, COST, 5, pass_mode="fast", resamples=50),
        EVIL: speedup_curve(recordings[:1], COST, 2, [0.0, 0.5, 1.0], pass_mode="fast"),
    }


def named(figure, name):
    [found] = [item for item in figure.data if item.name == name]
    return found


def test_speedup_lines_steps_and_bands(curves):
    figure = speedup_figure(curves, [measured_point(0.3, 5, [[2.0, 4.0]], [[1.0, 1.0]])], threshold=0.25)
    curve = curves["γ = 5"]
    line = named(figure, "γ = 5")
    np.testing.assert_array_equal(line.x[: len(curve.thresholds)], curve.thresholds)
    np.testing.assert_array_equal(line.y[: len(curve.thresholds)], curve.speedup)
    assert line.x[-1] == 1 and line.y[-1] == curve.speedup[-1]
    assert line.line.shape == "hv" and line.line.dash == "dot"
    np.testing.assert_array_equal(named(figure, "γ = 5, low").y[: len(curve.low)], curve.low)
    assert named(figure, "γ = 5, high").fill == "tonexty"
    best = named(figure, "best of γ = 5")
    assert best.y[0] == curve.speedup.max() and curve.speedup[curve.at(best.x[0])] == best.y[0]
    sampled = named(figure, plain(EVIL))
    assert sampled.line.shape == "linear" and list(sampled.x) == [0, 0.5, 1]
    assert f"{plain(EVIL)}, low" not in {item.name for item in figure.data}  # one prompt has no band
    measured = named(figure, "measured")
    assert list(measured.x) == [0.3] and list(measured.y) == [3.0] and measured.mode == "markers+text"
    assert measured.text == ("measured 3.00×",) and not measured.cliponaxis
    assert measured.error_y.arrayminus[0] == pytest.approx(1.0)
    assert {line.x0 for line in figure.layout.shapes} == {0, 0.25}
    for drawn in (figure, acceptance_figure(curves)):
        assert "2 and 1 prompts, in the legend's order" in drawn.layout.title.subtitle.text.replace("<br>", " ")
    assert "· 2 prompts ·" in speedup_figure({"γ = 5": curve}).layout.title.subtitle.text.replace("<br>", " ")


def test_heat_map(recordings):
    cells = grid(recordings, COST, [0.0, 0.4, 0.8], [1, 3], pass_mode="fast", resamples=50)
    figure = heat_map_figure(cells)
    heat = named(figure, "speedup")
    assert list(heat.x) == [0, 0.4, 0.8] and list(heat.y) == [1, 3] and heat.zmid == 1
    np.testing.assert_array_equal(heat.z, cells.speedup.T)
    np.testing.assert_array_equal(heat.customdata[1, 2], [cells.low[2, 1], cells.high[2, 1]])
    star = figure.data[1]
    row, column = np.unravel_index(cells.speedup.argmax(), cells.speedup.shape)
    assert (star.x[0], star.y[0]) == (cells.thresholds[row], cells.max_drafts[column])
    assert f"{cells.speedup.max():.2f}×" in star.name


def test_acceptance(curves):
    line = named(acceptance_figure(curves), "γ = 5")
    found = metrics(curves["γ = 5"].counts)
    np.testing.assert_array_equal(line.x, found.mean_draft_length)
    np.testing.assert_array_equal(line.y, found.acceptance_rate)
    assert line.line.dash == "dash"


def test_timeline_spans_touch_and_add_up(trace):
    times = round_times(trace, COST, pass_mode="fast")
    figure = timeline_figure(trace, times)
    draft, target = named(figure, "draft"), named(figure, "target")
    # A span is a rectangle: start, start, end, end.
    corners = {lane.name: np.asarray(lane.x, float).reshape(-1, 4) for lane in figure.data}
    start = {name: spans[:, 0] for name, spans in corners.items()}
    end = {name: spans[:, 2] for name, spans in corners.items()}
    np.testing.assert_allclose(end["draft"] - start["draft"], times.draft, rtol=1e-5)
    np.testing.assert_array_equal(start["target"], end["draft"])
    np.testing.assert_array_equal(start["overhead"], end["target"])
    np.testing.assert_array_equal(start["draft"][1:], end["overhead"][:-1])
    assert end["overhead"][-1] == pytest.approx(predict(trace, COST, pass_mode="fast").seconds)
    assert draft.fillcolor != target.fillcolor
    assert figure.layout.xaxis.title.text == "time (s)"
    quick = replace(times, draft=times.draft / 1e3, verify=times.verify / 1e3, overhead=times.overhead / 1e3)
    in_milliseconds = timeline_figure(trace, quick)
    assert in_milliseconds.layout.xaxis.title.text == "time (ms)"
    np.testing.assert_allclose(in_milliseconds.data[0].x, draft.x)
    np.testing.assert_allclose(draft.customdata[::4, -1], times.draft * 1e3, rtol=1e-6)  # a round's is told in ms
    measured = replace(times, origin="measured")
    assert draft.fillpattern.shape and not timeline_figure(trace, measured).data[0].fillpattern.shape


def test_run_lengths(trace):
    figure = run_lengths_figure(trace)
    for name, column in (("proposed", "proposed"), ("✓ accepted", "accepted")):
        bars, heights = named(figure, name), trace.rounds[column]
        # A bar is four corners, bottom left first; bars of height 0 are left out, and the foot is out of sight.
        x, y = (np.asarray(values, float).reshape(-1, 4) for values in (bars.x, bars.y))
        np.testing.assert_allclose((x[:, 0] + x[:, 2]) / 2, np.flatnonzero(heights), atol=1e-6)
        np.testing.assert_array_equal(y[:, 1], heights[heights > 0])
        assert (y[:, 0] < figure.layout.yaxis.range[0]).all() and y.max() < figure.layout.yaxis.range[1]
        np.testing.assert_array_equal(
            bars.customdata[::4], np.stack([np.arange(len(heights)), heights], 1)[heights > 0]
        )
    reasons = trace.rounds["stop_reason"][trace.rounds["proposed"] > 0]
    np.testing.assert_array_equal(named(figure, "proposed").text[::4], reasons)


def test_confidence_lanes_hold_every_draft_step_once(trace):
    figure = confidence_figure(trace, "token {}".format)
    steps = trace.steps
    by_name = {lane.name.split(" ", 1)[1].split(":")[0]: lane for lane in figure.data}
    withheld = steps["status"] == "withheld"
    agrees = steps["token"] == steps["target_token"]
    of_outcome = {status: steps["status"] == status for status in ("accepted", "rejected", "discarded")}
    of_outcome["wrongly withheld"] = withheld & agrees
    of_outcome["rightly withheld"] = withheld & ~agrees & (steps["target_token"] >= 0)
    of_outcome["withheld, untested"] = withheld & (steps["target_token"] < 0)
    assert np.sum(list(of_outcome.values())) == (steps["source"] == "draft").sum()
    assert {name: int(lane.name.split(": ")[1]) for name, lane in by_name.items()} == {
        name: found.sum() for name, found in of_outcome.items()
    }
    # The discarded are a histogram, four corners a bin, all with the bin's edges and count.
    bins = np.asarray(by_name.pop("discarded").customdata).reshape(-1, 4, 3)
    assert (bins == bins[:, :1]).all()
    discarded = steps["confidence"][of_outcome["discarded"]]
    assert len(discarded)
    for low, high, count in bins[:, 0]:
        assert count == ((discarded >= low) & ((discarded < high) | (high == 1))).sum()
    # The others are strokes, two ends a step, both with what hovering tells.
    for name, lane in by_name.items():
        rows = np.flatnonzero(of_outcome[name])
        rows = rows[np.argsort(steps["confidence"][rows], kind="stable")]
        x, y, details = (np.reshape(values, (len(rows), 2, -1)) for values in (lane.x, lane.y, lane.customdata))
        told = np.stack([steps[column][rows] for column in ("confidence", "position", "round")], axis=-1)
        for end in range(2):
            np.testing.assert_array_equal(details[:, end], told)
            np.testing.assert_array_equal(x[:, end, 0], steps["confidence"][rows])
        assert list(lane.text) == [repr(f"token {token}") for token in steps["token"][rows] for _ in range(2)]
        height = list(figure.layout.yaxis.ticktext).index(lane.name.split(":")[0])
        assert len(np.unique(y[:, 0])) <= 1 and ((y > height - 0.5) & (y < height + 0.5)).all()
        assert (y[:, 1] > y[:, 0]).all()
    assert figure.layout.shapes[0].x0 == figure.layout.annotations[0].x == 0.4


def test_time_adds_up(trace):
    prediction = predict(trace, COST, pass_mode="fast")
    figure = time_figure(prediction, PAIR)
    spent = sum(bar.x[0] for bar in figure.data if bar.y[0] == "speculative")
    assert spent == pytest.approx(prediction.seconds)
    [bar] = [bar for bar in figure.data if bar.y[0] == "plain"]
    assert bar.x[0] == pytest.approx(prediction.plain_seconds)


def every_figure(curves, recordings, trace) -> list[go.Figure]:
    times, prediction = round_times(trace, COST, pass_mode="fast"), predict(trace, COST, pass_mode="fast")
    return [
        speedup_figure(curves, [measured_point(0.3, 5, [[2.0]], [[1.0]])], 0.3),
        heat_map_figure(grid(recordings, COST, [0.0, 0.4], [1, 3], pass_mode="fast", resamples=20)),
        acceptance_figure(curves),
        timeline_figure(trace, times),
        run_lengths_figure(trace),
        confidence_figure(trace, lambda token: EVIL),
        time_figure(prediction, PAIR),
    ]


def test_figures_say_where_numbers_come_from_and_suit_both_themes(curves, recordings, trace):
    origins = ["Modelled", "Modelled", "Replayed", "Modelled", "Replayed", "Replayed", "Modelled"]
    for figure, origin in zip(every_figure(curves, recordings, trace), origins, strict=True):
        subtitle = figure.layout.title.subtitle.text.replace("<br>", " ")
        assert subtitle.startswith(origin)
        device = "target (fp32) with draft (fp32) on an unnamed device" if origin == "Replayed" else describe_pair(PAIR)
        assert device in subtitle or describe_pair(PAIR) in subtitle
        assert "prompt" in subtitle or "tokens" in subtitle
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert figure.layout.font.color is None and figure.layout.title.font.color is None


def test_texts_are_never_markup(curves, recordings, trace):
    for figure in every_figure(curves, recordings, trace):
        text = figure.to_json()
        for tag in ("<b>", "<script", "<a ", "\\u003cb\\u003e", "\\u003cscript", "\\u003ca "):
            assert tag not in text
    hover = confidence_figure(trace, lambda token: EVIL).data[-1].text[0]
    assert hover == plain(repr(EVIL)) and "&lt;b&gt;" in hover and "&amp; " in hover
    pair = PairInfo(target="<b>x</b>", draft="<script>", device="<i>cpu</i>")
    subtitle = new_figure("a", "measured", [describe_pair(pair)], "", "").layout.title.subtitle.text
    assert "<b>" not in subtitle and "<script>" not in subtitle and "&lt;script&gt;" in subtitle


def test_neither_torch_nor_streamlit_is_needed():
    script = "import sys, specviz.plots, specviz.analysis; print(sorted({'torch', 'streamlit'} & set(sys.modules)))"
    assert run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
