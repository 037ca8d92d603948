"""Recording many prompts: a run that is stopped is continued where it was."""

import numpy as np
import pytest
import tiny_models
from engine_helpers import loaded_pair

from specviz.analysis.prompts import Prompt
from specviz.engine.engine import Engine
from specviz.engine.record_many import record_many

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
