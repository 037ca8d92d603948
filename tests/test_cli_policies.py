"""The commands about when to stop, on the gallery's recording sets: no model runs."""

import pandas as pd
import pytest
import tiny_models
from analysis_helpers import flat_cost, toy_recordings

from specviz import cli
from specviz.bench import policies as bench_policies
from specviz.bench.pair import BenchPair
from specviz.bench.reporting import Verdicts
from specviz.replay.policies import FixedLength
from specviz.trace import RecordingSet, write_recordings
from specviz.ui.gallery import gallery_folder

SETS = [str(path) for path in sorted(gallery_folder().glob("*.parquet"))[:4]]


def run(arguments, capsys):
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, " ".join(captured.out.split()), " ".join(captured.err.split())


@pytest.fixture
def without_tokenizer(monkeypatch):
    """The commands must work where the target's tokenizer is not at hand."""
    from specviz.errors import SpecVizError
    from specviz.models import sources

    def nowhere(*_):
        raise SpecVizError("There is no such model.")

    monkeypatch.setattr(sources, "find_model", nowhere)


def test_arena_prints_and_writes_every_policy(tmp_path, capsys, without_tokenizer):
    files = [str(tmp_path / f"{name}.csv") for name in ("arena", "curves", "pairs")]
    arguments = ["arena", *SETS, "-g", "4", "--csv", files[0], "--curves", files[1], "--pairs", files[2]]
    status, out, err = run(arguments, capsys)
    assert status == 0 and "Optimal oracle" in out and "Cost-aware" in out and "4 prompts" in out
    assert "no kinds of position" in err and "Left out" in out
    frame = pd.read_csv(tmp_path / "arena.csv")
    assert len(frame) == 15 and frame["speedup"].is_monotonic_decreasing
    assert {"knob", "value", "speedup"} <= set(pd.read_csv(files[1])) and len(pd.read_csv(files[2])) == 13 * 12 / 2


def test_calibration_prints_the_diagram_and_writes_the_scores(tmp_path, capsys, without_tokenizer):
    status, out, _ = run(["calibration", *SETS, "--csv", str(tmp_path / "c.csv")], capsys)
    assert status == 0 and "0.9 to 1.0" in out and "depth 0" in out
    frame = pd.read_csv(tmp_path / "c.csv")
    assert frame["part"][0] == "all" and (frame["tokens"] <= frame["tokens"][0]).all()


def test_calibration_tells_precisions_apart_and_refuses_other_models(tmp_path, capsys, without_tokenizer):
    folder = gallery_folder() / "precisions"
    sets = [str(folder / f"{name}.parquet") for name in ("bf16-bf16", "nf4-bf16")]
    status, out, _ = run(["calibration", *sets], capsys)
    assert status == 0 and "target bf16, draft bf16" in out and "target nf4, draft bf16" in out
    assert "several precisions" in out
    other = tmp_path / "other.parquet"
    write_recordings(RecordingSet(toy_recordings(1, [0.5], 20)), other)
    status, _, complaint = run(["calibration", sets[0], str(other)], capsys)
    assert status == 2 and "different models" in complaint


def test_tune_recommends_and_writes_report_and_table(tmp_path, capsys):
    report, table = tmp_path / "r.html", tmp_path / "t.csv"
    whole = sorted(map(str, gallery_folder().glob("*.parquet")))  # enough prompts for a gain that is certain
    status, out, _ = run(["tune", *whole, "--html", str(report), "--csv", str(table)], capsys)
    assert status == 0
    for words in ("plain decoding", "assistant_confidence_threshold", "--spec-draft-p-min", "num_speculative_tokens"):
        assert words in out
    page = report.read_text("utf-8")
    assert "plotly" in page.lower() and "<table>" in page and "src=" not in page[: page.index("<table>")]
    assert pd.read_csv(table)["choice"].tolist() == ["drop", "keep", "fixed"]


def test_tune_records_a_pair_first(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target, draft = tiny_models.save_pair(tmp_path, "llama")
    prompts, out = tmp_path / "p.txt", tmp_path / "set.parquet"
    prompts.write_text("the cat\nthe dog sat\nan apple\n")
    arguments = ["tune", "--target", str(target), "--draft", str(draft), "--prompts", str(prompts), "-n", "12"]
    status, printed, _ = run([*arguments, "--out", str(out)], capsys)
    assert status == 0 and "3 prompts recorded" in printed and "Tuned for" in printed and out.exists()
    status, printed, _ = run(arguments, capsys)
    (named,) = tmp_path.glob("tune-*.parquet")
    assert status == 0 and f"3 prompts recorded in {named.name}" in printed
    status, _, complaint = run(arguments, capsys)
    assert status == 2 and f"{named.name} exists" in complaint
    status, _, complaint = run(["tune", str(out), "--prompts", str(prompts)], capsys)
    assert status == 2 and "not both" in complaint


@pytest.mark.parametrize("command", ["arena", "calibration", "tune"])
def test_a_set_counts_once(command, capsys, without_tokenizer):
    status, _, complaint = run([command, *SETS[:2], SETS[0]], capsys)
    assert status == 2 and "given twice" in complaint


@pytest.mark.parametrize("command", ["arena", "tune"])
def test_a_set_that_cannot_be_judged_gets_a_sentence(command, tmp_path, capsys, without_tokenizer):
    bare, single = tmp_path / "bare.parquet", tmp_path / "single.parquet"
    recordings = toy_recordings(1, [0.5], 10)
    write_recordings(RecordingSet(recordings), bare)
    status, _, complaint = run([command, str(bare)], capsys)
    assert status == 2 and "no cost model" in complaint
    write_recordings(RecordingSet(recordings, flat_cost().to_json()), single)
    if command == "arena":
        status, _, complaint = run([command, str(single)], capsys)
        assert status == 2 and "at least two" in complaint
    status, _, complaint = run([command, str(tmp_path / "none.parquet")], capsys)
    assert status == 2 and complaint


@pytest.mark.slow
def test_bench_policies_holds_on_a_small_pair_and_sees_a_policy_gone_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_policies, "time_arena", lambda verdicts: None)
    monkeypatch.setattr(bench_policies, "check_oracle", lambda verdicts: None)
    target, draft = tiny_models.save_pair(tmp_path, "llama")
    pair, prompts = BenchPair(str(target), str(draft)), [[11, 7, 42, 99, 5], [5, 6, 7]]
    assert bench_policies.run(prompts, pair, max_new_tokens=12)
    assert "NOT MET" not in capsys.readouterr().out
    monkeypatch.setattr(bench_policies, "policy_from_settings", lambda settings: FixedLength(3))
    assert not bench_policies.run(prompts, pair, max_new_tokens=12)
    assert "NOT MET" in capsys.readouterr().out


def test_the_timed_arena_is_whole(capsys):
    verdicts = Verdicts()
    bench_policies.time_arena(verdicts, recordings=2, tokens=24)
    assert verdicts.all_met, capsys.readouterr().out
