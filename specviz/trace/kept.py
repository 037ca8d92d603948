"""Recording sets kept in the user's project folder, so that they outlive the session that made them.

The folder belongs to whoever runs the server: everybody who can open the app sees, renames and deletes what is in it.
A set is two files in `recordings/`: `NAME.parquet`, the set itself, and `NAME.json`, what the app adds to it: title,
origin, date, and where the models of its own recordings came from. Names are made here and never come from a title, a
prompt or an uploaded file's name. Nothing is locked: every file is written whole under a name that is used once, so
sessions and servers can share a folder. A set copied into the folder by hand, without the second file, is listed too.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.trace.files import whole_file
from specviz.trace.json_reader import read_json
from specviz.trace.limits import MOST_UNPACKED
from specviz.trace.parquet import METADATA_KEY, open_parquet, read_recordings, read_shared, write_recordings
from specviz.trace.project import ENVIRONMENT_VARIABLE, project_folder
from specviz.trace.recording import RecordingSet

RUN, SET, UPLOAD, FILE = "run", "set", "upload", "file"
MOST_KEPT_MB = 4096  # of all sets together
LONGEST_TITLE = 120  # characters
SUFFIX, NOTES_SUFFIX = ".parquet", ".json"
UNFINISHED_SECONDS = 24 * 3600  # a temporary file older than this was left by a process that was killed
GONE = "This recording set is no longer in the project folder; choose another one."
NOT_A_SET = "This file is no recording set or is damaged; delete it, or move it out of the folder."


@dataclass(frozen=True)
class Contents:
    """What a set's own file says of it, without its recordings."""

    prompts: int
    tokens: int  # emitted, of all prompts
    priced: bool
    target: str
    draft: str
    target_precision: str
    draft_precision: str


@dataclass(frozen=True)
class KeptSet:
    """One file of the project's recordings, as it is listed."""

    name: str  # of the file, its ending included
    path: Path
    title: str
    origin: str  # RUN, SET, UPLOAD, or FILE if nothing is known of it
    made: datetime  # in local time
    size: int  # bytes
    version: int  # changes when the recordings do
    contents: Contents | None  # None if the file cannot be used, which `problem` explains
    sources: Mapping[str, str] | None = None  # where the models came from; known of recordings that this app made
    problem: str = ""


def recordings_folder() -> Path:
    return project_folder() / "recordings"


def name_of_run(run: str) -> str:
    """The name of what the run with this id, made of letters, digits, hyphens and underscores, recorded."""
    return f"run-{run}{SUFFIX}"


def new_name() -> str:
    """A name that no other set has."""
    return f"{secrets.token_hex(8)}{SUFFIX}"


def name_of_content(content: bytes) -> str:
    """The name of an uploaded file: the same for the same bytes, so that it is kept once."""
    return f"upload-{hashlib.sha256(content).hexdigest()[:24]}{SUFFIX}"


def keep(
    recording_set: RecordingSet, name: str, *, title: str, origin: str, sources: Mapping[str, str] | None = None
) -> KeptSet:
    """Write a set into the project folder under a name made by this module, in place of an earlier one of that name.

    Args:
        sources: where the models came from, as the user named them here; never what a file says.

    Raises:
        SpecVizError: the folder cannot be written, its disk is full, or it holds as much as it may.
    """
    path = _path(name)
    _remove_unfinished(path.parent)
    kept_bytes = sum(one.size for one in kept_sets().values())
    if kept_bytes > MOST_KEPT_MB * 1e6:
        raise SpecVizError(
            f"The project folder {path.parent} holds {kept_bytes / 1e6:,.0f} MB of recordings, more than "
            f"{MOST_KEPT_MB:,} MB; delete some on the Data page."
        )
    notes = {"title": _one_line(title), "origin": origin, "made": datetime.now(UTC).isoformat(timespec="milliseconds")}
    if sources:
        notes["sources"] = dict(sources)
    try:
        write_recordings(recording_set, path)
        _write_notes(path, notes | {key: text for key, text in _notes(path).items() if key in ("title", "made")})
        return _listed(path)
    except FileNotFoundError as error:
        raise SpecVizError(GONE) from error
    except SpecVizError as error:
        cause = error.__cause__
        reason = getattr(cause, "strerror", None) or cause or error
        raise SpecVizError(
            f"The recording cannot be kept in {path.parent} ({reason}); free some space there or name another folder "
            f"with {ENVIRONMENT_VARIABLE}."
        ) from error


def kept_sets() -> dict[str, KeptSet]:
    """Every set of the project folder by name, the newest first; empty if the folder is missing or cannot be read."""
    try:
        paths = [path for path in recordings_folder().iterdir() if not path.name.startswith(".")]
    except OSError:
        return {}
    names = {path.name for path in paths}
    found = []
    for path in paths:
        if path.suffix == NOTES_SUFFIX and _is_notes(path, names):
            continue
        try:
            found.append(_listed(path))
        except FileNotFoundError:  # deleted meanwhile
            continue
    return {one.name: one for one in sorted(found, key=lambda one: (-one.made.timestamp(), one.name))}


