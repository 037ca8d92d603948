"""Recording files that somebody crafted: each is opened, or refused in one sentence that names it."""

import json
import math
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_recordings import sample_cost, sample_recording, sample_set

from specviz.errors import SpecVizError
from specviz.trace import RecordingSet, read_recordings, write_recordings
from specviz.trace.limits import MOST_JSON, MOST_SETTINGS
from specviz.trace.parquet import METADATA_KEY
from specviz.trace.recording import check_set_size


@pytest.fixture
def crafted(tmp_path):
    """A function that writes a small set with other metadata or other columns; its path."""
    write_recordings(sample_set([sample_recording(24, seed) for seed in range(2)]), tmp_path / "whole.parquet")
    table = pq.read_table(tmp_path / "whole.parquet")
    shared = json.loads(table.schema.metadata[METADATA_KEY])

    def craft(metadata=None, columns=None):
        """Args: metadata: a text, or names to new values; columns: names to new Arrow arrays."""
        text = metadata if isinstance(metadata, str) else json.dumps(shared | (metadata or {}))
        changed = table
        for name, values in (columns or {}).items():
            changed = changed.set_column(table.schema.get_field_index(name), name, values)
        path = tmp_path / "crafted.parquet"
        pq.write_table(changed.replace_schema_metadata({METADATA_KEY: text}), path)
        return path

    craft.table, craft.shared = table, shared
    return craft


def refused(path) -> str:
    with pytest.raises(SpecVizError) as caught:
        read_recordings(path)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


def changed_floats(table, name, value):
    """The lists of a column with another first value."""
    rows = table[name].to_pylist()
    rows[0][0] = value
    return pa.array(rows, table[name].type)


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "metadata",
    [
        {"max_draft": 10**30},
        {"max_draft": math.inf},
        {"max_draft": 8.0},
        {"max_draft": True},
        {"max_draft": 0},
        {"max_draft": 10**6},
        {"schema_version": -1.5},
        {"settings": []},
        {"settings": None},
        {"settings": "invariant"},
        {"settings": {"pass_mode": 3}},
        {"settings": {"rule": ["greedy"]}},
        {"settings": {"sampling": {"temperature": "x"}}},
        {"settings": {"sampling": []}},
        {"settings": {"policy": "threshold"}},
        {"settings": {"pass_mode": "fast", "later": math.nan}},
        {"settings": {"later": json.loads("[" * 40 + "]" * 40)}},
        {"settings": {"name" * 1000: 1}},
        {"pair": {"target": None}},
        {"pair": {"target": "\ud800"}},
        {"pair": {"target": "x" * 100_000}},
        {"pair": {"versions": {"torch": 2}}},
        {"pair": []},
        {"eos_ids": [2.5]},
        {"eos_ids": [-1]},
        {"eos_ids": [10**12]},
        {"eos_ids": None},
        {"eos_ids": list(range(10**5))},
        {"cost_model": [1]},
        {"cost_model": "x"},
        {"tokens": {"-1": "a"}},
        {"tokens": {"9999999999": "a"}},
        {"tokens": {"1": "\ud800"}},
        {"tokens": {"1": "a" * 100_000}},
        {"tokens": {"9" * 6000: "a"}},
        NESTED,
        '{"schema_version": 2, "settings": ' + NESTED + "}",
        '{"schema_version": ' + "9" * 6000 + "}",
        '{"schema_version": 1e999}',
        "[]",
        "2",
        "",
        '"\\ud800"',
        "\x00",
    ],
    ids=lambda value: str(value)[:40],
)
def test_crafted_metadata_is_refused_in_a_sentence(crafted, metadata):
    assert "crafted.parquet is damaged or no recording set" in refused(crafted(metadata))


def test_names_that_a_newer_version_may_add_are_kept(crafted):
    settings = crafted.shared["settings"] | {"stop": ["\n\n"], "generation": {"suppress_tokens": [1, 2]}}
    read = read_recordings(crafted({"settings": settings, "later": {"a": [1]}}))
    assert read.settings == settings


@pytest.mark.parametrize(
    "name", ["draft_entropy", "draft_margin", "target_entropy", "draft_top_probs", "branch_margin"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e30, None])
def test_columns_outside_their_range_are_refused(crafted, name, value):
    message = refused(crafted(columns={name: changed_floats(crafted.table, name, value)}))
    assert f"{name} holds" in message and "which is not between 0 and" in message


@pytest.mark.parametrize("name", ["output_ids", "draft_token", "target_rank_of_draft_token", "branch_token"])
@pytest.mark.parametrize("value", [-1, None])
def test_tokens_and_ranks_outside_their_range_are_refused(crafted, name, value):
    assert refused(crafted(columns={name: changed_floats(crafted.table, name, value)}))


def test_what_may_be_unknown_stays_legal(crafted):
    path = crafted(columns={"target_margin": changed_floats(crafted.table, "target_margin", math.nan)})
    assert np.isnan(read_recordings(path).recordings[0].target_margin[0])
    path = crafted(columns={"target_top_ids": changed_floats(crafted.table, "target_top_ids", -1)})
    assert read_recordings(path).recordings[0].target_top_ids[0, 0] == -1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("category", pa.array([None, "a"], pa.string())),
        ("category", pa.array(["a" * 100_000, "a"], pa.string())),
        ("prompt", pa.array([1, 2], pa.int64())),
        ("prompt", pa.array([["a"], ["b"]])),
        ("seed", pa.array([None, 1], pa.int64())),
        ("seed", pa.array([1.5, 1.0])),
        ("max_new_tokens", pa.array([-(2**62), 1])),
        ("output_limit", pa.array([2**63 - 1, 0])),
        ("finish_reason", pa.array(["because", "length"])),
        ("output_ids", pa.array([["a"], ["b"]])),
        ("output_ids", pa.array([None, None], pa.list_(pa.int32()))),
        ("branch_offsets", pa.array([[], []], pa.list_(pa.int32()))),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else str(value.type),
)
def test_scalars_and_types_that_are_wrong_are_refused(crafted, name, values):
    assert refused(crafted(columns={name: values}))


def test_a_text_that_is_no_utf8_is_refused(crafted):
    values = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
    assert "damaged" in refused(crafted(columns={"category": values}))


def test_errors_call_the_file_what_the_reader_does(crafted):
    content = crafted({"max_draft": math.inf}).read_bytes()
    with pytest.raises(SpecVizError, match="^mine.parquet is damaged"):
        read_recordings(content, "mine.parquet")
    assert len(read_recordings(crafted().read_bytes(), "mine.parquet").recordings) == 2


def test_a_set_that_no_sweep_could_hold_is_refused_before_it_is_made():
    check_set_size(MOST_SETTINGS // 16, 16)
    with pytest.raises(SpecVizError, match="at most 8,192 recordings, not 8,193; make several sets"):
        check_set_size(MOST_SETTINGS // 16 + 1, 16)
    with pytest.raises(SpecVizError, match="at most 10,000"):
        RecordingSet([sample_recording(2, max_draft=1)] * 10_001)


def test_what_is_written_can_be_read(tmp_path):
    """The reader's limits are the writer's: what a recording may not hold cannot be written either."""
    recording = sample_recording(24)
    recording.draft_entropy[3] = np.nan
    with pytest.raises(SpecVizError, match="draft_entropy holds nan"):
        write_recordings(RecordingSet([recording]), tmp_path / "set.parquet")
    assert len(json.dumps(asdict(sample_recording(2).pair))) < MOST_JSON and sample_cost()
