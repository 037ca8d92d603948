"""The recordings that the pages can show: those of the gallery, shared by all sessions."""

import streamlit as st

from specviz.analysis import CostModel
from specviz.ui.gallery import gallery_folder, load_item
from specviz.ui.shown import Shown


def gallery_recording(name: str) -> Shown:
    """A gallery item, read once per server and again when its file changes.

    Raises:
        SpecVizError: see `load_item`.
    """
    path = gallery_folder() / f"{name}.parquet"
    return _read(name, str(path), path.stat().st_mtime_ns if path.exists() else 0)


@st.cache_resource(max_entries=64, show_spinner=False)
def _read(name: str, path: str, changed: int) -> Shown:
    item = load_item(name)
    cost = item.recordings.cost_model
    return Shown(
        name=f"gallery:{name}:{changed}",
        title=item.info.title,
        recording=item.recordings.recordings[0],
        cost=CostModel.from_json(cost) if cost else None,
        texts=item.texts,
    )
