"""The user's project folder: where what they recorded, uploaded and measured is kept between sessions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs

ENVIRONMENT_VARIABLE = "SPECVIZ_DATA"


def project_folder() -> Path:
    """The folder of the user's own files: `SPECVIZ_DATA` if set, else the user's data folder; it may not exist yet."""
    override = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return Path(override).expanduser().absolute() if override else platformdirs.user_data_path("specviz")


def choose_project_folder(arguments: Sequence[str]) -> None:
    """Take the project folder from `--data DIR` of the app's own arguments, for this whole process; others are left."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", nargs="?")
    folder = parser.parse_known_args(arguments)[0].data
    if folder:
        os.environ[ENVIRONMENT_VARIABLE] = folder
