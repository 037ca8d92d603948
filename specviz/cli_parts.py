"""What a command has finished, kept beside its output until all of it is: by one process, of one kind of settings."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from specviz.cli_paths import parts_folder
from specviz.errors import SpecVizError
from specviz.trace.files import whole_file

LOCK = "writer.lock"
SETTINGS = "settings.json"


@contextmanager
def kept_parts(options: argparse.Namespace, leave_free: Sequence[str]) -> Iterator[Path]:
    """The folder that keeps what is finished of `options.out`, for the block that writes that output.

    It is removed when the block ends well, or when nothing in it is finished; otherwise the same command continues with
    it. Other settings are refused: the end of that run would remove what is finished of the earlier one.

    Args:
        leave_free: the options that may differ between a command and its continuation.

    Raises:
        SpecVizError: another process writes this output, or the folder keeps what other settings made.
    """
    parts = parts_folder(options.out)
    with _only_writer(parts):
        _check_settings(parts, options, leave_free)
        try:
            yield parts
        except BaseException:
            if not any(parts.glob("*.parquet")):
                shutil.rmtree(parts, ignore_errors=True)
            raise
        shutil.rmtree(parts, ignore_errors=True)


@contextmanager
def _only_writer(parts: Path) -> Iterator[None]:
    parts.mkdir(parents=True, exist_ok=True)
    lock = FileLock(parts / LOCK)
    try:
        lock.acquire(timeout=0)
    except (Timeout, FileNotFoundError) as error:  # the latter: it removes the folder at this moment
        raise SpecVizError(
            f"Another process is recording into {parts}; wait until it has finished, or choose another output."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _check_settings(parts: Path, options: argparse.Namespace, leave_free: Sequence[str]) -> None:
    """Note the settings of what will be kept, or refuse those that differ from the note."""
    ignored = {"command", "out", *leave_free}
    mine = {name: str(value) for name, value in sorted(vars(options).items()) if name not in ignored}
    note = parts / SETTINGS
    try:
        earlier = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        earlier = None
    if isinstance(earlier, dict) and any(parts.glob("*.parquet")):
        other = [name.replace("_", "-") for name in mine if earlier.get(name) != mine[name]]
        if other:
            raise SpecVizError(
                f"{parts} keeps what an interrupted command with other settings finished ({', '.join(other)}): repeat "
                "that command, choose another output, or remove this folder."
            )
    with whole_file(note) as temporary:
        temporary.write_text(json.dumps(mine, indent=1), "utf-8")
