"""A comparison of precisions as a folder.

`comparison.json` holds everything but the recordings, which lie beside it as one recording set for each combination,
`TARGET-DRAFT.parquet`, readable by every other command. `combinations.csv` and `models.csv` are its tables.
"""

import json
from pathlib import Path

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
from specviz.trace import read_recordings, write_recordings
from specviz.trace.files import whole_file
from specviz.trace.token_bytes import tokens_from_json, tokens_to_json

FORMAT_VERSION = 1
MAIN_FILE = "comparison.json"
DIGITS = 6  # of what is kept of a probability, a divergence and a margin
_FLOATS = ("divergence", "log_prob", "reference_log_prob", "reference_margin")
_INTEGERS = ("token", "reference_token")


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


def read_comparison(folder: str | Path) -> PrecisionComparison:
    """Read what `write_comparison` wrote.

    Raises:
        SpecVizError: there is no comparison, or a file of it is missing, damaged, or written by a newer version.
    """
    folder = Path(folder)
    try:
        values = json.loads((folder / MAIN_FILE).read_text("utf-8"))
        if values["version"] > FORMAT_VERSION:
            raise SpecVizError(f"The comparison in {folder} was written by a newer SpecViz; update SpecViz.")
        combinations = []
        for each in values["combinations"]:
            recordings = read_recordings(folder / _file_name(each["label"]))
            combinations.append(Combination(recordings, int(each["memory_bytes"])))
            if combinations[-1].label != each["label"] or recordings.cost_model is None:
                raise ValueError("a recording set of another combination, or without prices")
        return PrecisionComparison(
            tuple(combinations),
            range(len(combinations))[values["full"]],
            tuple(_model_from_json(model) for model in values["models"]),
            tokens_from_json(values["tokens"]),
            tuple(map(str, values["notes"])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SpecVizError(f"The comparison in {folder} is missing or damaged; run `compare` again.") from error


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


def _model_from_json(values: dict) -> ModelError:
    texts = []
    for text in values["texts"]:
        columns = {name: np.asarray(text[name], np.int32) for name in _INTEGERS}
        columns |= {name: np.asarray([np.nan if v is None else v for v in text[name]]) for name in _FLOATS}
        if len({column.shape for column in columns.values()}) != 1 or columns["token"].ndim != 1:
            raise ValueError("columns differ in length")
        texts.append(TextError(str(text["prompt_id"]), **columns))
    return ModelError(**{**values, "texts": tuple(texts)})
