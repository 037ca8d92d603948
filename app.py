"""SpecViz: `streamlit run app.py`, or `streamlit run app.py -- --data DIR` to keep recordings elsewhere."""

import importlib
from pathlib import Path

import streamlit as st

import specviz.ui
from specviz.ui.opening import import_behind_placeholder

ROOT = Path(__file__).parent
FOLDER = Path(specviz.ui.__file__).parent
PAGES = {  # title: file
    "Explore": "pages/explore.py",
    "Thresholds": "pages/thresholds.py",
    "Precision": "pages/precision.py",
    "Policies": "pages/arena.py",
    "Tuning": "pages/tuning.py",
    "Calibration": "pages/calibration.py",
    "Context": "pages/context.py",
    "Fidelity": "pages/fidelity.py",
    "Race": "pages/race.py",
    "Learn": "pages/learn.py",
    "Data": "pages/data.py",
}

st.set_page_config("SpecViz", str(FOLDER / "icon.svg"), layout="wide")
st.html(FOLDER / "page.css")
st.html(FOLDER / "terms.css")
st.html(f"<script>{(FOLDER / 'dismiss.js').read_text('utf-8')}</script>", unsafe_allow_javascript=True)
page = st.navigation(
    [st.Page(file, title=title, default=title == "Explore") for title, file in PAGES.items()], position="top"
)
import_behind_placeholder(FOLDER / "visits.py", ROOT / PAGES[page.title])
visits = importlib.import_module("specviz.ui.visits")
visits.begin(page.title)
page.run()
visits.end()
