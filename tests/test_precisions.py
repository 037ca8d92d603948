"""Full precision against quantised: what the comparison says is what plain transformers and bitsandbytes say."""

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from specviz import cli
from specviz.analysis.precision_files import MAIN_FILE, read_comparison
from specviz.analysis.precisions import (
    combination_table,
    describe_comparison,
    error_table,
    first_divergence,
    precision_comparison,
)
from specviz.analysis.prompts import Prompt
from specviz.bench import precision as bench_precision
from specviz.bench.pair import BenchPair
from specviz.engine import precision_comparison as measuring
from specviz.engine.calibration import calibrate_together
from specviz.engine.memory_probe import Footprint, probe
from specviz.engine.precision_comparison import Combination, compare_precisions, with_baseline
from specviz.engine.random_pair import forced_recordings
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import PairInfo, read_recordings, trace_differences

PROMPTS = [Prompt(str(number), "", text) for number, text in enumerate(("the cat sat", "an apple a day"))]
FOOTPRINT = Footprint(1.5, 1000)
PRECISIONS = ("bf16", "nf4", "int8")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return tuple(map(str, tiny_models.save_pair(tmp_path_factory.mktemp("pair"), "llama")))


def run(pair, parts, combinations, **arguments):
    return compare_precisions(
        *pair, list(map(Combination.parse, combinations)), PROMPTS, parts, device="cpu", **arguments
    )


@pytest.fixture(scope="module")
def measured(pair, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "probe", lambda *_: FOOTPRINT)
        patch.setattr("specviz.measure.costs.calibrate_together", partial(calibrate_together, repeats=3))
        combinations = [f"{precision}:{precision}" for precision in PRECISIONS]
        return run(pair, tmp_path_factory.mktemp("parts"), combinations, max_new_tokens=24, max_draft=4)


@pytest.fixture(scope="module")
def comparison(measured):
    return precision_comparison(measured)


def plain_model(folder, precision):
    config = {
        "int8": BitsAndBytesConfig(load_in_8bit=True),
        "nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"),
    }.get(precision)
    dtype = torch.bfloat16 if precision in ("bf16", "nf4") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=config).eval()
    for layer in model.modules():  # too narrow for the library's AVX-512 kernel, which asserts
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    return model


def scale_bytes(model):
    """Bytes of the scales, which transformers does not count: fp32, one a row in int8, one a block of 64 in 4 bits."""
    kinds = {
        "Linear8bitLt": lambda layer: layer.out_features,
        "Linear4bit": lambda layer: layer.weight.numel() * 2 / 64,
    }
    return sum(4 * kinds[type(layer).__name__](layer) for layer in model.modules() if type(layer).__name__ in kinds)


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("precision", ["fp32", *PRECISIONS])
def test_quantisation_error_is_what_plain_transformers_and_bitsandbytes_say(pair, comparison, role, precision):
    """One independent computation of agreement, divergence, perplexity, margin and memory for every cell."""
    folder = pair[role == "draft"]
    ours, reference = plain_model(folder, precision), plain_model(folder, "fp32")
    memory = ours.get_memory_footprint() + scale_bytes(ours)
    agreeing, divergences, surprises, margins = [], [], [], []
    for recording in comparison.baseline.recordings.recordings:
        prompt, output = recording.prompt_ids.tolist(), recording.output_ids.tolist()
        ids = torch.tensor([prompt + output])
        with torch.no_grad():
            logits = ours(ids[:, :-1]).logits[0, len(prompt) - 1 :].float()
            wanted = reference(ids[:, :-1]).logits[0, len(prompt) - 1 :].float()
        p = wanted.softmax(-1)
        agreeing += (logits.argmax(-1) == wanted.argmax(-1)).tolist()
        divergences += (
            torch.nn.functional.kl_div(logits.log_softmax(-1), p.log(), reduction="none", log_target=True)
            .sum(-1)
            .tolist()
        )
        surprises.append(torch.nn.functional.cross_entropy(logits, torch.tensor(output), reduction="none"))
        first, second = wanted.sort(-1).values[:, -1], wanted.sort(-1).values[:, -2]
        margins += (first - second).tolist()
    table = error_table(comparison).set_index(["role", "precision"]).loc[(role, precision)]
    # the engine's head is fp32 whatever the layers are, plain transformers' is not: that is all that may differ
    loose = {"rel": 0.05, "abs": 2e-3}
    assert table.positions == len(agreeing)
    assert table.agreement == pytest.approx(np.mean(agreeing), abs=1.5 / len(agreeing))
    assert table.divergence_mean == pytest.approx(np.mean(divergences), **loose)
    assert table.divergence_p95 == pytest.approx(np.quantile(divergences, 0.95), rel=0.1, abs=5e-3)
    assert table.divergence_worst == pytest.approx(np.max(divergences), rel=0.1, abs=5e-3)
    assert table.perplexity == pytest.approx(torch.cat(surprises).mean().exp().item(), rel=0.03)
    assert table.memory_bytes == pytest.approx(memory, rel=0.01)
    if precision != "fp32":
        assert table.divergence_mean > 0
    model = next(model for model in comparison.models if (model.role, model.precision) == (role, precision))
    found = np.concatenate([text.reference_margin for text in model.texts])
    np.testing.assert_allclose(found, margins, atol=1e-3)
    text, position = model.worst
    assert model.texts[text].divergence[position] == model.divergence[2]


