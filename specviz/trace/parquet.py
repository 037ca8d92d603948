"""A recording set as one Parquet file.

One row per recording. Lists hold the arrays of `Recording`; what the recordings share (models, revisions, precisions,
device, library versions, settings, cost model, bytes of tokens) is JSON in the schema's metadata under the key
`specviz`.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specviz.errors import SpecVizError
from specviz.trace.columns import TEXT
from specviz.trace.files import whole_file
from specviz.trace.json_reader import Name, TokenId, of_shape, parse_json
from specviz.trace.limits import (
    MOST_DRAFT,
    MOST_EOS,
    MOST_FOOTER,
    MOST_UNPACKED,
    TooLargeError,
)
from specviz.trace.recording import (
    ARRAY_COLUMNS,
    SCALAR_COLUMNS,
    TOP_COLUMNS,
    TOP_TOKENS,
    Recording,
    RecordingSet,
    check_set_size,
)
from specviz.trace.token_bytes import TokenTable, tokens_from_json, tokens_to_json
from specviz.trace.trace import PairInfo, RunSettings

SCHEMA_VERSION = 2
METADATA_KEY = b"specviz"
SCALARS = {column.name: pa.string() if column.dtype == TEXT else pa.int64() for column in SCALAR_COLUMNS}
ARRAY_TYPES = {
    column.name: pa.list_(pa.type_for_alias(column.dtype.replace("float32", "float"))) for column in ARRAY_COLUMNS
}
TEXT_NAMES = [column.name for column in SCALAR_COLUMNS if column.dtype == TEXT]
TOP_NAMES = {column.name for column in TOP_COLUMNS}
NUMBERS = {"BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE"}  # types of Parquet
LARGEST_NUMBER = 8  # bytes of one of them


class _Version(msgspec.Struct):
    schema_version: int


class Shared(msgspec.Struct):
    """What the recordings of a file share."""

    schema_version: int
    pair: PairInfo
    settings: dict[Name, Any]
    max_draft: Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT)]
    eos_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=MOST_EOS)]
    cost_model: Mapping | None  # `specviz.analysis` knows its shape
    tokens: TokenTable = {}


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


def read_recordings(source: str | Path | bytes, name: str | None = None, *, most: int = MOST_UNPACKED) -> RecordingSet:
    """Read what `write_recordings` wrote, equal to the bit.

    Args:
        source: the file's path, or its content.
        name: what errors call it; by default its path.
        most: bytes that it may unpack to.

    Raises:
        SpecVizError: the file is missing, damaged, too large, no recording set, or written by a newer version.
    """
    name = name or str(source)
    try:
        with open_parquet(source, [*SCALARS, *ARRAY_TYPES], TEXT_NAMES, most) as file:
            metadata = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
            if metadata is None:
                raise SpecVizError(f"{name} is a Parquet file but no recording set; choose one written by `record`.")
            shared = read_shared(metadata, name)
            check_set_size(file.metadata.num_rows, shared.max_draft)
            table = file.read([*SCALARS, *ARRAY_TYPES])  # a column that a file lacks is left out
            if shared.schema_version < 2:
                table = _with_emitted(table)
        table.validate(full=True)
        return _recording_set(table, shared)
    except FileNotFoundError as error:
        raise SpecVizError(f"There is no file {name}; check the path or make it with `record`.") from error
    except TooLargeError as error:
        raise SpecVizError(f"{name} is too large to open ({error}); record fewer prompts into one file.") from error
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise SpecVizError(f"{name} is damaged or no recording set; record it again or choose another file.") from error


def read_shared(metadata: bytes, name: str) -> Shared:
    """What the metadata of the file called `name` says of all its recordings.

    Raises:
        SpecVizError: it was written by a newer version.
        ValueError: it is damaged.
    """
    values = parse_json(metadata, raw=("tokens",))
    version = of_shape(values, _Version).schema_version
    if version > SCHEMA_VERSION:
        raise SpecVizError(
            f"{name} was written by a newer SpecViz (schema {version}, this one reads {SCHEMA_VERSION}); "
            "update SpecViz."
        )
    shared = of_shape(values, Shared)
    of_shape(shared.settings, RunSettings)
    return shared


class _SealedError(Exception):
    """Something was read from a sealed file."""


class _Sealable:
    """An open file that reads only while it is not sealed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sealed = file, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, *size: int) -> bytes:
        if self.sealed:
            raise _SealedError
        return self._file.read(*size)


