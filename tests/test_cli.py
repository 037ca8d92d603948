"""The command line on a small pair saved to disk: what it prints and writes, and a sentence for every wrong input."""

from dataclasses import replace

import pandas as pd
import pytest
import tiny_models

from specviz import cli
from specviz.trace import read_recordings, read_trace_csv, used_tokens, write_recordings


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    target, draft = tiny_models.save_pair(tmp_path_factory.mktemp("pair"), "llama")
    return ["--target", str(target), "--draft", str(draft), "--precision", "fp32"]


def run(arguments, capsys):
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_run_prints_a_summary_and_writes_the_trace(pair, tmp_path, capsys):
    status, out, _ = run(["run", "the cat", *pair, "-n", "24", "-t", "0.3", "--csv", str(tmp_path / "t")], capsys)
    assert status == 0
    for words in ("tokens per target pass", "acceptance rate", "measured speedup", "plain decoding"):
        assert words in out
    trace, _ = read_trace_csv(tmp_path / "t")
    assert len(trace.run.output_ids) == 24
    assert trace.run.prompt == "the cat"
    rounds = pd.read_csv(tmp_path / "t" / "rounds.csv")
    assert rounds["emitted"].sum() == 24


def test_a_sampled_run_says_its_rule_and_writes_its_settings(pair, tmp_path, capsys):
    options = ["--temperature", "0.8", "--top-p", "0.9", "--seed", "3", "-n", "16", "--csv", str(tmp_path / "t")]
    status, out, _ = run(["run", "the cat", *pair, *options, "--rule", "lenient=0.5", "--no-baseline"], capsys)
    assert status == 0 and "lossy" in out
    trace, _ = read_trace_csv(tmp_path / "t")
    assert trace.run.seed == 3
    assert (trace.run.settings["rule"], trace.run.settings["lenience"]) == ("lenient", 0.5)
    assert trace.run.settings["sampling"]["temperature"] == 0.8
    status, out, _ = run(["run", "the cat", *pair, *options], capsys)
    assert status == 0 and "coupled" in out and "lossless" in out and "measured speedup" in out


def test_a_sampled_recording_can_be_swept(pair, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("the cat\n")
    arguments = ["record", "--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "s.parquet"), *pair]
    arguments += ["-n", "12", "--temperature", "1", "--seed", "2"]
    assert run(arguments, capsys)[0] == 0
    recordings = read_recordings(tmp_path / "s.parquet")
    assert recordings.settings["rule"] == "coupled" and recordings.recordings[0].seed == 2
    assert run(["sweep", str(tmp_path / "s.parquet")], capsys)[0] == 0
    status, _, complaint = run([*arguments, "--rule", "typical"], capsys)
    assert status == 2 and "lossless rule" in " ".join(complaint.split())


def test_record_then_sweep(pair, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat\nthe dog sat\n")
    out = tmp_path / "set.parquet"
    status, printed, _ = run(["record", "--prompts", str(prompts), "--out", str(out), *pair, "-n", "16"], capsys)
    assert status == 0 and "2 prompts recorded" in printed
    recordings = read_recordings(out)
    assert [r.prompt for r in recordings.recordings] == ["the cat", "the dog sat"]
    assert recordings.cost_model is not None
    assert set(used_tokens(recordings.recordings)) == set(recordings.tokens)
    assert not list(tmp_path.glob("*.parts"))
    status, printed, _ = run(["sweep", str(out), "--csv", str(tmp_path / "sweep.csv")], capsys)
    assert status == 0 and "best at" in printed
    assert len(pd.read_csv(tmp_path / "sweep.csv")) > 16

    parts = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    for part, recording in zip(parts, recordings.recordings, strict=True):
        write_recordings(replace(recordings, recordings=[recording]), part)
    status, pooled, _ = run(["sweep", *map(str, parts), "--csv", str(tmp_path / "pooled.csv")], capsys)
    assert status == 0 and "best at" in pooled
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "pooled.csv"), pd.read_csv(tmp_path / "sweep.csv"))
    status, _, complaint = run(["sweep", str(out), str(out)], capsys)
    assert status == 2 and "given twice" in " ".join(complaint.split())

    other = tmp_path / "other.parquet"
    run(["record", "--prompts", str(prompts), "--out", str(other), *pair, "-n", "16", "--measure-costs-again"], capsys)
    status, _, complaint = run(["sweep", str(out), str(other)], capsys)
    assert status == 2 and "another cost model" in " ".join(complaint.split())


def test_one_bad_prompt_is_reported_and_the_rest_recorded(pair, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"the cat\n{'long ' * 300}\nthe dog\n")
    out = tmp_path / "set.parquet"
    status, _, complaint = run(
        ["record", "--prompts", str(prompts), "--out", str(out), *pair, "-n", "8", "--no-cost-model"], capsys
    )
    assert status == 1 and "was left out" in complaint
    assert len(read_recordings(out).recordings) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", ""], "prompt is empty"),
        (["run", "  \n"], "prompt is empty"),
        (["run", "x", "-g", "0"], "draft length is 0"),
        (["run", "x", "-t", "1.5"], "between 0 and 1"),
        (["run", "x", "-t", "nan"], "between 0 and 1"),
        (["run", "x", "-n", "0"], "between 1 and 1,000,000"),
        (["run", "x", "--pass-mode", "quick"], "pass mode"),
        (["run", "x", "--temperature", "-1"], "temperature"),
        (["run", "x", "--rule", "luck"], "no acceptance rule"),
        (["run", "x", "--rule", "greedy", "--temperature", "1"], "set the temperature to 0"),
        (["run", "long " * 300], "shorten"),
        (["run", "x", "--precision", "fp8"], "precision"),
        (["run", "x", "--target", "/no/such/folder"], "/no/such/folder"),
        (["record", "--prompts", "/no/such/file", "--out", "x.parquet"], "/no/such/file"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(arguments, words, pair, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = set(arguments)
    options = [o for name, value in zip(pair[::2], pair[1::2], strict=True) if name not in given for o in (name, value)]
    status, _, complaint = run([*arguments, *options], capsys)
    assert status == 2
    assert words in " ".join(complaint.split())
    assert "Traceback" not in complaint
    assert not list(tmp_path.iterdir()), "something half-written was left behind"


def test_a_corrupt_recording_set_is_a_sentence(tmp_path, capsys):
    broken = tmp_path / "set.parquet"
    broken.write_bytes(b"PAR1 this is no parquet file")
    status, _, complaint = run(["sweep", str(broken)], capsys)
    assert status == 2 and "Traceback" not in complaint
