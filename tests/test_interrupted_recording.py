"""Recording that is killed, runs twice at once, or meets a prompt that fills the context: nothing is lost or mixed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_models
from engine_helpers import loaded_pair

from specviz.analysis.prompts import Prompt
from specviz.engine import record_many as module
from specviz.engine.engine import Engine
from specviz.engine.record_many import record_many
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import read_recordings

ROOT = Path(__file__).parents[1]
KILLS = int(os.environ.get("SPECVIZ_KILLS", "3"))  # 20 for the whole measurement
NUMBER = 24  # of prompts


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The words of a command that records prompts of a small pair into a file."""
    folder = tmp_path_factory.mktemp("recorded")
    target, draft = tiny_models.save_pair(folder / "pair", "llama")
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(f"the cat sat on mat {number}" for number in range(NUMBER)))

    def words(out: Path) -> list[str]:
        start = [sys.executable, "-m", "specviz", "record", "--prompts", prompts, "--out", out, "-n", "96"]
        pair = ["--target", target, "--draft", draft, "--precision", "fp32", "--no-cost-model"]
        return [str(word) for word in (*start, *pair)]

    return words


def begin(words):
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The file of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "set.parquet"
    subprocess.run(command(out), cwd=ROOT, check=True, capture_output=True)
    return out.read_bytes()


@pytest.mark.slow
def test_kills_spread_over_the_whole_run_lose_at_most_the_prompt_in_flight(command, whole, tmp_path):
    out = tmp_path / "killed.parquet"
    parts = Path(f"{out}.parts")
    chance = random.Random(0)
    kept = 0
    for kill in range(KILLS):
        process = begin(command(out))
        wanted = max(kept, round((kill + 0.5) * (NUMBER - 2) / KILLS))
        while len(list(parts.glob("*.parquet"))) < wanted and process.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.15))  # anywhere in the prompt that is being recorded, or while loading
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not out.exists(), "it ended before it could be killed"
        now = len(list(parts.glob("*.parquet")))
        assert now >= kept, "a finished prompt was lost"
        kept = now
    subprocess.run(command(out), cwd=ROOT, check=True, capture_output=True)
    assert out.read_bytes() == whole
    assert not parts.exists()


@pytest.mark.slow
def test_a_second_process_is_refused_and_disturbs_nothing(command, whole, tmp_path):
    out = tmp_path / "both.parquet"
    processes = [begin(command(out)) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = sorted(process.returncode for process in processes)
    assert codes in ([0, 0], [0, 2])  # the second may have come when the first had finished
    if codes == [0, 2]:
        refusal = next(error for process, error in zip(processes, errors, strict=True) if process.returncode == 2)
        assert "Another process is recording into" in refusal.replace("\n", " ")
    assert out.read_bytes() == whole


@pytest.fixture
def engine():
    return Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")


def test_two_writers_of_one_folder_are_one_too_many(engine, tmp_path):
    with module._only_writer(tmp_path), pytest.raises(SpecVizError, match="Another process is recording"):
        record_many(engine, [Prompt("0", "", "the cat")], tmp_path, max_new_tokens=4)
    assert record_many(engine, [Prompt("0", "", "the cat")], tmp_path, max_new_tokens=4).complete


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
