"""Recordings to look at before any model is loaded.

An item is two files with one name: `NAME.parquet`, a recording set of one recording with its cost model, and
`NAME.json`, what a reader should know of it and the bytes of its tokens (a recording holds ids only).
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from specviz.errors import SpecVizError
from specviz.trace import (
    RecordingSet,
    read_recordings,
    tokens_from_json,
    tokens_to_json,
    used_tokens,
    write_recordings,
)
from specviz.trace.files import whole_file
from specviz.trace.json_reader import Name, read_json
from specviz.trace.token_bytes import TokenTable

FOLDER_VARIABLE = "SPECVIZ_GALLERY"  # another folder to show


@dataclass(frozen=True)
class ItemInfo:
    """What a reader should know of a gallery item."""

    title: Name
    kind: Name  # of text, such as "list" or "code"
    known: bool  # the draft foresees texts of this kind well (it was never trained on this prompt)
    note: Annotated[str, msgspec.Meta(max_length=10_000)] = ""  # what to look for
    order: int = 0  # items are listed by this, then by title


@dataclass(frozen=True)
class GalleryItem:
    name: str
    info: ItemInfo
    recordings: RecordingSet
    tokens: dict[int, bytes]


class _Notes(msgspec.Struct):
    """What an item's JSON file holds."""

    info: ItemInfo
    tokens: TokenTable


def _read_notes(path: Path) -> _Notes:
    return read_json(path.read_bytes(), _Notes, raw=("tokens",))


def gallery_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parent)


def list_items(folder: Path | None = None) -> dict[str, ItemInfo]:
    """Name to information of every item, in the order in which to show them. A damaged one is left out."""
    found = {}
    for path in (folder or gallery_folder()).glob("*.json"):
        try:
            found[path.stem] = _read_notes(path).info
        except (OSError, ValueError):
            continue
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[1].title)))


def load_item(name: str, folder: Path | None = None) -> GalleryItem:
    """Read one item.

    Raises:
        SpecVizError: there is no such item, or a file of it is damaged.
    """
    folder = folder or gallery_folder()
    if name not in [path.stem for path in folder.glob("*.json")]:
        raise SpecVizError(f"The gallery has no item {name[:40]!r}; choose one of those shown.")
    recordings = read_recordings(folder / f"{name}.parquet")
    try:
        notes = _read_notes(folder / f"{name}.json")
        return GalleryItem(name, notes.info, recordings, tokens_from_json(notes.tokens))
    except (OSError, ValueError) as error:
        raise SpecVizError(f"The gallery's file {name}.json is damaged; record the gallery again.") from error


def write_item(
    name: str,
    info: ItemInfo,
    recordings: RecordingSet,
    decode: Callable[[int], bytes],
    folder: Path | None = None,
) -> Sequence[Path]:
    """Write both files of an item and return their paths.

    Args:
        decode: a token id's bytes.
    """
    folder = folder or gallery_folder()
    values = {
        "info": asdict(info),
        "tokens": tokens_to_json({token: decode(token) for token in used_tokens(recordings.recordings)}),
    }
    paths = folder / f"{name}.parquet", folder / f"{name}.json"
    write_recordings(recordings, paths[0])
    with whole_file(paths[1]) as temporary:
        temporary.write_text(json.dumps(values) + "\n", "utf-8")
    return paths