def test_both_baselines_are_what_they_say(measured, comparison):
    table = combination_table(comparison).set_index("combination")
    rates = {}
    for combination in comparison.combinations:
        row = table.loc[combination.label]
        policy = ConfidenceThreshold(float(row.threshold))
        traces = [replay(each, policy, int(row.max_draft)) for each in combination.recordings.recordings]
        times = combination.cost.mode()
        tokens = sum(len(trace.run.output_ids) for trace in traces)
        # plain decoding by hand: every token at its own context
        contexts = np.concatenate([len(t.run.prompt_ids) + np.arange(len(t.run.output_ids)) for t in traces])
        plain = np.interp(contexts, combination.cost.contexts, times.plain_step.median).sum()
        rates[combination.label] = tokens / plain
        assert row.plain_tokens_per_second == pytest.approx(tokens / plain, rel=0.02)
        assert row.speedup == pytest.approx(row.tokens_per_second / row.plain_tokens_per_second, rel=1e-6)
        assert row.speedup_over_full == pytest.approx(row.tokens_per_second / rates["bf16:bf16"], rel=0.02)
        assert row.full_low <= row.speedup_over_full <= row.full_high
        accepted, proposed = (sum(t.rounds[name].sum() for t in traces) for name in ("accepted", "proposed"))
        rate = accepted / proposed if proposed else np.nan  # nothing is proposed where drafting never pays
        assert row.acceptance_rate == pytest.approx(rate, nan_ok=True)
    assert table.loc["bf16:bf16"].same_output == 1 and np.isnan(table.loc["bf16:bf16"].first_divergence)
    first, second = (c.recordings.recordings for c in comparison.combinations[:2])
    agreeing = [
        next((i for i, (a, b) in enumerate(zip(x.output_ids, y.output_ids, strict=False)) if a != b), None)
        for x, y in zip(first, second, strict=True)
    ]
    parted = [position for position in agreeing if position is not None]
    assert table.loc["nf4:nf4"].same_output == 1 - len(parted) / len(agreeing)
    assert table.loc["nf4:nf4"].first_divergence == pytest.approx(np.median(parted) if parted else np.nan, nan_ok=True)
    assert table.loc["bf16:bf16"].speedup_over_full == pytest.approx(table.loc["bf16:bf16"].speedup)
    said = describe_comparison(comparison)
    assert "over its own plain" in said and "over bf16 plain" in said
    for model in comparison.models:
        if model.divergence[2] > 0:
            assert f"Worst of {model.role}, {model.precision}: {model.divergence[2]:.2f} nats" in said


