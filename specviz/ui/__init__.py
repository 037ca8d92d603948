"""The app's pieces: the live panel, what it is given, the gallery, and the queue before the engine."""

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

if PagesManager.uses_pages_directory:
    # Because there is a folder `pages`, a server runs a page's own file, without app.py and its navigation, when a link
    # to that page is the first thing it is asked for. It stops doing so once app.py has run; this makes it so before.
    PagesManager.uses_pages_directory = False
    st.rerun()
