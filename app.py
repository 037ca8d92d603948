"""SpecViz: `streamlit run app.py`, or `streamlit run app.py -- --data DIR` to keep recordings elsewhere."""

import sys
from pathlib import Path

import streamlit as st

import specviz.ui
from specviz.trace.project import choose_project_folder
from specviz.ui import query
from specviz.ui.garbage import leave_out_what_lives

FOLDER = Path(specviz.ui.__file__).parent


@st.cache_resource(show_spinner=False)
def shorten_collections() -> None:
    """Once for all sessions, when the first page has imported what it needs."""
    leave_out_what_lives()


choose_project_folder(sys.argv[1:])
st.set_page_config("SpecViz", str(FOLDER / "icon.svg"), layout="wide")
st.html(FOLDER / "page.css")
page = st.navigation(
    [
        st.Page("pages/explore.py", title="Explore", default=True),
        st.Page("pages/thresholds.py", title="Thresholds"),
        st.Page("pages/precision.py", title="Precision"),
        st.Page("pages/arena.py", title="Policies"),
        st.Page("pages/tuning.py", title="Tuning"),
        st.Page("pages/calibration.py", title="Calibration"),
        st.Page("pages/context.py", title="Context"),
        st.Page("pages/fidelity.py", title="Fidelity"),
        st.Page("pages/race.py", title="Race"),
        st.Page("pages/learn.py", title="Learn"),
        st.Page("pages/data.py", title="Data"),
    ],
    position="top",
)
if query.new_page(page.title):
    query.carry_over()
    for key in ("first-tau", "first-precision-tau"):
        st.session_state.pop(key, None)  # the live panel begins with the threshold of the link
page.run()
shorten_collections()
