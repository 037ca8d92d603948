"""A trace as three plain files in a directory: `steps.csv`, `rounds.csv` and `run.json`.

Numbers are written so that they read back the same (a float32 as the float64 it widens to); a number that is unknown
is an empty cell.

Token texts are model output, hence untrusted: each is written as a JSON string, with its double quotes. So no cell
starts with a character that makes a spreadsheet see a formula, no text looks like a missing value, and line breaks,
leading spaces and quotes survive. Bytes that are not whole UTF-8 (an emoji split over tokens) appear as the escapes
\\udc80 to \\udcff, Python's `surrogateescape`. `json.loads(cell).encode("utf-8", "surrogateescape")` gives the
token's bytes back; `read_trace_csv` does all of this.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from specviz.errors import SpecVizError
from specviz.trace.columns import FLAG, FLOAT, INT, ROUND_COLUMNS, STEP_COLUMNS, TEXT, Column
from specviz.trace.files import whole_file
from specviz.trace.json_reader import WHOLE, JsonError, TokenText, of_shape, parse_json, read_json
from specviz.trace.limits import MOST_TABLE, TooLargeError
from specviz.trace.trace import RunInfo, RunSettings, Trace, column_arrays

FORMAT = "specviz-trace"
FORMAT_VERSION = 2
_ARROW_TYPES = {TEXT: "string", FLOAT: "float64"}  # a float32 is written as the float64 it widens to
TOKEN_TEXTS = {"token": "token_text", "target_token": "target_text"}  # id column -> the text column beside it
TEXT_COLUMNS = (
    Column("token_text", TEXT, "", "the token's text as a JSON string"),
    Column("target_text", TEXT, "", "the target token's text as a JSON string; empty when it is unknown"),
)


def write_trace_csv(trace: Trace, directory: str | Path, decode: Callable[[int], bytes | str]) -> None:
    """Write `steps.csv`, `rounds.csv` and `run.json` into `directory`, replacing those already there.

    `run.json` is removed first and written last, so a directory with it holds one whole trace.

    Args:
        decode: the bytes of a token id (or its text, for a tokenizer without byte tokens).

    Raises:
        SpecVizError: the trace contradicts itself or a file cannot be written.
    """
    trace.validate()
    directory = Path(directory)
    rounds, steps = (_exact(frame) for frame in trace.to_frames())
    ids = np.unique(np.concatenate([trace.steps[name] for name in TOKEN_TEXTS])).tolist()
    cells = {token: "" if token < 0 else _text_cell(decode(token)) for token in ids}
    for name, text_name in TOKEN_TEXTS.items():
        steps.insert(steps.columns.get_loc(name) + 1, text_name, [cells[token] for token in trace.steps[name].tolist()])
    run = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(trace.run)}
    for name in ("prefill_seconds", "total_seconds"):
        run[name] = None if math.isnan(run[name]) else run[name]

    try:
        (directory / "run.json").unlink(missing_ok=True)
    except OSError as error:
        raise SpecVizError(f"Cannot write into {directory}: {error.strerror}; choose another directory.") from error
    for name, table in (("rounds.csv", rounds), ("steps.csv", steps)):
        with whole_file(directory / name) as temporary:
            table.to_csv(temporary, index=False, lineterminator="\n", encoding="utf-8")
    with whole_file(directory / "run.json") as temporary:
        temporary.write_text(json.dumps(run, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_trace_csv(directory: str | Path, name: str | None = None) -> tuple[Trace, dict[int, bytes]]:
    """Read what `write_trace_csv` wrote: the same trace, and the bytes of every token id in it.

    Version 1 called the target's token `bonus` also in a round that proposed nothing; it is read as `plain`.

    Args:
        name: what errors call the directory; by default its path.

    Raises:
        SpecVizError: a file is missing, damaged, too large, no trace, or written by a newer version.
    """
    directory = Path(directory)
    name = name or str(directory)
    try:
        run, version = _read_run((directory / "run.json").read_bytes(), name)
        rounds, _ = _read_table(directory / "rounds.csv", ROUND_COLUMNS)
        steps, texts = _read_table(directory / "steps.csv", STEP_COLUMNS)
        tokens = {token: _text_bytes(cell) for token, cell in texts.items()}
        if version < 2:
            _name_plain_tokens(rounds, steps)
        return Trace(run, rounds, steps).validate(), tokens
    except FileNotFoundError as error:
        raise SpecVizError(
            f"There is no whole trace in {name}: {Path(error.filename).name} is missing; choose a "
            "directory written with --csv."
        ) from error
    except TooLargeError as error:
        raise SpecVizError(f"The trace in {name} is too large to open: {error}.") from error
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise SpecVizError(f"The files in {name} are damaged or no trace; write the trace again.") from error


def _read_run(content: bytes, name: str) -> tuple[RunInfo, int]:
    """The contents of `run.json` in the directory called `name`, and the version it was written by."""
    values = of_shape(parse_json(content), dict)
    if values.pop("format", None) != FORMAT:
        raise JsonError("it has another format")
    version = of_shape(values.pop("version", None), int)
    if version > FORMAT_VERSION:
        raise SpecVizError(f"The trace in {name} was written by a newer SpecViz; update SpecViz.")
    if unknown := values.keys() - {field.name for field in fields(RunInfo)}:
        raise JsonError(f"{min(unknown)[:40]!r} is not known")
    for name in ("prefill_seconds", "total_seconds"):
        if values[name] is None:  # unknown
            del values[name]
    of_shape(values["settings"], RunSettings)
    return of_shape(values, RunInfo), version


def _name_plain_tokens(rounds: dict[str, np.ndarray], steps: dict[str, np.ndarray]) -> None:
    """Turn `bonus` into `plain` in the rounds that proposed nothing."""
    nothing_proposed = rounds["proposed"] == 0
    for table, name, of_round in (
        (rounds, "target_status", nothing_proposed),
        (steps, "status", np.isin(steps["round"], rounds["round"][nothing_proposed])),
    ):
        table[name] = np.where(of_round & (table[name] == "bonus"), "plain", table[name])


def _exact(frame: pd.DataFrame) -> pd.DataFrame:
    """Widen float32, whose shortest decimal form would be read as another float64."""
    return frame.astype({name: "float64" for name, dtype in frame.dtypes.items() if dtype == np.float32})


def _text_cell(token: bytes | str) -> str:
    text = token if isinstance(token, str) else token.decode("utf-8", "surrogateescape")
    # A lone surrogate cannot be written; Python's backslash escape of it is JSON's too.
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def _text_bytes(cell: str) -> bytes:
    return read_json(cell, TokenText, raw=(WHOLE,)).encode("utf-8", "surrogateescape")


def _read_table(path: Path, columns: tuple[Column, ...]) -> tuple[dict[str, np.ndarray], dict[int, str]]:
    """The columns of one file, and the text cells of its token ids."""
    if (size := path.stat().st_size) > MOST_TABLE:
        raise TooLargeError(f"{path.name} takes {size >> 20} MB, at most {MOST_TABLE >> 20}")
    names = [column.name for column in columns]
    text_names = {name: text for name, text in TOKEN_TEXTS.items() if name in names}
    types = {column.name: _ARROW_TYPES.get(column.dtype, column.dtype) for column in columns}
    options = csv.ConvertOptions(
        column_types={name: pa.type_for_alias(kind) for name, kind in types.items()}
        | dict.fromkeys(text_names.values(), pa.string()),
        include_columns=[*names, *text_names.values()],
        null_values=[""],
        true_values=["True"],
        false_values=["False"],
        strings_can_be_null=False,
        quoted_strings_can_be_null=False,
    )
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    texts: dict[int, str] = {}
    with csv.open_csv(path, convert_options=options) as reader:
        for batch in reader:
            for column in columns:
                parts[column.name].append(_values(batch[column.name], column))
            for name, text_name in text_names.items():
                ids = parts[name][-1]
                first, place = np.unique(ids, return_index=True)
                for token, row in zip(first.tolist(), place.tolist(), strict=True):
                    if token >= 0 and token not in texts:
                        texts[token] = batch[text_name][row].as_py()
    return column_arrays(columns, {name: np.concatenate(arrays) for name, arrays in parts.items() if arrays}), texts


def _values(array: pa.Array, column: Column) -> np.ndarray:
    """A batch's values of a column; only a number that may be NaN can be missing."""
    if column.dtype == TEXT:
        if (pc.max(pc.utf8_length(array)).as_py() or 0) > column.most:  # numpy makes all as wide as the longest
            raise ValueError(f"{column.name} holds a text that is too long")
        return np.asarray(array.to_pylist(), np.str_)
    if array.null_count and column.dtype in (INT, FLAG):
        raise ValueError(f"{column.name} has an empty cell")
    return array.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False)
