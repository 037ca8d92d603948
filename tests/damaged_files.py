"""Files damaged in every way a seed may choose, and everything that can be done with those that still open."""

import io
import json
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sample_recordings import sample_cost, sample_recording, sample_words

from specviz.analysis import describe, metrics, sweep_table, threshold_outcomes
from specviz.analysis.arena import arena
from specviz.analysis.arena_table import arena_table
from specviz.analysis.context_report import by_category, by_kind
from specviz.analysis.draft_calibration import calibration_table, mapped_curves, recalibrate
from specviz.analysis.ready_settings import ready_settings
from specviz.analysis.tuning import tune, tuning_table
from specviz.analysis.verdict import advise
from specviz.errors import SpecVizError
from specviz.replay import FixedLength, replay
from specviz.trace import RecordingSet, write_recordings
from specviz.trace.kept import kept_sets, recordings_folder
from specviz.trace.parquet import METADATA_KEY
from specviz.ui.judging import calibrations_of, stretches_of, token_flags
from specviz.ui.library import KEPT, TRACE_FILES, own_sets, read_trace_upload, set_as_parquet, trace_as_zip
from specviz.ui.sweeps import curve_of
from specviz.ui.token_texts import display_from

LONGEST_SENTENCE = 600  # characters
PROMPTS, TOKENS, LONGEST_DRAFT = 3, 20, 3
DEEP = "a value nested 100,000 deep"
NESTED = "[" * 100_000 + "]" * 100_000
NUMBERS = (0, -1, 1, 2, 7, 2**31, -(2**63), 10**30, 1.5, 1e-320, 1e308, -1e308, float("inf"), float("nan"))
VALUES = (*NUMBERS, None, True, [], {}, [None], {"": 0}, "", "x", "=1+1", "\ud800", "é" * 5000, "9" * 5000, DEEP)


def whole_sets() -> tuple[RecordingSet, ...]:
    """Two priced sets: a greedy one, and one with every setting that a set may have."""
    words = {token: word.encode() for token, word in enumerate(sample_words())}
    greedy = [sample_recording(TOKENS, seed, max_draft=LONGEST_DRAFT) for seed in range(PROMPTS)]
    settings = {
        "pass_mode": "invariant",
        "rule": "coupled",
        "sampling": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.1},
        "stop": ["\n\n"],
        "generation_config": {"suppress_tokens": [1, 2], "min_new_tokens": 2},
        "not_honoured": ["num_beams"],
        "compiled": False,
    }
    drawn = [replace(one, settings=settings, eos_ids=(10_000,)) for one in greedy]
    cost = sample_cost(LONGEST_DRAFT).to_json()
    return tuple(RecordingSet(recordings, cost, words) for recordings in (greedy, drawn))


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged_set(whole: Path, source: random.Random) -> bytes:
    """The file's bytes with one to three faults of one kind."""
    fault = source.choice((flipped, truncated, with_other_metadata, with_other_metadata, with_other_columns))
    if fault in (flipped, truncated):
        return fault(whole.read_bytes(), source)
    table = fault(pq.read_table(whole), source)
    packed = io.BytesIO()
    pq.write_table(table, packed)
    return packed.getvalue()


def flipped(content: bytes, source: random.Random) -> bytes:
    """With other bytes; half of them at the end, where a Parquet or zip file says what it holds."""
    changed = bytearray(content)
    for _ in range(source.randint(1, 3)):
        first = source.choice((0, max(0, len(content) - 12_000)))
        changed[source.randrange(first, len(content))] ^= 1 << source.randrange(8)
    return bytes(changed)


def truncated(content: bytes, source: random.Random) -> bytes:
    start = source.randrange(len(content)) if source.random() < 0.2 else 0
    return content[start : source.randrange(start, len(content))]


def with_other_metadata(table: pa.Table, source: random.Random) -> pa.Table:
    shared = json.loads(table.schema.metadata[METADATA_KEY])
    text = json_text(damaged_json(shared, source))
    return table.replace_schema_metadata({METADATA_KEY: text.encode("utf-8", "backslashreplace")})


def json_text(values) -> str:
    return json.dumps(values).replace(json.dumps(DEEP), NESTED)


