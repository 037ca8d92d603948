"""Recording many prompts: a run that is killed goes on where it was and ends with the same file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from engine_helpers import loaded_pair

from specviz.analysis.prompts import Prompt
from specviz.engine.engine import Engine
from specviz.engine.record_many import record_many
from specviz.trace import read_recordings

ROOT = Path(__file__).parents[1]
PROMPTS = [
    Prompt(str(i), "", f"the cat and {word}") for i, word in enumerate(("dog", "log", "mat", "apple", "day", "keeps"))
]


@pytest.fixture
def engine():
    return Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")


def test_a_stopped_run_keeps_what_is_finished_and_goes_on(engine, tmp_path):
    whole = record_many(engine, PROMPTS, tmp_path / "whole", max_new_tokens=12)
    seen = []

    def stop_at_the_third(stage, done, total):
        seen.append(done)

    part = record_many(
        engine,
        PROMPTS,
        tmp_path / "parts",
        max_new_tokens=12,
        progress=stop_at_the_third,
        stopped=lambda: seen[-1] >= 2,
    )
    assert not part.complete
    assert len(part.recordings.recordings) == 2
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    again = record_many(engine, PROMPTS, tmp_path / "parts", max_new_tokens=12)
    assert again.complete
    assert again.recordings.recordings == whole.recordings.recordings
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items()), "a finished prompt was recorded again"


def test_drafts_of_one_target_share_what_it_wrote(engine, tmp_path, monkeypatch):
    pair = tiny_models.tiny_pair("llama")
    other = tiny_models.TinyPair(pair.target, pair.target, pair.tokenizer)  # the target drafting for itself
    drafts = [engine, Engine(loaded_pair(other), pass_mode="fast")]
    alone = [record_many(one, PROMPTS[:2], tmp_path / str(place)) for place, one in enumerate(drafts)]
    written = {}
    record_many(engine, PROMPTS[:2], tmp_path / "shared", written=written)
    assert set(written) == {prompt.id for prompt in PROMPTS[:2]}
    monkeypatch.setattr(drafts[1], "speculative", lambda *_: pytest.fail("generated again"))
    shared = record_many(drafts[1], PROMPTS[:2], tmp_path / "sharing", written=written)
    for mine, theirs in zip(shared.recordings.recordings, alone[1].recordings.recordings, strict=True):
        assert mine.output_ids.tolist() == theirs.output_ids.tolist()
        assert mine.draft_token.tolist() == theirs.draft_token.tolist()
        assert mine.branch_token.tolist() == theirs.branch_token.tolist()
        # the target's passes were cut by another draft: equal up to rounding
        np.testing.assert_allclose(mine.target_entropy, theirs.target_entropy, atol=1e-4)
        np.testing.assert_allclose(mine.target_margin, theirs.target_margin, atol=1e-4)
    assert alone[0].recordings.recordings != alone[1].recordings.recordings


def test_parts_of_other_settings_are_not_taken(engine, tmp_path):
    record_many(engine, PROMPTS[:2], tmp_path, max_new_tokens=6)
    longer = record_many(engine, PROMPTS[:2], tmp_path, max_new_tokens=12)
    assert all(len(recording.output_ids) == 12 for recording in longer.recordings.recordings)


def test_a_damaged_part_is_made_again(engine, tmp_path):
    first = record_many(engine, PROMPTS[:2], tmp_path, max_new_tokens=6)
    for part in tmp_path.glob("*.parquet"):
        part.write_bytes(part.read_bytes()[:100])
    again = record_many(engine, PROMPTS[:2], tmp_path, max_new_tokens=6)
    assert again.recordings.recordings == first.recordings.recordings


def test_one_bad_prompt_does_not_end_the_run(engine, tmp_path):
    prompts = [PROMPTS[0], Prompt("long", "", "word " * 400), PROMPTS[1]]
    made = record_many(engine, prompts, tmp_path, max_new_tokens=6)
    assert made.complete and set(made.failures) == {"long"}
    assert len(made.recordings.recordings) == 2


@pytest.mark.slow
def test_a_killed_process_ends_with_the_same_file(tmp_path):
    target, draft = tiny_models.save_pair(tmp_path / "pair", "llama")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"{prompt.text} {n}" for n in range(4) for prompt in PROMPTS[:5]))

    def command(out):
        words = [sys.executable, "-m", "specviz", "record", "--prompts", prompts, "--out", out, "-n", "40"]
        return [
            *map(str, words),
            "--target",
            str(target),
            "--draft",
            str(draft),
            "--precision",
            "fp32",
            "--no-cost-model",
        ]

    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"
    subprocess.run(command(whole), cwd=ROOT, check=True, capture_output=True)
    process = subprocess.Popen(command(killed), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = tmp_path / "killed.parquet.parts"
    deadline = time.monotonic() + 240
    while len(list(parts.glob("*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not killed.exists(), "it was finished before it could be killed"
    assert len(list(parts.glob("*.parquet"))) >= 3
    subprocess.run(command(killed), cwd=ROOT, check=True, capture_output=True)
    assert killed.read_bytes() == whole.read_bytes()
    assert len(read_recordings(killed).recordings) == 20
