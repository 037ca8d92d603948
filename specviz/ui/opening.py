"""What a reader sees first: the frame of the app and a placeholder, while the libraries of the page are imported.

Before the frame is sent, `app.py` imports Streamlit and this module alone: pandas, plotly and scikit-learn take
seconds to import from a cold disk.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import streamlit as st

PLACEHOLDER = """<div class="opening" role="status" aria-label="The page is loading">
<i class="title"></i><i></i><i class="short"></i><i class="block"></i></div>"""


def import_behind_placeholder(*sources: Path) -> None:
    """Import what these Python files import at their top; a placeholder is on screen until it is in memory."""
    place = st.empty()  # in every run, so that what comes after it keeps its place and its state
    missing = [wanted for source in sources for wanted in _imported(source) if not _is_in_memory(*wanted)]
    if not missing:
        return
    place.html(PLACEHOLDER)
    for module, name in missing:
        package = importlib.import_module(module)
        if name and not hasattr(package, name):
            importlib.import_module(f"{module}.{name}")
    place.empty()


def _imported(source: Path) -> Iterator[tuple[str, str]]:
    """Each import at the top of a file: the module, and the name that is taken from it, or ""."""
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def _is_in_memory(module: str, name: str) -> bool:
    return module in sys.modules and (not name or hasattr(sys.modules[module], name))
