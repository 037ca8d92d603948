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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from specviz.errors import SpecVizError
from specviz.trace.columns import FLAG, INT, ROUND_COLUMNS, STEP_COLUMNS, TEXT, Column
from specviz.trace.files import whole_file
from specviz.trace.trace import PairInfo, RunInfo, Trace, column_arrays

FORMAT = "specviz-trace"
FORMAT_VERSION = 2
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


def read_trace_csv(directory: str | Path) -> tuple[Trace, dict[int, bytes]]:
    """Read what `write_trace_csv` wrote: the same trace, and the bytes of every token id in it.

    Version 1 called the target's token `bonus` also in a round that proposed nothing; it is read as `plain`.

    Raises:
        SpecVizError: a file is missing, damaged, no trace, or written by a newer version.
    """
    directory = Path(directory)
    try:
        run = json.loads((directory / "run.json").read_text("utf-8"))
        if run.pop("format") != FORMAT:
            raise ValueError("another format")
        version = run.pop("version")
        if version > FORMAT_VERSION:
            raise SpecVizError(f"The trace in {directory} was written by a newer SpecViz; update SpecViz.")
        run["pair"] = PairInfo(**run["pair"])
        for name in ("prompt_ids", "output_ids"):
            run[name] = tuple(map(int, run[name]))
        for name in ("prefill_seconds", "total_seconds"):
            run[name] = math.nan if run[name] is None else float(run[name])
        rounds = _read_table(directory / "rounds.csv", ROUND_COLUMNS)
        steps = _read_table(directory / "steps.csv", (*STEP_COLUMNS, *TEXT_COLUMNS))
        texts = {}
        for name, text_name in TOKEN_TEXTS.items():
            cells = dict(zip(steps[name].tolist(), steps.pop(text_name).tolist(), strict=True))
            texts |= {token: _text_bytes(cell) for token, cell in cells.items() if token >= 0}
        if version < 2:
            _name_plain_tokens(rounds, steps)
        return Trace(RunInfo(**run), column_arrays(ROUND_COLUMNS, rounds), steps).validate(), texts
    except FileNotFoundError as error:
        raise SpecVizError(
            f"{directory} holds no whole trace: {Path(error.filename).name} is missing; choose a "
            "directory written with --csv."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SpecVizError(f"The files in {directory} are damaged or no trace; write the trace again.") from error


def _name_plain_tokens(rounds: Mapping[str, np.ndarray], steps: Mapping[str, np.ndarray]) -> None:
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
    text = json.loads(cell)
    if not isinstance(text, str):
        raise ValueError("a token text is not a JSON string")
    return text.encode("utf-8", "surrogateescape")


def _read_table(path: Path, columns: tuple[Column, ...]) -> dict[str, np.ndarray]:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    return {column.name: _parse(frame[column.name].to_numpy(object), column.dtype) for column in columns}


def _parse(cells: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == TEXT:
        return cells.astype(np.str_)
    if dtype == FLAG:
        if not np.isin(cells, ("True", "False")).all():
            raise ValueError("a flag is neither True nor False")
        return cells == "True"
    if dtype == INT:
        return np.array([int(cell) for cell in cells], dtype)
    return np.array([math.nan if cell == "" else float(cell) for cell in cells], dtype)
