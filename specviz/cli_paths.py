"""The files, folders and models that options of the command line name, checked before anything loads.

Each function here is the `type` of an argparse argument: it takes the text given and returns what the command works
with, or raises a SpecVizError. Nothing that lasts is created.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.limits import LONGEST_SHOWN

# Bytes of a file name. Most file systems take 255; temporary names and what is kept beside a file are longer than it.
LONGEST_NAME = 200
PARTS_SUFFIX = ".parts"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")


def input_file(text: str) -> Path:
    """An existing file that can be read."""
    path = _path(text, "file")
    if _kind(path) == "folder":
        raise SpecVizError(f"{_shown(text)} is a folder; name a file in it.")
    if _kind(path) == "nothing":
        raise SpecVizError(f"There is no file {_shown(text)}; check the path.")
    if not os.access(path, os.R_OK):
        raise SpecVizError(f"The file {_shown(text)} cannot be read; change its permissions or name another.")
    return path


def output_file(text: str) -> Path:
    """A file that can be written; it may exist, and its folder may be missing."""
    path = _path(text, "file")
    if _kind(path) == "folder" or text.endswith(os.sep):
        raise SpecVizError(f"{_shown(text)} is a folder; name the file to write in it.")
    if _kind(path) == "file" and not os.access(path, os.W_OK):
        raise SpecVizError(f"The file {_shown(text)} cannot be written; change its permissions or name another.")
    _refuse_unwritable_place(path)
    return path


def recording_file(text: str) -> Path:
    """A file for a recording set, beside which the finished prompts can be kept meanwhile."""
    path = output_file(text)
    _refuse_unusable_parts(path)
    return path


def output_folder(text: str) -> Path:
    """A folder that files can be written into; it may be missing."""
    path = _path(text, "folder")
    if _kind(path) == "file":
        raise SpecVizError(f"{_shown(text)} is a file; name a folder.")
    if not path.absolute().name:
        raise SpecVizError(f"{_shown(text)} is the top of the file system; name a folder below it.")
    _refuse_unwritable_place(path / "file")
    return path


def comparison_folder(text: str) -> Path:
    """A folder for a comparison, beside which the finished prompts can be kept meanwhile."""
    path = output_folder(text)
    _refuse_unusable_parts(path)
    return path


def parts_folder(out: Path) -> Path:
    """The folder beside an output that keeps what is finished until all of it is."""
    out = Path(os.path.abspath(out))
    return out.with_name(f"{out.name}{PARTS_SUFFIX}")


def model_name(text: str) -> str:
    """A built-in model, an existing folder or GGUF file, or what may be a hub id."""
    name = text.strip()
    path = _path(name, "model")
    if name.endswith(".gguf"):
        input_file(name)
    elif _kind(path) == "file":
        raise SpecVizError(f"{_shown(text)} is a file, but no .gguf file; name a model folder or a GGUF file.")
    elif _kind(path) == "nothing" and not _HUB_ID.fullmatch(name):
        raise SpecVizError(f"There is no model folder {_shown(text)}; check the path, or name a hub id.")
    return name


INPUTS = (input_file,)
OUTPUTS = (output_file, recording_file, output_folder, comparison_folder)


def _path(text: str, what: str) -> Path:
    """`text` as a path whose every name a file system can hold."""
    if not text.strip():
        raise SpecVizError(f"The name of a {what} is empty; name one.")
    if "\0" in text:
        raise SpecVizError(f"{_shown(text)} holds a null character, which no path can; name another {what}.")
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    for part in path.parts:
        if len(os.fsencode(part)) > LONGEST_NAME:
            raise SpecVizError(f"The name {_shown(part)} is longer than {LONGEST_NAME} bytes; name another {what}.")
    return path


def _kind(path: Path) -> str:
    """file, folder or nothing; what cannot be looked at is a SpecVizError."""
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "nothing"
    except OSError as error:
        reason = "its name is too long" if error.errno == errno.ENAMETOOLONG else error.strerror
        raise SpecVizError(f"{_shown(str(path))} cannot be used ({reason}); name another.") from error


def _refuse_unwritable_place(path: Path) -> None:
    """Refuse a path whose folder neither is one that can be written into, nor can be made."""
    for folder in path.absolute().parents:
        kind = _kind(folder)
        if kind == "file":
            raise SpecVizError(f"{_shown(str(folder))} is a file, so nothing can be written below it; name a folder.")
        if kind == "folder":
            if not (os.access(folder, os.W_OK | os.X_OK) and _holds_files(folder)):
                raise SpecVizError(f"The folder {_shown(str(folder))} cannot be written into; name another.")
            return


def _holds_files(folder: Path) -> bool:
    """Whether a file can really be made there: permissions do not tell of `/proc`, nor of a full disk."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _refuse_unusable_parts(out: Path) -> None:
    parts = parts_folder(out)
    if _kind(parts) == "file":
        raise SpecVizError(f"{_shown(str(parts))} is a file, but finished prompts are kept there; move it away.")
    _refuse_unwritable_place(parts / "file")


def _shown(text: str) -> str:
    """The end of a path is what tells it from others."""
    return repr(text) if len(text) <= 3 * LONGEST_SHOWN else repr(f"…{text[-3 * LONGEST_SHOWN :]}")
