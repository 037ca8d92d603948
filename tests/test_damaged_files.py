"""Damaged files, and files that unpack to far more than they take: opened and usable, or refused in one sentence."""

import json
import os
import random
import subprocess
import sys
import textwrap
import traceback
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_files import LONGEST_DRAFT, damaged_set, damaged_trace, is_sentence, packed, use_set, use_trace, whole_sets

from specviz import cli
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import write_recordings, write_trace_csv
from specviz.trace.kept import recordings_folder
from specviz.trace.parquet import METADATA_KEY
from specviz.ui.library import KEPT, TRACE_FILES, own_sets, read_trace_upload

# More of them, such as 2000, take minutes; FIRST chooses others.
SETS, TRACES = (int(os.environ.get(f"SPECVIZ_DAMAGED_{kind}", few)) for kind, few in (("SETS", 24), ("TRACES", 150)))
FIRST = int(os.environ.get("SPECVIZ_DAMAGED_FIRST", 0))
MOST_MEMORY_MB = 200  # that an upload may take above what the program takes already


@pytest.fixture(autouse=True)
def no_gallery(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECVIZ_GALLERY", str(tmp_path / "none"))


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """Paths of whole recording sets."""
    folder = tmp_path_factory.mktemp("whole")
    for number, whole in enumerate(whole_sets()):
        write_recordings(whole, folder / f"{number}.parquet")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def trace_files(tmp_path_factory):
    """The three files of a whole trace: name to content."""
    whole, folder = whole_sets()[1], tmp_path_factory.mktemp("trace")
    trace = replay(whole.recordings[0], ConfidenceThreshold(0.4), whole.max_draft)
    write_trace_csv(trace, folder, lambda token: whole.tokens.get(token, b""))
    return {name: (folder / name).read_bytes() for name in TRACE_FILES}


def judge(number: int, use) -> tuple[bool, str]:
    """Whether a file opened, and what is wrong with how it was refused or used."""
    try:
        opened, refusals = use()
    except Exception:
        return False, f"seed {number}: {traceback.format_exc()}"
    wrong = [error for error in refusals if not is_sentence(error)]
    return opened, f"seed {number}: no sentence: {str(wrong[0])[:2000]!r}" if wrong else ""


def summed_up(results: list[tuple[bool, str]]) -> int:
    """How many opened; fails with what is wrong."""
    problems = [problem for _, problem in results if problem]
    opened = sum(opened for opened, _ in results)
    print(f"{opened} of {len(results)} opened, {len(problems)} problems")
    assert not problems, "\n".join(problems[:40])
    return opened


def test_whole_files_open_and_every_use_of_them_succeeds(wholes, trace_files):
    for whole in wholes:
        assert use_set(whole.read_bytes(), "whole.parquet") == (True, [])
    assert use_trace(trace_files) == use_trace({"trace.zip": packed(trace_files)}) == (True, [])


def test_damaged_recording_sets_are_usable_or_refused_in_a_sentence(wholes):
    results = []
    for number in range(FIRST, FIRST + SETS):
        content = damaged_set(wholes[number % 2], random.Random(number))
        results.append(judge(number, lambda content=content, number=number: use_set(content, f"{number}.parquet")))
    assert 0 < summed_up(results) < SETS


def test_damaged_traces_are_usable_or_refused_in_a_sentence(trace_files):
    results = []
    for number in range(FIRST, FIRST + TRACES):
        files = damaged_trace(trace_files, random.Random(number))
        results.append(judge(number, lambda files=files: use_trace(files)))
    assert 0 < summed_up(results) < TRACES


@pytest.mark.parametrize("seconds", [1e308, -1.0, 7200.0, "x", None, [], {"a": 1}])
def test_a_set_with_impossible_prices_opens_without_them_and_is_not_tuned(wholes, capsys, seconds):
    table = pq.read_table(wholes[0])
    shared = json.loads(table.schema.metadata[METADATA_KEY])
    shared["cost_model"]["modes"]["invariant"]["plain_step"]["median"][0] = seconds
    recordings_folder().mkdir(parents=True)
    path = recordings_folder() / "set.parquet"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(shared)}), path)
    shown = own_sets()[KEPT + path.name].members[0]
    assert shown.cost is None and shown.unpriced in shown.about()
    assert shown.unpriced.startswith("There is no speedup, since the costs in the file cannot be used: ")
    assert "speedup" not in json.loads(shown.packed_rounds(LONGEST_DRAFT))
    for command in ("tune", "sweep"):
        capsys.readouterr()
        assert cli.main([command, str(path)]) > 0
        message = capsys.readouterr().err.strip()
        assert message.startswith(f"{path} has no usable costs: ") and message.endswith("measure it again.")
        assert "\n" not in message


