"""Recording that is killed, runs twice at once, or meets a prompt that fills the context: nothing is lost or mixed."""

import os
import random
import time
from pathlib import Path

import pytest
import tiny_models
from command_process import begin
from engine_helpers import loaded_pair

from specviz.analysis.prompts import Prompt
from specviz.engine.engine import Engine
from specviz.engine.record_many import record_many
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import read_recordings

KILLS = int(os.environ.get("SPECVIZ_KILLS", "4"))  # 20 for the whole measurement
NUMBER = 24  # of prompts


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The words of a command that records prompts of a small pair into a file."""
    folder = tmp_path_factory.mktemp("recorded")
    target, draft = tiny_models.save_pair(folder / "pair", "llama")
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(f"the cat sat on mat {number}" for number in range(NUMBER)))

    def words(out: Path, *options: str, tokens: int = 64) -> list[str]:
        start = ["record", "--prompts", prompts, "--out", out, "-n", tokens, "--target", target, "--draft", draft]
        return [str(word) for word in (*start, "--precision", "fp32", "--no-cost-model", *options)]

    return words


def run(words, folder: Path) -> tuple[int, str]:
    """Exit status and what was printed, in one line."""
    process = begin(words, folder / "printed")
    process.join()
    return process.exitcode, " ".join((folder / "printed").read_text("utf-8").split())


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The file of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    status, printed = run(command(folder / "set.parquet"), folder)
    assert status == 0, printed
    return (folder / "set.parquet").read_bytes()


def finished(parts: Path) -> dict[str, int]:
    """The finished prompts, with the time at which each was written."""
    return {part.name: part.stat().st_mtime_ns for part in parts.glob("[!.]*.parquet")}


def kill(words, parts: Path, wanted: int, delay: float, folder: Path) -> bool:
    """Kill a command `delay` seconds after `wanted` prompts are finished; whether it was still running."""
    process = begin(words, folder / "printed")
    while len(finished(parts)) < wanted and process.is_alive():
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()
    return process.exitcode == -9


@pytest.mark.slow
def test_kills_spread_over_the_whole_run_lose_at_most_the_prompt_in_flight(command, whole, tmp_path):
    out, parts = tmp_path / "killed.parquet", tmp_path / "killed.parquet.parts"
    chance = random.Random(0)
    kept, hits = {}, 0
    for number in range(KILLS):
        wanted = round(number * NUMBER / KILLS)
        # the first while the models load, the last up to when the set is written
        hits += kill(command(out), parts, max(len(kept), wanted), chance.uniform(0, 0.3), tmp_path)
        if out.exists():
            break  # the set was written before the kill: it must be whole, and there is nothing left to kill
        now = finished(parts)
        assert now.items() >= kept.items(), "a finished prompt was lost or recorded again"
        kept = now
    if not out.exists():
        assert run(command(out), tmp_path)[0] == 0
    assert out.read_bytes() == whole
    assert hits >= KILLS - 1
    print(f"{hits} kills while it ran, {len(kept)} of {NUMBER} prompts kept before the last run")
    assert run(command(out), tmp_path)[0] == 0, "what a kill leaves behind does not stop the next command"
    assert out.read_bytes() == whole and not parts.exists()


@pytest.mark.slow
def test_a_second_writer_is_refused_at_once_and_nothing_is_mixed(command, whole, tmp_path):
    out, parts = tmp_path / "both.parquet", tmp_path / "both.parquet.parts"
    (tmp_path / "second").mkdir()
    first = begin(command(out), tmp_path / "printed")
    while not finished(parts) and first.is_alive():
        time.sleep(0.002)
    for words in (command(out), command(out, tokens=12), command(out, "--target", "org/is-not-even-looked-for")):
        status, printed = run(words, tmp_path / "second")
        assert status == 2 and printed.startswith("Another process is recording into") and printed.count(". ") == 0
    assert first.is_alive(), "the first had finished, so nothing was proved"
    first.join()
    assert first.exitcode == 0
    assert out.read_bytes() == whole and not parts.exists()


@pytest.mark.slow
def test_many_writers_at_once_make_one_whole_set(command, whole, tmp_path):
    out = tmp_path / "both.parquet"
    writers = [begin(command(out), tmp_path / f"printed{number}") for number in range(4)]
    for writer in writers:
        writer.join()
    codes = [writer.exitcode for writer in writers]
    assert 0 in codes and set(codes) <= {0, 2}, codes
    assert out.read_bytes() == whole


@pytest.mark.slow
def test_other_settings_are_refused_while_an_interrupted_run_is_kept(command, whole, tmp_path):
    out, parts = tmp_path / "set.parquet", tmp_path / "set.parquet.parts"
    assert kill(command(out), parts, 3, 0.0, tmp_path)
    kept = finished(parts)
    others = {
        "max-new-tokens": command(out, tokens=12),
        "temperature, seed": command(out, "--seed=1", "--temperature=1"),
    }
    for names, words in others.items():
        status, printed = run(words, tmp_path)
        assert status == 2 and all(name in printed for name in names.split(", ")) and printed.count(". ") == 0, printed
    assert finished(parts) == kept
    assert run(command(out), tmp_path)[0] == 0
    assert out.read_bytes() == whole


def test_a_run_that_finishes_nothing_leaves_nothing(command, tmp_path):
    status, printed = run(command(tmp_path / "new.parquet", "--draft", str(tmp_path)), tmp_path)
    assert status == 2 and "config.json" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["printed"]


@pytest.fixture
def engine():
    return Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")


def test_prompts_at_the_edge_of_the_context(engine, tmp_path):
    """One token of room gives one token; none gives a sentence, and the other prompts are recorded all the same."""
    room = tiny_models.MAX_CONTEXT
    tokenizer = engine.pair.tokenizer
    text = "x" * room
    prompts = [Prompt(str(left), "", text[: room - left]) for left in (0, 1, 2)]
    assert [len(tokenizer(prompt.text)["input_ids"]) for prompt in prompts] == [room, room - 1, room - 2]
    made = record_many(engine, prompts, tmp_path / "parts", max_new_tokens=8)
    assert made.complete and set(made.failures) == {"0"} and made.failures["0"].count(".") == 1
    one, two = made.recordings.recordings
    assert (len(one.output_ids), len(two.output_ids)) == (1, 2)
    assert {one.finish_reason, two.finish_reason} == {"context"}
    for recording in (one, two):
        assert replay(recording, ConfidenceThreshold(0.0), 4).run.output_ids == tuple(recording.output_ids)
    files = sorted((tmp_path / "parts").glob("*.parquet"))
    assert len(files) == 2 and all(read_recordings(file).recordings for file in files)