def read_kept(name: str) -> RecordingSet:
    """The recordings of a set.

    Raises:
        SpecVizError: it was deleted meanwhile, or its file is damaged.
    """
    path = _existing(name)
    return read_recordings(path, "The file of this set")


def rename(name: str, title: str) -> None:
    """Give a set another title; its files keep their names.

    Raises:
        SpecVizError: it was deleted meanwhile, the title is empty, or the folder cannot be written.
    """
    path, title = _existing(name), _one_line(title)
    if not title:
        raise SpecVizError("The title is empty; write what the set should be called.")
    before = _listed(path)
    notes = {**_notes(path), "title": title, "origin": before.origin, "made": before.made.isoformat()}
    _write_notes(path, notes)


def delete(name: str) -> None:
    """Delete a file of the project's recordings for good; nothing happens if it is gone already.

    Raises:
        SpecVizError: the file cannot be deleted.
    """
    path = _path(name)
    try:
        if path.suffix == SUFFIX:
            path.with_suffix(NOTES_SUFFIX).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SpecVizError(
            f"{path} cannot be deleted ({error.strerror}); check that you may write to that folder."
        ) from error


def _path(name: str) -> Path:
    if not re.fullmatch(r"[^/\\\0.][^/\\\0]{0,249}", name):
        raise SpecVizError("There is no such recording set; choose one of those that are listed.")
    return recordings_folder() / name


def _existing(name: str) -> Path:
    path = _path(name)
    if not path.exists():
        raise SpecVizError(GONE)
    return path


def _is_notes(path: Path, names: set[str]) -> bool:
    """Whether a JSON file is the app's own note on a set, or what is left of one that was just deleted."""
    return path.with_suffix(SUFFIX).name in names or "made" in _notes(path)


def _listed(path: Path) -> KeptSet:
    """
    Raises:
        FileNotFoundError: the file is gone.
    """
    about = path.stat()
    contents, problem = None, NOT_A_SET
    if path.suffix == SUFFIX and stat.S_ISREG(about.st_mode):
        contents = _contents(str(path), about.st_mtime_ns, about.st_size)
    notes = _notes(path) if path.suffix == SUFFIX else {}
    title, origin, sources = notes.get("title"), notes.get("origin"), notes.get("sources")
    return KeptSet(
        name=path.name,
        path=path,
        title=_one_line(title) if isinstance(title, str) and title.strip() else _one_line(path.stem),
        origin=origin if origin in (RUN, SET, UPLOAD) else FILE,
        made=_date(notes.get("made"), about.st_mtime),
        size=about.st_size,
        version=about.st_mtime_ns,
        contents=contents,
        sources=sources if origin in (RUN, SET) and isinstance(sources, dict) else None,
        problem="" if contents else problem,
    )


@lru_cache(4096)
def _contents(path: str, changed: int, size: int) -> Contents | None:
    """From the end of the file alone, read once for each version of it."""
    try:
        with open_parquet(path, ("output_ids",), (), MOST_UNPACKED) as file:
            shared = read_shared(file.schema_arrow.metadata[METADATA_KEY], path)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            paths = [file.schema.column(number).path for number in range(len(file.schema))]
            place = next(number for number, path in enumerate(paths) if path.startswith("output_ids."))
            tokens = sum(group.column(place).num_values for group in groups)
            prompts = sum(group.num_rows for group in groups)
        return Contents(
            prompts=prompts,
            tokens=tokens,
            priced=bool(shared.cost_model),
            target=_one_line(shared.pair.target),
            draft=_one_line(shared.pair.draft),
            target_precision=_one_line(shared.pair.target_precision),
            draft_precision=_one_line(shared.pair.draft_precision),
        )
    except Exception:  # whatever a foreign file makes the reader raise: it is listed as one that cannot be used
        return None


def _notes(path: Path) -> dict:
    """What the app added to a set; empty if there is nothing that can be read."""
    notes = path.with_suffix(NOTES_SUFFIX)
    try:
        about = notes.stat()
        return dict(_read_notes(str(notes), about.st_mtime_ns, about.st_size))
    except OSError:
        return {}


@lru_cache(4096)
def _read_notes(path: str, changed: int, size: int) -> dict:
    try:
        return read_json(Path(path).read_bytes(), dict)
    except (OSError, ValueError):
        return {}


def _write_notes(path: Path, notes: Mapping) -> None:
    with whole_file(path.with_suffix(NOTES_SUFFIX)) as temporary:
        temporary.write_text(json.dumps(notes) + "\n", "utf-8")


def _date(text: object, changed: float) -> datetime:
    """When a set was made; if that is not known, when its file was written."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (TypeError, ValueError, OverflowError):
        return datetime.fromtimestamp(changed).astimezone()


def _one_line(text: str) -> str:
    """As it can be listed: without line breaks and characters that change how others are shown."""
    return "".join(character for character in " ".join(str(text).split()) if character.isprintable())[:LONGEST_TITLE]


def _remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of processes that were killed."""
    for path in folder.glob(".*.part"):
        try:
            if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS:
                path.unlink()
        except OSError:
            continue
