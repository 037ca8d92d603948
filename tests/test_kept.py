"""What the project folder keeps: recordings with their titles, and the pair that ran last."""

import errno
import json
import multiprocessing
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from sample_recordings import PAIR, sample_recording, sample_set

from specviz.errors import SpecVizError
from specviz.trace import kept, project, write_recordings

SOURCES = {"target": "/models/t", "draft": "/models/d", "target_precision": "fp32", "draft_precision": "auto"}


def keep_one(title="Tides", name=None, **given):
    return kept.keep(sample_set(), name or kept.new_name(), title=title, **{"origin": kept.RUN, **given})


def test_nothing_is_kept_and_nothing_is_made_before_the_first_recording(project):
    assert kept.kept_sets() == {}
    assert not project.exists()


def test_a_kept_set_is_listed_with_its_facts_and_reads_back_equal():
    recordings = [sample_recording(32, seed) for seed in range(3)]
    entry = kept.keep(sample_set(recordings), kept.new_name(), title="Three", origin=kept.SET, sources=SOURCES)
    assert kept.kept_sets() == {entry.name: entry}
    contents = entry.contents
    assert (contents.prompts, contents.tokens, contents.priced) == (3, 96, True)
    assert (contents.target, contents.draft, contents.target_precision) == (PAIR.target, PAIR.draft, "bf16")
    assert (entry.title, entry.origin, entry.sources) == ("Three", kept.SET, SOURCES)
    assert entry.size == entry.path.stat().st_size
    assert abs(entry.made.timestamp() - time.time()) < 60
    assert list(kept.read_kept(entry.name).recordings) == recordings


def test_the_newest_is_first():
    names = [keep_one(str(number)).name for number in range(3)]
    for name, day in zip(names, ("02", "03", "01"), strict=True):
        notes = kept.recordings_folder() / name.replace(".parquet", ".json")
        notes.write_text(json.dumps(json.loads(notes.read_text()) | {"made": f"2024-05-{day}T10:00:00+00:00"}))
    assert [entry.title for entry in kept.kept_sets().values()] == ["1", "0", "2"]


def test_a_title_is_data_and_never_a_path(project):
    title = "../../x\n<b>\u202e =1+1"
    entry = keep_one(title)
    assert entry.title == "../../x <b> =1+1"
    kept.rename(entry.name, "/etc/passwd")
    assert [one.title for one in kept.kept_sets().values()] == ["/etc/passwd"]
    assert {path.parent for path in project.rglob("*") if path.is_file()} == {kept.recordings_folder()}
    for name in ("../x.parquet", "/etc/passwd", ".hidden", "", "a\\b", "a" * 300):
        for use in (kept.read_kept, kept.delete, lambda name: kept.rename(name, "x")):
            with pytest.raises(SpecVizError):
                use(name)


def test_rename_keeps_date_sources_and_recordings():
    entry = keep_one(sources=SOURCES)
    kept.rename(entry.name, "  The sea ")
    after = kept.kept_sets()[entry.name]
    assert after == replace(entry, title="The sea")
    with pytest.raises(SpecVizError, match="empty"):
        kept.rename(entry.name, "  ")
    again = keep_one("Tides", entry.name)  # with its costs, once they are measured
    assert (again.title, again.made) == ("The sea", entry.made)


def test_deleting_removes_every_file_and_can_be_repeated(project):
    entry, other = keep_one(), keep_one()
    kept.delete(entry.name)
    kept.delete(entry.name)
    assert list(kept.kept_sets()) == [other.name]
    assert len(list(kept.recordings_folder().iterdir())) == 2
    for use in (kept.read_kept, lambda name: kept.rename(name, "x")):
        with pytest.raises(SpecVizError, match="no longer in the project folder"):
            use(entry.name)