def test_column_metadata_that_contradicts_itself_ends_no_process(wholes):
    """In a process of its own: pyarrow would end it where a list within the metadata has another length."""
    program = """
        import sys
        from pathlib import Path
        from specviz.errors import SpecVizError
        from specviz.trace import read_recordings

        content = Path(sys.argv[1]).read_bytes()
        refused = 0
        for place in range(len(content) - int.from_bytes(content[-8:-4], "little"), len(content)):
            if content[place] in (0x26, 0x36):  # lists of two and of three numbers
                changed = bytearray(content)
                changed[place] ^= 0x10
                try:
                    read_recordings(bytes(changed), "x")
                except SpecVizError:
                    refused += 1
        print(refused)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), wholes[0]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_every_bit_of_a_zip_file_may_flip():
    content = packed({"run.json": b"{}", "steps.csv": b"round\n0\n" * 20})
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SpecVizError) as caught:  # its files are no trace
            read_trace_upload({"trace.zip": bytes(changed)})
        assert is_sentence(caught.value)


def test_any_byte_of_a_packed_trace_may_flip(trace_files):
    content = packed(trace_files)
    opened = 0
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        opened += judge(place, lambda changed=changed: use_trace({"trace.zip": bytes(changed)}))[0]
        assert not judge(place, lambda changed=changed: use_trace({"trace.zip": bytes(changed)}))[1]
    assert opened < len(content) // 7


# --- small files of much ---------------------------------------------------------------------------------------------


def zip_of_steps(path: Path) -> None:
    """A trace whose `steps.csv` unpacks to 200 MB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("run.json", "{}")
        with archive.open("steps.csv", "w") as member:
            for _ in range(200):
                member.write(b"0," * (1 << 19))


def many_rows(path: Path, wholes) -> None:
    """A hundred million rows."""
    _write(path, {"category": pa.DictionaryArray.from_arrays(pa.array([0] * 10**6, pa.int32()), ["a"])}, 100, wholes)


def long_lists(path: Path, wholes) -> None:
    """Hundred rows of a million equal tokens."""
    tokens = pa.ListArray.from_arrays(pa.array([0, 10**6], pa.int32()), pa.array([0] * 10**6, pa.int32()))
    _write(path, {"output_ids": tokens}, 100, wholes)


def long_text(path: Path, wholes) -> None:
    """One prompt of 500 million characters."""
    _write(path, {"prompt": pa.array(["a" * 5 * 10**7])}, 10, wholes)


def one_text_for_all(path: Path, wholes) -> None:
    """Two thousand rows that share a prompt of three million characters."""
    prompts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["a" * 3 * 10**6])
    _write(path, {"prompt": prompts}, 1, wholes)


def _write(path: Path, columns, groups: int, wholes) -> None:
    metadata = {METADATA_KEY: pq.read_schema(wholes[0]).metadata[METADATA_KEY]}
    table = pa.table(columns).replace_schema_metadata(metadata)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(table)


def test_small_files_that_hold_much_are_refused_within_little_memory(tmp_path, wholes):
    """In a process of its own, which knows the most memory that it ever took."""
    zip_of_steps(tmp_path / "trace.zip")
    for make in (many_rows, long_lists, long_text, one_text_for_all):
        make(tmp_path / f"{make.__name__}.parquet", wholes)
    assert all(path.stat().st_size < 2 * 10**6 for path in tmp_path.iterdir() if path.is_file())
    program = """
        import resource, sys
        from pathlib import Path
        from specviz.errors import SpecVizError
        from specviz.trace import read_recordings
        from specviz.ui.library import MOST_UNPACKED, read_trace_upload

        def taken():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        read_recordings(sys.argv[1])
        before = taken()
        for path in sorted(map(Path, sys.argv[2:])):
            try:
                if path.suffix == ".zip":
                    read_trace_upload({path.name: path.read_bytes()})
                else:
                    read_recordings(path.read_bytes(), path.name, most=MOST_UNPACKED)
            except SpecVizError as error:
                print(taken() - before, error)
        """
    bombs = sorted(path for path in tmp_path.iterdir() if path.is_file())
    command = [sys.executable, "-c", textwrap.dedent(program), wholes[0], *bombs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(bombs)
    for path, line in zip(bombs, lines, strict=True):
        memory, _, sentence = line.partition(" ")
        assert int(memory) < MOST_MEMORY_MB, line
        assert sentence.startswith(path.name) and sentence.endswith("."), line
