"""What happens before and after each run of a page. Imported by `app.py` when its frame is on screen."""

import sys

import streamlit as st

from specviz.trace.project import choose_project_folder
from specviz.ui import query
from specviz.ui.garbage import leave_out_what_lives

FIRST_THRESHOLDS = ("first-tau", "first-precision-tau")  # keys of the session: what a live panel began with


def begin(title: str) -> None:
    """Before the page of this title runs."""
    choose_project_folder(sys.argv[1:])
    if query.new_page(title):
        query.carry_over()
        for key in FIRST_THRESHOLDS:
            st.session_state.pop(key, None)  # the live panel begins with the threshold of the link


@st.cache_resource(show_spinner=False)
def end() -> None:
    """After the first page of all sessions has run: it has imported what it needs."""
    leave_out_what_lives()