def damaged_json(values, source: random.Random):
    """The values with one to three of them deleted, exchanged, repeated, renamed or wrapped."""
    for _ in range(source.randint(1, 3)):
        places = [place for place in _places(values) if place[0] != "tokens" or source.random() < 0.05]
        if not places:
            break
        holder, name = values, source.choice(places)
        *way, last = name
        for step in way:
            holder = holder[step]
        match source.randrange(7):
            case 0:
                del holder[last]
            case 1 | 2 | 3:
                holder[last] = source.choice(VALUES)
            case 4:
                holder[last] = source.choice(([holder[last]], {"x": holder[last]}, str(holder[last])))
            case 5 if isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
                holder[last] = source.choice((-1, 0.5, 2, 1e6, 1e150)) * holder[last]
            case 5 if isinstance(holder[last], list):
                holder[last] = holder[last] * source.choice((2, 1000))
            case _ if isinstance(holder, dict):
                holder[source.choice(("x", *map(str, holder)))] = holder[last]
            case _:
                holder.insert(0, holder[last])
    return values


def _places(values, way=()) -> list[tuple]:
    """The way to each value within."""
    names = values.keys() if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ()
    return [place for name in names for place in ((*way, name), *_places(values[name], (*way, name)))]


def with_other_columns(table: pa.Table, source: random.Random) -> pa.Table:
    for _ in range(source.randint(1, 3)):
        number = source.randrange(table.num_columns)
        field, rows = table.schema.field(number), table.column(number).to_pylist()
        row = source.randrange(len(rows)) if rows else 0
        match source.randrange(8):
            case 0:
                table = table.remove_column(number)
                continue
            case 1:
                table = source.choice((table.slice(0, source.randrange(3)), pa.concat_tables([table, table])))
                continue
            case 2 if rows:
                rows[row] = None
            case 3 if rows:
                rows[row] = source.choice(rows)
            case 4 if rows and isinstance(rows[row], list):
                rows[row] = rows[row][: source.randrange(len(rows[row]) + 1)] * source.choice((1, 1, 2, 100))
            case _ if rows and isinstance(rows[row], list) and rows[row]:
                place = source.randrange(len(rows[row]))
                rows[row] = list(rows[row])
                rows[row][place] = _other_value(rows[row][place], source)
            case _ if rows:
                rows[row] = _other_value(rows[row], source)
        kind = field.type if source.random() < 0.9 else None  # None: whatever suits the values
        try:
            values = pa.array(rows, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue  # the column's type cannot hold it
        table = table.set_column(number, pa.field(field.name, values.type), values)
    return table


def _other_value(value, source: random.Random):
    if isinstance(value, float) and source.random() < 0.6:
        bits = np.float32(value).view(np.uint32) ^ np.uint32(1 << source.randrange(32))
        return float(bits.view(np.float32))
    if isinstance(value, int) and source.random() < 0.6:
        return value + source.choice((-1, 1, 1 << source.randrange(31)))
    return source.choice(NUMBERS if isinstance(value, int | float) else VALUES)


def damaged_trace(whole: dict[str, bytes], source: random.Random) -> dict[str, bytes]:
    """The three files of a trace, or a zip file that holds them, with faults."""
    files, packed_first = dict(whole), source.random() < 0.25
    if not packed_first:
        name = source.choice(TRACE_FILES)
        fault = source.randrange(5)
        if fault == 0:
            files[name] = flipped(files[name], source)
        elif fault == 1:
            files[name] = truncated(files[name], source)
        elif fault == 2 and source.random() < 0.3:
            del files[name]
        elif name == "run.json":
            files[name] = json_text(damaged_json(json.loads(files[name]), source)).encode("utf-8", "backslashreplace")
        else:
            files[name] = damaged_cells(files[name], source)
        if source.random() < 0.5:
            return files
    content = packed(files)
    return {"trace.zip": source.choice((flipped, truncated))(content, source) if packed_first else content}


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, each in files.items():
            archive.writestr(name, each)
    return content.getvalue()


def damaged_cells(content: bytes, source: random.Random) -> bytes:
    rows = [line.split(",") for line in content.decode("utf-8", "surrogateescape").split("\n")]
    for _ in range(source.randint(1, 3)):
        row = source.choice(rows)
        place = source.randrange(len(row))
        match source.randrange(6):
            case 0:
                rows.remove(row)
            case 1:
                rows.insert(source.randrange(len(rows)), row)
            case 2:
                row.pop(place)
            case 3:
                row[place] = source.choice(rows[source.randrange(len(rows))])
            case _:
                cells = ("", "-1", "nan", "inf", "1e308", "9" * 30, "x", '"', "'", "[]", '""""', "True", "é" * 5000)
                row[place] = source.choice(cells)
        if not rows or not any(rows):
            break
        rows = [row for row in rows if row]
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogateescape")


# --- use -------------------------------------------------------------------------------------------------------------


def is_sentence(error: SpecVizError) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text and len(text) <= LONGEST_SENTENCE


def use_set(content: bytes, name: str) -> tuple[bool, list[SpecVizError]]:
    """Put a file into the project folder and do with it what every page and command does.

    Returns:
        Whether it opened, and the refusals; any other exception is the caller's.
    """
    folder = recordings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    refusals: list[SpecVizError] = []

    def attempt(work):
        try:
            return work()
        except SpecVizError as error:
            refusals.append(error)
            return None

    try:
        listed = kept_sets()[name]
        if listed.contents is None:
            return False, [SpecVizError(listed.problem)]
        offered = own_sets()[KEPT + name]
        members = attempt(lambda: offered.members)
        if members is None:
            return False, refusals
        for shown in members:
            attempt(shown.about)
            attempt(lambda shown=shown: stretches_of(shown, shown.longest_draft))
        shown = members[-1]
        longest = shown.longest_draft
        attempt(shown.packed_recording)
        for on_fail in ("drop", "keep"):
            attempt(lambda fate=on_fail: shown.packed_rounds(longest, fate))
            attempt(lambda fate=on_fail: _look_at(shown, fate))
        attempt(lambda: replay(shown.recording, FixedLength(), longest))
        attempt(lambda: set_as_parquet(offered))
        attempt(lambda: write_recordings(offered.as_recording_set(), path.with_suffix(".copy")))
        for split in ("depth", "kind", "precision"):
            attempt(lambda split=split: calibration_table(calibrations_of(offered, split)))
        learnt = attempt(lambda: recalibrate(offered.recordings))
        attempt(lambda: by_category(offered.recordings))
        flags = token_flags(offered)
        if flags is not None:
            attempt(lambda: by_kind(offered.recordings, flags))
        if offered.priced and offered.cost is not None:
            if learnt is not None:
                recordings = [offered.recordings[place] for place in learnt.shown_on]
                attempt(lambda: mapped_curves(recordings, offered.cost, 2, learnt.maps, resamples=20))
            attempt(lambda: curve_of(offered, longest))
            attempt(lambda: _tune(offered))
            attempt(lambda: arena_table(arena(offered.recordings, offered.cost, flags=flags, resamples=20)))
        return True, refusals
    finally:
        path.unlink()
        path.with_suffix(".copy").unlink(missing_ok=True)


def _look_at(shown, on_fail: str) -> None:
    trace = shown.trace(0.4, shown.longest_draft, on_fail)
    metrics(trace)
    threshold_outcomes(trace)
    files = trace_as_zip(shown, 0.4, shown.longest_draft, on_fail)
    read_trace_upload({"trace.zip": files})


def _tune(offered) -> None:
    tuning = tune(offered.recordings, offered.cost, resamples=20)
    advice = advise(tuning)
    assert advice.text and "nan×" not in advice.text
    ready_settings(advice)
    tuning_table(tuning)
    sweep_table(tuning.drop.cells)
    describe(tuning.keep.cells)


def use_trace(files: dict[str, bytes]) -> tuple[bool, list[SpecVizError]]:
    """Look at an uploaded trace as the page does; returns as `use_set`."""
    try:
        trace, tokens = read_trace_upload(files)
        rounds, steps = trace.to_frames()
        steps.insert(5, "text", list(map(display_from(tokens), steps["token"].tolist())))
        metrics(trace)
        threshold_outcomes(trace)
        return True, []
    except SpecVizError as error:
        return False, [error]