def test_first_divergence_is_found_with_its_margins(comparison):
    full, other = (comparison.combinations[place].recordings.recordings[0] for place in (0, 1))
    assert first_divergence(full, full) is None
    changed = full.output_ids.copy()
    changed[7] += 1
    margins = other.target_margin.copy()
    margins = np.resize(margins, len(changed))
    found = first_divergence(full, replace(full, output_ids=changed, target_margin=margins))
    assert (found.position, found.full_token, found.other_token) == (7, full.output_ids[7], changed[7])
    assert (found.full_margin, found.other_margin) == (full.target_margin[7], margins[7])
    short = replace(full, output_ids=full.output_ids[:5], target_margin=full.target_margin[:5])
    ended = first_divergence(full, short)
    assert (ended.position, ended.other_token) == (5, -1) and np.isnan(ended.other_margin)


def test_command_writes_what_it_prints_and_goes_on_after_a_stop(pair, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "probe", lambda *_: FOOTPRINT)
    monkeypatch.setattr("specviz.measure.costs.calibrate_together", partial(calibrate_together, repeats=3))
    parts = tmp_path / "out.parts"

    def one_is_kept():
        return any(parts.glob("*.parquet"))

    assert run(pair, parts, ["nf4:bf16"], max_new_tokens=16, max_draft=3, stopped=one_is_kept) is None
    assert len(list(parts.glob("*.parquet"))) == 1
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(prompt.text for prompt in PROMPTS), "utf-8")
    command = ["compare", "--pairs", "nf4:bf16, bf16:bf16", "--out", str(tmp_path / "out"), "--prompts", str(prompts)]
    command += ["--target", pair[0], "--draft", pair[1], "-n", "16", "-g", "3", "--device", "cpu"]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    back = read_comparison(tmp_path / "out")
    assert describe_comparison(back).splitlines()[:4] == printed.splitlines()[:4]
    assert back.full == 1 and back.full_precision == "bf16"
    assert not parts.exists()
    recordings = read_recordings(tmp_path / "out" / "nf4-bf16.parquet")
    assert recordings.pair.target_precision == "nf4" and recordings.cost_model
    text = (tmp_path / "out" / "combinations.csv").read_text("utf-8")
    assert text.startswith("combination,") and text.count("\n") == 3
    assert (tmp_path / "out" / "models.csv").exists()


@pytest.mark.parametrize(
    "damage", [{"full": 9}, {"version": 99}, {"combinations": [{"label": "../x:y"}]}, {"tokens": 3}]
)
def test_a_damaged_comparison_is_a_sentence(pair, measured, comparison, tmp_path, damage):
    from specviz.analysis.precision_files import write_comparison

    write_comparison(comparison, tmp_path)
    assert combination_table(read_comparison(tmp_path)).equals(combination_table(comparison))
    values = json.loads((tmp_path / MAIN_FILE).read_text("utf-8"))
    (tmp_path / MAIN_FILE).write_text(json.dumps(values | damage), "utf-8")
    with pytest.raises(SpecVizError, match=r"\.$"):
        read_comparison(tmp_path)


@pytest.mark.parametrize("text", ["bf16", "nf4:", ":bf16", "bf16:int4", "int8+double:bf16"])
def test_no_combination_is_a_sentence(text):
    with pytest.raises(SpecVizError, match=r"\.$"):
        Combination.parse(text)


def test_a_baseline_is_always_there():
    quantised = [Combination("nf4", "bf16"), Combination("nf4", "bf16"), Combination("int8", "int8")]
    wanted, full = with_baseline(quantised, "cpu")
    assert full == 0 and wanted[0].target in ("fp32", "bf16") and wanted[1:] == quantised[1:]
    assert with_baseline([*quantised, Combination("fp32", "nf4")], "cpu")[1] == 2


