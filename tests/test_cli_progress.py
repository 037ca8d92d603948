"""Progress without a terminal, and nothing fetched that cannot help."""

import time

import pytest
from analysis_helpers import toy_recordings

from specviz import cli, cli_policies, cli_progress
from specviz.models import sources
from specviz.trace import RecordingSet, write_recordings


def test_a_long_command_prints_lines_where_there_is_no_terminal(capsys):
    with cli_progress.stage_progress(between=0.05) as report:
        report("Reading texts", 1, 4)
        time.sleep(0.2)
        report("Measuring")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 4
    assert lines[0].startswith("Reading texts, 25% (") and lines[-1].startswith("Measuring (")


def test_a_short_command_prints_none(capsys):
    with cli_progress.stage_progress() as report:
        report("Reading texts", 1, 4)
    assert capsys.readouterr().err == ""


def test_nothing_is_fetched_for_a_set_of_another_pair(tmp_path, monkeypatch, capsys):
    file = tmp_path / "set.parquet"
    write_recordings(RecordingSet(toy_recordings(0, [0.5, 0.9])), file)
    monkeypatch.setattr(sources, "find_model", lambda *_: pytest.fail("a model was fetched"))
    assert cli.main(["calibration", str(file)]) == 0
    assert "name it with --tokenizer" in " ".join(capsys.readouterr().err.split())


def test_the_tokenizer_of_the_built_in_pair_is_fetched_with_progress(monkeypatch):
    from specviz.errors import SpecVizError
    from specviz.trace import PairInfo

    reports = []

    def find_model(source, progress):
        reports.append((source, progress))
        raise SpecVizError("There is no network.")

    monkeypatch.setattr(sources, "find_model", find_model)
    assert cli_policies._flags(PairInfo(target="SmolLM2-135M-Instruct"), None) is None
    assert [source for source, _ in reports] == ["builtin-target"] and callable(reports[0][1])
