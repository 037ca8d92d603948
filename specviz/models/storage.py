"""The user's cache: where it is, and how files get into it so that an interruption never leaves half of one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from specviz.errors import SpecVizError

Progress = Callable[[str, float | None, float | None], None]
"""Called with a stage (words for a person), bytes done and bytes in all; the numbers are None when unknown.

It may raise to stop the work: whatever was begun is cleaned up and the exception passes through. Downloads from the
model hub call it from their own threads."""

TEMPORARY_PREFIX = ".unfinished-"


def no_progress(stage: str, done: float | None, total: float | None) -> None:
    """The progress callback of callers who do not watch."""


def cache_folder() -> Path:
    """The folder that holds what SpecViz fetched or converted: `SPECVIZ_CACHE` if set, else the user's cache."""
    override = os.environ.get("SPECVIZ_CACHE", "").strip()
    return Path(override).expanduser().absolute() if override else platformdirs.user_cache_path("specviz")


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that the disk (or the user's quota) is full."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError) and current.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # safetensors and subprocesses report the system's error only as text.
        if "no space left on device" in str(current).lower() or "os error 28" in str(current).lower():
            return True
        current = current.__cause__ or current.__context__
    return False


def disk_full_sentence(folder: Path, needed: int) -> str:
    """The sentence for a full disk, naming the folder, the bytes needed and the way out."""
    return (
        f"The disk is full: preparing the model needs about {needed / 1e6:,.0f} MB free in {folder}; "
        "free some space there, or set SPECVIZ_CACHE to a folder on a larger disk."
    )


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_to_disk(path: Path) -> None:
    """Make sure that a file's contents survive a power cut before its name is changed."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A fresh folder below `parent`, gone afterwards unless it was renamed meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_unfinished(parent: Path) -> None:
    """Remove what killed processes left behind; only for the holder of the lock on `parent`."""
    for folder in parent.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def only_one_process(lock_file: Path, progress: Progress, waiting: str) -> Iterator[None]:
    """Hold the lock; while another process has it, report the stage `waiting` about twice a second."""
    lock = FileLock(lock_file)
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            progress(waiting, None, None)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writable_cache(needed: int) -> Iterator[Path]:
    """The cache folder, made if missing; a full disk or a forbidden folder becomes a sentence.

    needed: bytes that the work inside will write, for the sentence and for a check beforehand.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < needed:
            raise SpecVizError(disk_full_sentence(folder, needed))
        yield folder
    except SpecVizError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise SpecVizError(disk_full_sentence(folder, needed)) from error
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError) or (
            isinstance(error, OSError) and error.errno == errno.EROFS
        ):
            raise SpecVizError(
                f"The cache folder {folder} cannot be written ({error.strerror}); "
                "set SPECVIZ_CACHE to a folder that you may write to."
            ) from error
        raise
