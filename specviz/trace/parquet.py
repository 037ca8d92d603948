"""A recording set as one Parquet file.

One row per recording. Lists hold the arrays of `Recording`; what the recordings share (models, revisions, precisions,
device, library versions, settings, cost model, bytes of tokens) is JSON in the schema's metadata under the key
`specviz`.
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specviz.errors import SpecVizError
from specviz.trace.files import whole_file
from specviz.trace.recording import ARRAY_COLUMNS, TOP_COLUMNS, TOP_TOKENS, Recording, RecordingSet
from specviz.trace.token_bytes import tokens_from_json, tokens_to_json
from specviz.trace.trace import PairInfo

SCHEMA_VERSION = 2
METADATA_KEY = b"specviz"
SCALARS = {
    "prompt_id": pa.string(),
    "category": pa.string(),
    "prompt": pa.string(),
    "seed": pa.int64(),
    "finish_reason": pa.string(),
    "max_new_tokens": pa.int64(),
    "output_limit": pa.int64(),
}
ARRAY_TYPES = {
    column.name: pa.list_(pa.type_for_alias(column.dtype.replace("float32", "float"))) for column in ARRAY_COLUMNS
}
TOP_NAMES = {column.name for column in TOP_COLUMNS}


def write_recordings(recording_set: RecordingSet, path: str | Path) -> None:
    """Write the set to `path`, whole or not at all.

    Raises:
        SpecVizError: a recording contradicts itself, or the file cannot be written.
    """
    recordings = [recording.validate() for recording in recording_set.recordings]
    shared = {
        "schema_version": SCHEMA_VERSION,
        "pair": asdict(recording_set.pair),
        "settings": dict(recording_set.settings),
        "max_draft": recording_set.max_draft,
        "eos_ids": list(recording_set.eos_ids),
        "cost_model": recording_set.cost_model,
        "tokens": tokens_to_json(recording_set.tokens),
    }
    columns = {
        name: pa.array([getattr(recording, name) for recording in recordings], kind) for name, kind in SCALARS.items()
    }
    for name, kind in ARRAY_TYPES.items():
        flat = [getattr(recording, name).reshape(-1) for recording in recordings]
        offsets = np.cumsum([0, *map(len, flat)], dtype=np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(flat), kind.value_type))
    schema = pa.schema(
        [pa.field(name, column.type, nullable=False) for name, column in columns.items()],
        metadata={METADATA_KEY: json.dumps(shared).encode()},
    )
    with whole_file(Path(path)) as temporary:
        pq.write_table(pa.table(columns, schema=schema), temporary, compression="zstd", write_page_checksum=True)


def read_recordings(path: str | Path) -> RecordingSet:
    """Read what `write_recordings` wrote, equal to the bit.

    Raises:
        SpecVizError: the file is missing, damaged, no recording set, or written by a newer version.
    """
    path = Path(path)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
            if metadata is None:
                raise SpecVizError(f"{path} is a Parquet file but no recording set; choose one written by `record`.")
            shared = json.loads(metadata)
            if shared["schema_version"] > SCHEMA_VERSION:
                raise SpecVizError(
                    f"{path} was written by a newer SpecViz (schema {shared['schema_version']}, this one reads "
                    f"{SCHEMA_VERSION}); update SpecViz."
                )
            table = file.read([*SCALARS, *ARRAY_TYPES])  # a column that a file lacks is left out
            if shared["schema_version"] < 2:
                table = _with_emitted(table)
        return _recording_set(table, shared)
    except FileNotFoundError as error:
        raise SpecVizError(f"There is no file {path}; check the path or make it with `record`.") from error
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecVizError(f"{path} is damaged or no recording set; record it again or choose another file.") from error


def _with_emitted(table: pa.Table) -> pa.Table:
    """Add what schema 1 lacked. Its recordings are greedy, so the emitted token is the target's most likely one."""
    emitted = [row[::TOP_TOKENS] for row in table["target_top_probs"].to_pylist()]
    return table.append_column("target_prob_of_emitted", pa.array(emitted, ARRAY_TYPES["target_prob_of_emitted"]))


def _recording_set(table: pa.Table, shared: dict) -> RecordingSet:
    common = {
        "pair": PairInfo(**shared["pair"]),
        "settings": shared["settings"],
        "max_draft": int(shared["max_draft"]),
        "eos_ids": tuple(shared["eos_ids"]),
    }
    scalars = {name: table[name].cast(kind).to_pylist() for name, kind in SCALARS.items()}
    arrays = {name: table[name].cast(kind).combine_chunks() for name, kind in ARRAY_TYPES.items()}
    recordings = []
    for row in range(table.num_rows):
        values = {name: column[row].values.to_numpy(zero_copy_only=False) for name, column in arrays.items()}
        values |= {name: values[name].reshape(-1, TOP_TOKENS) for name in TOP_NAMES}
        values |= {name: column[row] for name, column in scalars.items()}
        recordings.append(Recording(**common, **values).validate())
    return RecordingSet(recordings, shared["cost_model"], tokens_from_json(shared.get("tokens", {})))
