"""What the engine measures: shapes and plausibility (never a limit on time), and its way into a cost model."""

import numpy as np
import pytest
import tiny_models
from engine_helpers import loaded_pair

from specviz.analysis.calibrated import cost_model, cost_models
from specviz.analysis.prediction import predict
from specviz.engine.calibration import PassSamples, calibrate, calibrate_together
from specviz.engine.engine import Engine, Settings
from specviz.engine.measurement import measure
from specviz.engine.runner import ModelRunner
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold
from specviz.trace import PairInfo


@pytest.mark.parametrize(("pass_mode", "widths"), [("fast", (1, 2, 3, 4, 5)), ("invariant", (5,))])
def test_samples_make_a_cost_model_that_prices_a_trace(pass_mode, widths):
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode=pass_mode, widest_draft=4)
    samples = calibrate(engine, contexts=(4, 20, 40), max_draft=4, repeats=3)
    assert samples.widths == widths
    assert samples.target_pass.shape == (len(widths), 3, 3)
    assert samples.draft_step.shape == (2, 3, 3) and samples.plain_step.shape == (3, 3)
    assert (samples.target_pass > 0).all() and (samples.draft_step > 0).all()
    trace = engine.trace([5, 6, 7, 8], Settings(ConfidenceThreshold(0.3), 4, 20))
    price = predict(trace, cost_model(samples))
    assert np.isfinite(price.speedup) and price.speedup > 0


def test_calibration_leaves_the_engine_as_it_was():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="invariant", widest_draft=4)
    settings = Settings(ConfidenceThreshold(0.3), 4, 20)
    before = engine.trace([5, 6, 7, 8], settings)
    calibrate(engine, contexts=(4, 20), max_draft=4, repeats=1)
    assert engine.trace([5, 6, 7, 8], settings).run.output_ids == before.run.output_ids


def test_a_stopped_calibration_says_so():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    with pytest.raises(SpecVizError, match="stopped"):
        calibrate(engine, contexts=(4, 20), repeats=1, stopped=lambda: True)


def test_a_calibration_stops_while_it_fills_its_caches():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    stages = []
    with pytest.raises(SpecVizError, match="stopped"):
        calibrate(
            engine,
            contexts=(4, 20, 40),
            repeats=1,
            stopped=lambda: len(stages) > 1,
            progress=lambda stage, share: stages.append(share),
        )
    assert stages == [0, 1 / 3], "the third cache is not filled any more"


@pytest.mark.parametrize("passes", [9, 30])
def test_a_calibration_stops_before_its_next_pass(monkeypatch, passes):
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    run, forward = [], ModelRunner.forward
    monkeypatch.setattr(ModelRunner, "forward", lambda runner, tokens: run.append(1) or forward(runner, tokens))
    with pytest.raises(SpecVizError, match="stopped"):
        calibrate(engine, contexts=(4, 20), max_draft=4, repeats=3, stopped=lambda: len(run) >= passes)
    assert len(run) == passes


def test_a_calibration_stops_while_it_runs_real_rounds():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    shares = [0.0]
    with pytest.raises(SpecVizError, match="stopped"):
        calibrate(
            engine,
            contexts=(4, 20),
            repeats=3,
            stopped=lambda: len(shares) > 4,
            progress=lambda stage, share: shares.append(share),
        )
    assert 0 < shares[-1] < 1 and sorted(shares[3:]) == shares[3:]


def test_measuring_runs_every_setting_beside_its_baseline():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    settings = [Settings(ConfidenceThreshold(t), 4, 12) for t in (0.0, 0.5)]
    measured = measure(engine, [[5, 6, 7], [8, 9]], settings, repeats=2)
    assert len(measured.plain_seconds) == 2 and all(len(row) == 2 for row in measured.plain_seconds)
    assert [len(traces) for traces in measured.traces] == [2, 2]
    for row in range(2):
        assert len(measured.speedups(row)) == 2 and min(measured.speedups(row)) > 0
    outputs = {trace.run.output_ids for traces in measured.traces for trace in traces}
    assert len(outputs) == 2, "one output per prompt, whatever the setting"


def test_slow_spells_of_the_machine_do_not_bend_the_ratios():
    """Every repetition on a machine of another speed: what each thing costs in terms of another stays."""
    pair = PairInfo("t", "d", device="CPU")
    true = np.linspace(0.04, 0.08, 9)[:, None] * np.array([1.0, 1.1])  # (W, C)
    errors = {"raw": [], "steadied": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        spells = rng.lognormal(0, 0.4, 20)
        target_pass, draft_step, plain_step = (
            cost[..., None] * spells * rng.lognormal(0, 0.05, (*cost.shape, 20))
            for cost in (true, true[:2] / 5, true[0])
        )
        measured = PassSamples(
            pair, "fast", False, (10, 100), tuple(range(1, 10)), target_pass, draft_step, plain_step, np.zeros(20)
        )
        found = cost_model(measured).mode().target_pass.median
        raw = np.median(measured.target_pass, axis=-1)
        for name, table in (("raw", raw), ("steadied", found)):
            errors[name].append(np.abs(table / table[0, 0] / (true / true[0, 0]) - 1).mean())
    assert np.mean(errors["steadied"]) < 0.015, errors
    assert np.mean(errors["steadied"]) < 0.7 * np.mean(errors["raw"]), errors


def test_a_calibration_keeps_to_its_time():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    samples = calibrate(engine, contexts=(4, 20), max_draft=2, repeats=50, time_limit=0.0)
    assert samples.plain_step.shape == (2, 3)
    assert samples.target_pass.shape[-1] == samples.draft_step.shape[-1] == 3


def test_engines_that_take_turns_share_the_spells_of_the_machine():
    pair, rng = PairInfo("t", "d", device="CPU"), np.random.default_rng(1)
    spells = rng.lognormal(0, 0.5, 21)
    spells[:11] *= 3
    costs = {"first": np.array([[0.04], [0.06]]), "second": np.array([[0.02], [0.05]])}
    together = [
        PassSamples(
            pair,
            "fast",
            False,
            (10,),
            (1, 2),
            *(c[..., None] * spells * rng.lognormal(0, 0.02, (*c.shape, 21)) for c in (cost, cost / 5, cost[0])),
            np.zeros(21),
        )
        for cost in costs.values()
    ]
    first, second = (model.mode().target_pass.median for model in cost_models(together))
    np.testing.assert_allclose(second / first, costs["second"] / costs["first"], rtol=0.03)


def test_calibrating_together_measures_each_engine_in_its_own_passes():
    engines = [Engine(loaded_pair(tiny_models.tiny_pair(name)), pass_mode="fast") for name in ("llama", "qwen2")]
    samples = calibrate_together(engines, contexts=(4, 20), max_draft=2, repeats=3)
    assert [each.target_pass.shape for each in samples] == [(3, 2, 3)] * 2
    for model in cost_models(samples):
        assert (model.mode().target_pass.median > 0).all()
