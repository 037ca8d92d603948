"""One file has one price: page, command and report go by the same rule beyond the measured contexts."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sample_recordings import sample_cost, sample_recording

from specviz import cli
from specviz.analysis import grid
from specviz.analysis.cost_model import outside_words
from specviz.analysis.tuning import tune
from specviz.models.defaults import PASS_MODE, PRECISION
from specviz.models.precision import chosen_precision, natural_precision
from specviz.trace import RecordingSet, write_recordings
from specviz.ui.pairs import PRECISIONS
from specviz.ui.requests import PairChoice
from specviz.ui.shown import Shown

WORDS = "context lengths beyond the measured ones, priced as the nearest measured length"


def app_set(path, prompts=3):
    """A set such as the app makes of short prompts: its cost model was measured for longer contexts than its texts."""
    recordings = [
        replace(sample_recording(24, seed), prompt_ids=np.arange(13, dtype=np.int32)) for seed in range(prompts)
    ]
    cost = replace(sample_cost(), contexts=(32, 448))
    write_recordings(RecordingSet(recordings, cost.to_json()), path)
    return recordings, cost


def test_a_set_beyond_the_measured_contexts_has_one_price_and_everything_says_so(tmp_path, capsys):
    path, table = tmp_path / "set.parquet", tmp_path / "sweep.csv"
    recordings, cost = app_set(path)
    assert cli.main(["sweep", str(path), "--csv", str(table)]) == 0
    swept = " ".join(capsys.readouterr().out.split())
    assert cli.main(["tune", str(path)]) == 0
    tuned = " ".join(capsys.readouterr().out.split())
    assert f"3 of 3 texts have {WORDS}" in swept and f"3 of 3 texts have {WORDS}" in tuned
    cells = grid(recordings, cost)
    np.testing.assert_allclose(pd.read_csv(table)["speedup"], cells.speedup.ravel())
    np.testing.assert_array_equal(tune(recordings, cost, resamples=10).drop.cells.speedup, cells.speedup)
    assert WORDS in Shown("s", "", recordings[0], cost, {}).about()
    inside = replace(cost, contexts=(1, 448))
    assert WORDS not in Shown("s", "", recordings[0], inside, {}).about() and outside_words(0, 3) == ""


@pytest.mark.parametrize("command", ["record", "run", "tune", "compare", "fidelity"])
def test_app_and_commands_choose_the_same_precision_and_pass_mode(command):
    arguments = {"run": ["a prompt"], "record": ["--out", "x.parquet"], "compare": ["--out", "x"]}.get(command, [])
    options = cli.build_parser().parse_args([command, *arguments])
    assert options.pass_mode == PASS_MODE
    if command != "compare":  # which compares precisions
        assert options.precision == PRECISION == PairChoice("t", "d").target_precision == PRECISIONS[0]
    assert chosen_precision(PRECISION, "cpu") == natural_precision("cpu") and chosen_precision("nf4", "cpu") == "nf4"


def test_the_app_runs_a_pair_in_the_default_pass_mode(monkeypatch):
    from specviz.ui import running

    made = []
    monkeypatch.setattr(running, "Engine", lambda pair, **given: made.append(given))
    monkeypatch.setattr(running, "TokenText", lambda tokenizer: None)

    class Pair:
        memory_bytes, tokenizer = 1, None

    running.LivePair(Pair())
    assert made == [{"pass_mode": PASS_MODE}]


def test_the_pass_mode_that_prices_a_set_is_its_own():
    recordings = [sample_recording(24, seed) for seed in range(2)]
    cost = sample_cost()
    fast = replace(cost.modes["invariant"], widths=tuple(range(1, 10)), target_pass=_of_every_width(cost))
    both = replace(cost, modes={"fast": fast, **cost.modes})
    for mode in ("fast", "invariant"):
        own = [replace(recording, settings={**recording.settings, "pass_mode": mode}) for recording in recordings]
        assert grid(own, both).pass_mode == tune(own, both, resamples=10).pass_mode == mode


def _of_every_width(cost):
    timing = cost.modes["invariant"].target_pass
    return replace(timing, **{name: np.repeat(values, 9, axis=0) for name, values in vars(timing).items()})
