"""Files give back what was written, to the bit, and damaged or foreign ones give a sentence."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_round import random_toy, recording_from_toy, reference_trace

from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import (
    PairInfo,
    RecordingSet,
    read_recordings,
    read_trace_csv,
    trace_differences,
    write_recordings,
    write_trace_csv,
)
from specviz.trace.parquet import METADATA_KEY
from specviz.trace.recording import ARRAY_COLUMNS

EOS = (0,)
# Of each token id: spreadsheet formulas, missing values, separators, and the two halves of an emoji.
NASTY = [
    b"=cmd()", b"+1", b"-2", b"@x", b"\tx", b"\r\n", b"\n", b"  two", b'say "hi", ok', b"nan", b"NULL", b"",
    b"\xf0\x9f", b"\x98\x80", b"\xff", b"\xed\xa0\x80", "é中".encode(), b"1e5", b"True", b"\\udcff", b"\x00", b'"',
]  # fmt: skip
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def make_recordings(count=3, tokens=20, seed=0):
    recordings = []
    for index in range(count):
        toy = random_toy(seed + index, vocabulary=len(NASTY), agreement=0.5, levels=1000)
        recording = recording_from_toy(*toy, 8, tokens, EOS, (5, 6), settings={"pass_mode": "invariant"})
        prompt = 'Say\n=1+1, "ü" 🎈'
        recordings.append(replace(recording, prompt_id=f"q{index}", category="chat", prompt=prompt, seed=7 + index))
    return recordings


def make_trace(seed=1, vocabulary=22, tokens=60):
    toy = random_toy(seed, vocabulary=vocabulary, agreement=0.6, levels=997)
    trace = reference_trace(*toy, ConfidenceThreshold(0.3), 5, tokens, EOS, (1, 2))
    pair = PairInfo("target", "draft", "r1", "r2", "bf16", "nf4", "cpu", {"torch": "2.13"})
    run = replace(trace.run, pair=pair, prompt='=1+1\n"ü" 🎈', prefill_seconds=0.1 + 0.2, total_seconds=1 / 3)
    times = np.random.default_rng(seed).random(len(trace.rounds["round"]))
    return replace(trace, run=run, rounds={**trace.rounds, "draft_seconds": times})


def assert_equal_to_the_bit(a, b):
    assert a.run == b.run
    for table in ("rounds", "steps"):
        left, right = getattr(a, table), getattr(b, table)
        assert list(left) == list(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name, strict=left[name].dtype.kind != "U")


def test_trace_csv_round_trip(tmp_path):
    trace = make_trace()
    assert len(set(trace.steps["token"].tolist())) > len(NASTY) / 2
    write_trace_csv(trace, tmp_path / "new" / "place", NASTY.__getitem__)
    again, texts = read_trace_csv(tmp_path / "new" / "place")
    assert_equal_to_the_bit(again, trace)
    assert texts.keys() == set(trace.steps["token"].tolist()) | set(trace.steps["target_token"].tolist()) - {-1}
    assert all(texts[token] == NASTY[token] for token in texts)
    assert sorted(path.name for path in (tmp_path / "new" / "place").iterdir()) == [
        "rounds.csv",
        "run.json",
        "steps.csv",
    ]


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.one_of(st.binary(max_size=6), st.sampled_from(NASTY)), min_size=6, max_size=6))
def test_any_token_text_survives_and_is_no_formula(texts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("csv")
    write_trace_csv(make_trace(vocabulary=6, tokens=20), directory, texts.__getitem__)
    again = read_trace_csv(directory)[1]
    assert all(again[token] == texts[token] for token in again)
    # As a spreadsheet or a plain pandas user sees them.
    frame = pd.read_csv(directory / "steps.csv")
    for token, cell in zip(frame["token"], frame["token_text"], strict=True):
        assert json.loads(cell).encode("utf-8", "surrogateescape") == texts[token]
    for name in ("rounds.csv", "steps.csv"):
        everything = pd.read_csv(directory / name, dtype=str, keep_default_na=False)
        for column in everything:
            for cell in everything[column]:
                harmless = column not in ("token_text", "target_text") and (cell == "-1" or cell[:1].isalnum())
                assert cell == "" or harmless or (cell[0] == '"' and not cell.startswith(FORMULA_STARTS))


def test_plain_pandas_reads_the_same_numbers(tmp_path):
    trace = make_trace()
    write_trace_csv(trace, tmp_path, NASTY.__getitem__)
    for name, expected in zip(("rounds.csv", "steps.csv"), trace.to_frames(), strict=True):
        frame = pd.read_csv(tmp_path / name)
        for column in expected.select_dtypes(["number", "bool"]):
            # Older pandas may miss the last bit of a float64; a float32 in its shortest form would be 1e-8 off.
            wide = expected[column].astype(np.float64)
            np.testing.assert_allclose(frame[column].astype(np.float64), wide, rtol=1e-15, atol=0, err_msg=column)


def test_a_trace_that_contradicts_itself_is_not_written(tmp_path):
    trace = make_trace()
    broken = replace(trace, run=replace(trace.run, output_ids=trace.run.output_ids[:-1]))
    with pytest.raises(SpecVizError, match="contradicts itself"):
        write_trace_csv(broken, tmp_path, NASTY.__getitem__)
    named = replace(trace, run=replace(trace.run, settings={**trace.run.settings, "policy": {"policy": "=x"}}))
    with pytest.raises(SpecVizError, match="small letters"):
        write_trace_csv(named, tmp_path, NASTY.__getitem__)
    assert not list(tmp_path.iterdir())


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "run.json").unlink(), "run.json is missing"),
        (lambda d: (d / "steps.csv").unlink(), "steps.csv is missing"),
        (lambda d: (d / "run.json").write_text("[1, 2]"), "damaged or no trace"),
        (lambda d: (d / "run.json").write_text("[" * 100_000), "damaged or no trace"),
        (lambda d: edit(d / "run.json", '"format": "specviz-trace"', '"format": "other"'), "damaged or no trace"),
        (lambda d: edit(d / "run.json", '"version": 2', '"version": 3'), "newer SpecViz"),
        (lambda d: edit(d / "run.json", '"seed"', '"sead"'), "damaged or no trace"),
        (lambda d: (d / "steps.csv").write_bytes(b"\xff\xfe\x00"), "damaged or no trace"),
        (lambda d: (d / "rounds.csv").write_text(""), "damaged or no trace"),
        (lambda d: edit(d / "rounds.csv", "proposed", "suggested"), "damaged or no trace"),
        (lambda d: edit(d / "steps.csv", ",draft,", ",both,"), "contradicts itself"),
        (lambda d: edit(d / "steps.csv", "\n0,0,draft,0,", "\n0,0,draft,99999999999,"), "damaged or no trace"),
        (lambda d: edit(d / "steps.csv", "\n0,0,draft,0,", "\n0,0,draft,1,"), "contradicts itself"),
        (lambda d: edit(d / "steps.csv", ",False", ",maybe"), "damaged or no trace"),
        (lambda d: (d / "steps.csv").write_bytes((d / "steps.csv").read_bytes()[:-300]), "damaged|contradicts"),
    ],
)
def test_damaged_csv_gives_a_sentence(tmp_path, spoil, message):
    write_trace_csv(make_trace(), tmp_path, NASTY.__getitem__)
    spoil(tmp_path)
    with pytest.raises(SpecVizError, match=message) as caught:
        read_trace_csv(tmp_path)
    assert "\n" not in str(caught.value)


def test_recordings_round_trip_to_the_bit(tmp_path):
    cost = {"target": [0.1 + 0.2, 1 / 3], "contexts": [128, 256], "note": "ü"}
    written = RecordingSet(make_recordings(), cost)
    path = tmp_path / "deep" / "set.parquet"
    write_recordings(written, path)
    read = read_recordings(path)
    assert list(read.recordings) == list(written.recordings)
    assert read == RecordingSet(list(written.recordings), cost)
    assert [path.name for path in path.parent.iterdir()] == ["set.parquet"]
    policy = ConfidenceThreshold(0.4)
    assert trace_differences(replay(read.recordings[0], policy, 4), replay(written.recordings[0], policy, 4)) == []


def test_token_bytes_come_back_as_they_were(tmp_path):
    tokens = {0: b"", 3: " =1+1 é\n".encode(), 70000: b"\xf0\x9f", 5: "\u202e<b>".encode()}
    written = RecordingSet(make_recordings(2)).with_tokens(tokens)
    write_recordings(written, tmp_path / "set.parquet")
    read = read_recordings(tmp_path / "set.parquet")
    assert read.tokens == tokens
    assert read == RecordingSet(list(written.recordings), tokens=tokens)
    table = pq.read_table(tmp_path / "set.parquet")
    shared = json.loads(table.schema.metadata[METADATA_KEY])
    # A set written before there were token texts has none; nonsense in their place is refused.
    del shared["tokens"]
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(shared)}), tmp_path / "old.parquet")
    assert read_recordings(tmp_path / "old.parquet") == RecordingSet(list(written.recordings))
    for nonsense in ([1], {"x": "a"}, {"1": 2}, None):
        metadata = {METADATA_KEY: json.dumps(shared | {"tokens": nonsense})}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "bad.parquet")
        with pytest.raises(SpecVizError, match="damaged or no recording set"):
            read_recordings(tmp_path / "bad.parquet")


def test_recordings_differ_when_one_bit_does():
    one, other = make_recordings(1)[0], make_recordings(1)[0]
    assert one == other
    other.target_entropy[0] = -0.0
    assert one != other


def test_writing_again_replaces_and_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "set.parquet"
    write_recordings(RecordingSet(make_recordings(1)), path)
    before = path.read_bytes()
    broken = make_recordings(1)[0]
    broken.draft_confidence[0] = math.nan
    with pytest.raises(SpecVizError, match="draft_confidence"):
        write_recordings(RecordingSet([broken]), path)
    assert path.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["set.parquet"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecVizError, match="Cannot write"):
        write_recordings(RecordingSet(make_recordings(1)), tmp_path / "file" / "set.parquet")


def test_foreign_and_newer_parquet_give_a_sentence(tmp_path):
    path = tmp_path / "set.parquet"
    with pytest.raises(SpecVizError, match="There is no file"):
        read_recordings(path)
    path.write_text("not parquet")
    with pytest.raises(SpecVizError, match="damaged or no recording set"):
        read_recordings(path)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(SpecVizError, match="no recording set"):
        read_recordings(path)
    write_recordings(RecordingSet(make_recordings(1)), path)
    table = pq.read_table(path)
    shared = json.loads(table.schema.metadata[METADATA_KEY])
    for change, message in (
        ({"schema_version": 99}, "newer SpecViz"),
        ({"schema_version": "x"}, "damaged or no recording set"),
        ({"pair": None}, "damaged or no recording set"),
        ({"max_draft": 20}, "a branch is too short"),
    ):
        metadata = {METADATA_KEY: json.dumps(shared | change).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(SpecVizError, match=message):
            read_recordings(path)
    pq.write_table(table.drop_columns(["draft_margin"]), path)
    with pytest.raises(SpecVizError, match="damaged or no recording set"):
        read_recordings(path)
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(SpecVizError, match="at least one recording"):
        read_recordings(path)
    with pytest.raises(SpecVizError, match="damaged or no recording set"):
        read_recordings(tmp_path)


def test_damaged_parquet_never_gives_other_arrays(tmp_path):
    path = tmp_path / "set.parquet"
    written = make_recordings(2, 12)
    write_recordings(RecordingSet(written), path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    spoilt = [whole[:at] for at in random.integers(0, len(whole), 30)]
    for at in random.integers(0, len(whole), 400):
        spoilt.append(whole[:at] + bytes([whole[at] ^ (1 << int(random.integers(8)))]) + whole[at + 1 :])
    refused = 0
    for content in spoilt:
        path.write_bytes(content)
        try:
            read = read_recordings(path).recordings
        except SpecVizError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            for name in (column.name for column in ARRAY_COLUMNS):
                assert all(
                    getattr(a, name).tobytes() == getattr(b, name).tobytes() for a, b in zip(read, written, strict=True)
                )
    assert refused > 30


def test_recordings_of_different_pairs_do_not_mix():
    one, other = make_recordings(2)
    with pytest.raises(SpecVizError, match="differ in pair"):
        RecordingSet([one, replace(other, pair=PairInfo("x"))])
    with pytest.raises(SpecVizError, match="at least one"):
        RecordingSet([])


def test_a_cost_model_of_another_pair_is_refused():
    recordings = RecordingSet(make_recordings(1))
    own = {"pair": asdict(recordings.pair) | {"device": "another machine"}}
    assert recordings.with_cost_model(own).cost_model == own
    with pytest.raises(SpecVizError, match="draft precision 'nf4'"):
        recordings.with_cost_model({"pair": asdict(recordings.pair) | {"draft_precision": "nf4"}})