def test_damaged_and_foreign_files_are_listed_with_a_sentence_and_can_be_deleted():
    good = keep_one()
    folder = kept.recordings_folder()
    (folder / "cut.parquet").write_bytes(good.path.read_bytes()[:-200])
    (folder / "notes.txt").write_text("mine")
    (folder / "notes.json").write_text("{}")
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "folder.parquet").mkdir()
    listed = kept.kept_sets()
    problems = {name for name, entry in listed.items() if entry.problem == kept.NOT_A_SET and entry.contents is None}
    assert problems == {"cut.parquet", "notes.txt", "notes.json", "empty.parquet", "folder.parquet"}
    for name in problems - {"folder.parquet"}:
        kept.delete(name)
        assert name not in kept.kept_sets()
    with pytest.raises(SpecVizError, match="cannot be deleted"):
        kept.delete("folder.parquet")
    assert good.name in kept.kept_sets()
    # A file that is damaged within is found when it is opened.
    content = bytearray(good.path.read_bytes())
    content[len(content) // 2] ^= 1
    good.path.write_bytes(content)
    with pytest.raises(SpecVizError, match="^The file of this set is damaged"):
        kept.read_kept(good.name)


@pytest.mark.parametrize(
    "notes", ["", "[]", "{", '{"title": 3, "origin": [], "made": "x", "sources": 1}', "[" * 100_000, '{"made": 1e99}']
)
def test_notes_that_cannot_be_used_do_not_hide_a_set(notes):
    entry = keep_one()
    entry.path.with_suffix(".json").write_text(notes)
    (after,) = kept.kept_sets().values()
    assert (after.contents, after.origin, after.sources) == (entry.contents, kept.FILE, None)


def test_a_set_copied_into_the_folder_is_listed_and_what_it_says_of_itself_is_no_source():
    kept.recordings_folder().mkdir(parents=True)
    write_recordings(sample_set(), kept.recordings_folder() / "from elsewhere.parquet")
    (entry,) = kept.kept_sets().values()
    assert (entry.title, entry.origin, entry.sources) == ("from elsewhere", kept.FILE, None)
    kept.rename(entry.name, "Elsewhere")
    assert kept.kept_sets()[entry.name].title == "Elsewhere"


def test_an_uploaded_set_has_no_sources_whatever_is_beside_it():
    entry = keep_one(origin=kept.UPLOAD, sources=SOURCES)
    assert entry.sources is None


def test_the_same_upload_has_one_name():
    assert kept.name_of_content(b"a") == kept.name_of_content(b"a") != kept.name_of_content(b"b")


def test_a_folder_that_cannot_be_written_is_a_sentence(project):
    project.parent.mkdir(exist_ok=True)
    project.write_text("a file")
    with pytest.raises(SpecVizError, match="cannot be kept in .* name another folder with SPECVIZ_DATA"):
        keep_one()
    assert kept.kept_sets() == {}


def test_a_full_disk_is_a_sentence_and_leaves_nothing(monkeypatch):
    def full(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(SpecVizError, match="No space left on device"):
        keep_one()
    assert list(kept.recordings_folder().iterdir()) == []


def test_the_folder_has_a_largest_size(monkeypatch):
    keep_one()
    monkeypatch.setattr(kept, "MOST_KEPT_MB", 0)
    with pytest.raises(SpecVizError, match="delete some on the Data page"):
        keep_one()
    assert len(kept.kept_sets()) == 1


def test_what_a_killed_process_left_behind_is_removed_later():
    keep_one()
    old, fresh = kept.recordings_folder() / ".a.parquet.1-1.part", kept.recordings_folder() / ".b.parquet.1-1.part"
    for path in (old, fresh):
        path.write_bytes(b"half")
    long_ago = time.time() - kept.UNFINISHED_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    keep_one()
    assert (old.exists(), fresh.exists(), len(kept.kept_sets())) == (False, True, 2)


def _keep_many(number):
    for place in range(5):
        keep_one(f"{number}-{place}")


def test_two_processes_that_keep_at_once_lose_nothing():
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_keep_many, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    titles = {entry.title for entry in kept.kept_sets().values()}
    assert titles == {f"{number}-{place}" for number in range(2) for place in range(5)}
    assert all(kept.read_kept(name) for name in kept.kept_sets())


def test_many_sets_are_listed_fast():
    first = keep_one()
    for number in range(200):
        name = f"copy{number}.parquet"
        (kept.recordings_folder() / name).write_bytes(first.path.read_bytes())
        (kept.recordings_folder() / name).with_suffix(".json").write_bytes(first.path.with_suffix(".json").read_bytes())
    assert len(kept.kept_sets()) == 201
    begin = time.perf_counter()
    kept.kept_sets()
    assert time.perf_counter() - begin < 0.5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--data", "/a b"], "/a b"), (["--data=/c"], "/c"), ([], "before"), (["--data"], "before"), (["-q"], "before")],
)
def test_the_app_takes_its_folder_from_its_arguments(monkeypatch, arguments, expected):
    monkeypatch.setenv(project.ENVIRONMENT_VARIABLE, "before")
    project.choose_project_folder(arguments)
    assert os.environ[project.ENVIRONMENT_VARIABLE] == expected
    assert project.project_folder() == Path(expected).absolute()


def test_the_facts_need_no_recordings(monkeypatch):
    entry = keep_one()
    kept._contents.cache_clear()
    monkeypatch.setattr(kept, "read_recordings", None)
    assert kept.kept_sets()[entry.name].contents == entry.contents
    assert asdict(entry.contents)["tokens"] == 128
