"""The user's project folder: where what they recorded, uploaded and measured is kept between sessions."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

ENVIRONMENT_VARIABLE = "SPECVIZ_DATA"


def project_folder() -> Path:
    """The folder of the user's own files: `SPECVIZ_DATA` if set, else the user's data folder; it may not exist yet."""
    override = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return Path(override).expanduser().absolute() if override else platformdirs.user_data_path("specviz")