def test_a_precision_that_is_missing_is_named_before_anything_loads(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setattr(measuring, "load_pair", lambda *_: pytest.fail("loaded"))
    with pytest.raises(SpecVizError, match="pip install bitsandbytes"):
        run(pair, tmp_path, ["bf16:bf16", "nf4:bf16"])


@pytest.mark.parametrize("asked", [{"max_new_tokens": 0}, {"max_draft": 0}])
def test_a_length_below_one_is_named_before_anything_loads_or_is_written(pair, tmp_path, monkeypatch, asked):
    for name in ("load_pair", "probe"):
        monkeypatch.setattr(measuring, name, lambda *_: pytest.fail("loaded"))
    with pytest.raises(SpecVizError, match="between 1 and"):
        run(pair, tmp_path / "parts", ["bf16:bf16"], **asked)
    assert not (tmp_path / "parts").exists()


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(pair):
    found = probe(pair[0], "fp32", "cpu", 4)
    assert found.load_seconds > 0 and 0 < found.peak_bytes < 2e9
    with pytest.raises(SpecVizError, match="could not be measured"):
        probe(pair[0] + "/nowhere", "fp32", "cpu", 4)


@pytest.mark.parametrize("precision", ["nf4", "int8+t0"])
def test_replay_equals_the_engine_where_rows_are_independent(pair, precision):
    from specviz.engine.engine import Engine, Settings
    from specviz.engine.recording import record
    from specviz.models.loading import load_pair

    engine = Engine(load_pair(*pair, precision, precision, "cpu"), widest_draft=4)
    recording = record(engine, [11, 7, 42, 99], max_new_tokens=24, max_draft=4, method="exact")
    for threshold, length in ((0.0, 4), (0.4, 2), (0.8, 4)):
        policy = ConfidenceThreshold(threshold)
        real = engine.trace([11, 7, 42, 99], Settings(policy, length, 24))
        assert trace_differences(real, replay(recording, policy, length)) == []


def test_a_random_pair_of_a_size_gives_times_at_forced_agreement(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("specviz.bench.real_size.CONTEXTS", (8, 160))
    monkeypatch.setattr("specviz.measure.costs.calibrate_together", partial(calibrate_together, repeats=3))
    pairs = "bf16:bf16,nf4:bf16,int8:int8"
    command = ["compare", "--random", "tiny", "--pairs", pairs, "--device", "cpu", "--out", str(tmp_path), "-g", "3"]
    assert cli.main(command) == 0
    assert "forced" in capsys.readouterr().out
    found = pd.read_csv(tmp_path / "random.csv")
    assert found["combination"].tolist() == [name for name in pairs.split(",") for _ in range(3)]
    for _, rows in found.groupby("combination"):
        assert rows["speedup"].is_monotonic_increasing, "more agreement, more speedup"
    assert found["memory_bytes"].nunique() == 3
    assert cli.main([*command[:2], "9b", *command[3:]]) == 2


def test_forced_agreement_is_the_rate_it_says():
    made = forced_recordings(PairInfo(), {"pass_mode": "fast"}, 0.7, tokens=400, max_draft=4, prompts=4)
    right = np.concatenate([r.draft_token == r.output_ids for r in made.recordings])
    assert abs(right.mean() - 0.7) < 4 * (0.7 * 0.3 / len(right)) ** 0.5


def test_bench_precision_tells_what_must_be_equal_from_what_cannot(pair, monkeypatch, capsys):
    monkeypatch.setattr(bench_precision, "SETTINGS", ((0.0, 1), (0.5, 8)))
    bench = BenchPair(*pair, device="cpu")
    run_bench = partial(bench_precision.run, [[11, 7, 42, 99, 5]], bench, max_new_tokens=12)
    assert run_bench(precisions=("bf16", "nf4", "int8"))
    printed = capsys.readouterr().out
    assert "met      bf16: equal bit for bit" in printed and "met      nf4: equal bit for bit" in printed
    assert "int8: equal" not in printed and "flips in passes" in printed
    # and it can fail: a replay of another draft length
    wrong = lambda recording, policy, max_draft: replay(recording, policy, 2)  # noqa: E731
    monkeypatch.setattr(bench_precision, "replay", wrong)
    assert not run_bench(precisions=("bf16",))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(SpecVizError, match="nothing was measured"):
        run_bench(precisions=("nf4",))
    assert "nf4 was left out" in capsys.readouterr().out
