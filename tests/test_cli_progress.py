"""Progress without a terminal, and nothing fetched that cannot help."""

import time

import pytest
from analysis_helpers import toy_recordings

from specviz import cli, cli_policies, cli_progress
from specviz.models import sources
from specviz.trace import RecordingSet, write_recordings


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(cli_progress, "SECONDS_OF_STAGE", 0.02)
    monkeypatch.setattr(cli_progress, "SECONDS_BETWEEN_LINES", 0.1)


def test_every_stage_that_lasts_has_a_line_and_more_while_it_lasts(fast, capsys):
    with cli_progress.stage_progress() as report:
        report("Reading texts", 1, 4)
        report("Too short for a line")
        report("Reading texts", 1, 4)
        time.sleep(0.35)
        report("Training", 2, 4, "loss 0.5")
        time.sleep(0.08)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines[-2:]] == ["Reading texts, 25%", "Training, 50%, loss 0.5"]
    assert 3 <= len(lines) <= 6 and all(line.endswith(" s)") for line in lines)


def test_stages_that_take_turns_have_one_line_each(fast, capsys, monkeypatch):
    monkeypatch.setattr(cli_progress, "SECONDS_BETWEEN_LINES", 100.0)
    with cli_progress.stage_progress() as report:
        for _ in range(5):
            for stage in ("Filling caches", "Measuring passes"):
                report(stage)
                time.sleep(0.06)
    lines = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["Filling caches", "Measuring passes"]


def test_a_command_that_reports_nothing_has_lines_too(fast, capsys, monkeypatch):
    """Within it, stages have theirs, also of a command that it calls; and only one thread prints."""
    from specviz.bench import rules

    def work(samples):
        time.sleep(0.15)
        with cli_progress.command_progress("inner"), cli_progress.stage_progress() as report:
            report("Loading")
            time.sleep(0.05)
        time.sleep(0.15)
        return True

    monkeypatch.setattr(rules, "run", work)
    assert cli.main(["bench", "rules"]) == 0
    lines = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == lines[-1] == "bench rules" and lines.count("Loading") == 1
    assert set(lines) == {"bench rules", "Loading"}
    assert cli_progress._running is None


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
