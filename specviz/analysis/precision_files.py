"""A comparison of precisions as a folder.

`comparison.json` holds everything but the recordings, which lie beside it as one recording set for each combination,
`TARGET-DRAFT.parquet`, readable by every other command. `combinations.csv` and `models.csv` are its tables.
"""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from specviz.analysis.precisions import (
    Combination,
    ModelError,
    PrecisionComparison,
    TextError,
    combination_table,
    error_table,
)
from specviz.analysis.report import write_table
from specviz.errors import SpecVizError
from specviz.replay.rules import recorded_drawing
from specviz.trace import read_recordings, write_recordings
from specviz.trace.files import whole_file
from specviz.trace.json_reader import Name, Number, TokenId, of_shape, parse_json
from specviz.trace.limits import MOST_REPORT
from specviz.trace.token_bytes import TokenTable, tokens_from_json, tokens_to_json

FORMAT_VERSION = 1
MAIN_FILE = "comparison.json"
DIGITS = 6  # of what is kept of a probability, a divergence and a margin
_FLOATS = ("divergence", "log_prob", "reference_log_prob", "reference_margin")
_INTEGERS = ("token", "reference_token")
MOST_COMBINATIONS = 100
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Note = Annotated[str, msgspec.Meta(max_length=10_000)]


def write_comparison(comparison: PrecisionComparison, folder: str | Path) -> None:
    """Write the folder; `comparison.json` comes last, so that a folder that has one is whole.

    Raises:
        SpecVizError: a file cannot be written.
    """
    folder = Path(folder)
    for combination in comparison.combinations:
        write_recordings(combination.recordings, folder / _file_name(combination.label))
    write_table(combination_table(comparison), folder / "combinations.csv")
    if comparison.models:
        write_table(error_table(comparison), folder / "models.csv")
    values = {
        "version": FORMAT_VERSION,
        "full": comparison.full,
        "combinations": [{"label": c.label, "memory_bytes": c.memory_bytes} for c in comparison.combinations],
        "models": [_model_to_json(model) for model in comparison.models],
        "tokens": tokens_to_json(comparison.tokens),
        "notes": list(comparison.notes),
    }
    with whole_file(folder / MAIN_FILE) as temporary:
        temporary.write_text(json.dumps(values, allow_nan=False) + "\n", "utf-8")


class _Combination(msgspec.Struct):
    label: Name
    memory_bytes: Bytes


class _Text(msgspec.Struct):
    """A `TextError`; None is a number that is not known."""

    prompt_id: Name
    token: list[TokenId]
    reference_token: list[TokenId]
    divergence: list[Number]
    log_prob: list[Number | None]
    reference_log_prob: list[Number | None]
    reference_margin: list[Number]


class _Model(msgspec.Struct):
    """A `ModelError`."""

    role: Name
    precision: Name
    memory_bytes: Bytes
    texts: Annotated[list[_Text], msgspec.Meta(min_length=1)]
    load_seconds: Number | None = None
    peak_bytes: Bytes | None = None


class _Version(msgspec.Struct):
    version: int


class _Comparison(msgspec.Struct):
    full: Annotated[int, msgspec.Meta(ge=0)]
    combinations: Annotated[list[_Combination], msgspec.Meta(min_length=1, max_length=MOST_COMBINATIONS)]
    models: Annotated[list[_Model], msgspec.Meta(max_length=2 * MOST_COMBINATIONS)]
    tokens: TokenTable
    notes: list[Note]


def read_comparison(folder: str | Path) -> PrecisionComparison:
    """Read what `write_comparison` wrote.

    Raises:
        SpecVizError: there is no comparison, or a file of it is missing, damaged, too large, or written by a newer
            version.
    """
    folder = Path(folder)
    try:
        content = parse_json((folder / MAIN_FILE).read_bytes(), most=MOST_REPORT, raw=("tokens",))
        if of_shape(content, _Version).version > FORMAT_VERSION:
            raise SpecVizError(f"The comparison in {folder} was written by a newer SpecViz; update SpecViz.")
        values = of_shape(content, _Comparison)
        combinations = tuple(_read_combination(folder, each) for each in values.combinations)
        comparison = PrecisionComparison(
            combinations,
            range(len(combinations))[values.full],
            tuple(map(_read_model, values.models)),
            tokens_from_json(values.tokens),
            tuple(values.notes),
        )
        _check_texts(comparison)
        return comparison
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise SpecVizError(f"The comparison in {folder} is missing or damaged; run `compare` again.") from error


def _read_combination(folder: Path, each: _Combination) -> Combination:
    """
    Raises:
        SpecVizError: its recordings or prices are damaged.
        ValueError, KeyError: they are of another combination.
    """
    combination = Combination(read_recordings(folder / _file_name(each.label)), each.memory_bytes)
    if combination.label != each.label or combination.recordings.cost_model is None:
        raise ValueError("a recording set of another combination, or without prices")
    recorded_drawing(combination.recordings.recordings[0])
    combination.cost.mode(combination.pass_mode)
    return combination


def _check_texts(comparison: PrecisionComparison) -> None:
    """Refuse models that were not measured along the texts of the full-precision baseline.

    Raises:
        KeyError, ValueError: in that case.
    """
    lengths = {one.prompt_id: len(one.output_ids) for one in comparison.baseline.recordings.recordings}
    for model in comparison.models:
        for text in model.texts:
            if any(len(getattr(text, name)) != lengths[text.prompt_id] for name in (*_INTEGERS, *_FLOATS)):
                raise ValueError(f"the text of {text.prompt_id[:40]!r} is not as long as its output")


def _file_name(label: str) -> str:
    if not set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789+.:"):
        raise ValueError(f"{label!r} is no combination")
    return f"{label.replace(':', '-')}.parquet"


def _model_to_json(model: ModelError) -> dict:
    texts = [
        {"prompt_id": text.prompt_id}
        | {name: getattr(text, name).tolist() for name in _INTEGERS}
        | {name: [_kept(value) for value in getattr(text, name).tolist()] for name in _FLOATS}
        for text in model.texts
    ]
    names = ("role", "precision", "memory_bytes", "load_seconds", "peak_bytes")
    return {name: getattr(model, name) for name in names} | {"texts": texts}


def _kept(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _read_model(values: _Model) -> ModelError:
    texts = tuple(
        TextError(
            text.prompt_id,
            **{name: np.asarray(getattr(text, name), np.int32) for name in _INTEGERS},
            **{name: np.asarray(getattr(text, name), np.float64) for name in _FLOATS},
        )
        for text in values.texts
    )
    return ModelError(values.role, values.precision, values.memory_bytes, values.load_seconds, values.peak_bytes, texts)