@contextmanager
def open_parquet(
    source: str | Path | bytes, columns: Collection[str], texts: Collection[str], most: int
) -> Iterator[pq.ParquetFile]:
    """A Parquet file of which `columns` unpack to at most `most` bytes, as its metadata counts them.

    Args:
        source: a path, or the content of a file.
        columns: those that will be read; the metadata of no other may be asked for (`_check_chunk`). All but `texts`
            have to be numbers; `texts` come dictionary-encoded, since a text that repeats would otherwise unpack to
            more than can be known before.

    Raises:
        TooLargeError: they unpack to more.
        OSError, pyarrow.ArrowException, ValueError: it cannot be read, or a column is of another type.
    """
    with BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as opened:
        opened.seek(-min(8, opened.seek(0, 2)), 2)
        footer = int.from_bytes(opened.read(4), "little")
        if footer > MOST_FOOTER and opened.read(4) == b"PAR1":
            raise TooLargeError(f"{footer >> 20} MB of metadata, at most {MOST_FOOTER >> 20}")
        content = _Sealable(opened)
        with pq.ParquetFile(content, read_dictionary=texts, page_checksum_verification=True) as file:
            leaves = [file.schema.column(number) for number in range(len(file.schema))]
            if len({leaf.path for leaf in leaves}) < len(leaves):
                raise ValueError("two columns have one name")
            wanted = {number: leaf for number, leaf in enumerate(leaves) if leaf.path.partition(".")[0] in columns}
            for leaf in wanted.values():
                if leaf.path not in texts and leaf.physical_type not in NUMBERS:
                    raise ValueError(f"{leaf.path} holds {leaf.physical_type}")
            size = 0
            for group in range(file.num_row_groups):
                for number, leaf in wanted.items():
                    _check_chunk(file, content, group, leaf.path)
                    chunk = file.metadata.row_group(group).column(number)
                    # Values that repeat take less in the file, compressed or not, than unpacked.
                    size += max(chunk.total_uncompressed_size, LARGEST_NUMBER * chunk.num_values)
            if size > most:
                raise TooLargeError(f"{size >> 20} MB unpacked, at most {most >> 20}")
            yield file


def _check_chunk(file: pq.ParquetFile, content: _Sealable, group: int, path: str) -> None:
    """Refuse the metadata of one column of a row group if it contradicts itself.

    When Python asks for such metadata, pyarrow ends the whole process. Its reader raises instead, so it is asked
    first, with the file sealed: it then reads the metadata and none of the values.

    Raises:
        OSError, pyarrow.ArrowException: it contradicts itself.
    """
    content.sealed = True
    try:
        next(file.iter_batches(1, [group], [path], use_threads=False), None)
    except _SealedError:
        pass
    finally:
        content.sealed = False


def _with_emitted(table: pa.Table) -> pa.Table:
    """Add what schema 1 lacked. Its recordings are greedy, so the emitted token is the target's most likely one."""
    name = "target_prob_of_emitted"
    probabilities = table["target_top_probs"].cast(ARRAY_TYPES[name]).combine_chunks()
    offsets = probabilities.offsets.to_numpy()
    first = pa.array(probabilities.values.to_numpy(zero_copy_only=False)[::TOP_TOKENS], ARRAY_TYPES[name].value_type)
    if probabilities.null_count or (offsets % TOP_TOKENS).any():
        raise ValueError("target_top_probs has no five values for each token")
    return table.append_column(name, pa.ListArray.from_arrays(pa.array(offsets // TOP_TOKENS), first))


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """The texts of a dictionary-encoded column; a text that repeats is in memory once."""
    texts = []
    for chunk in column.chunks:
        values = chunk.dictionary.cast(pa.string()).to_pylist()
        texts += [None if index is None else values[index] for index in chunk.indices.to_pylist()]
    return texts


def _recording_set(table: pa.Table, shared: Shared) -> RecordingSet:
    common = {name: getattr(shared, name) for name in ("pair", "settings", "max_draft", "eos_ids")}
    scalars = {
        name: _texts(table[name]) if name in TEXT_NAMES else table[name].cast(kind).to_pylist()
        for name, kind in SCALARS.items()
    }
    arrays = {name: table[name].cast(kind).combine_chunks() for name, kind in ARRAY_TYPES.items()}
    recordings = []
    for row in range(table.num_rows):
        values = {name: column[row].values.to_numpy(zero_copy_only=False) for name, column in arrays.items()}
        values |= {name: values[name].reshape(-1, TOP_TOKENS) for name in TOP_NAMES}
        values |= {name: column[row] for name, column in scalars.items()}
        recordings.append(Recording(**common, **values).validate())
    return RecordingSet(recordings, shared.cost_model, tokens_from_json(shared.tokens))
