"""Sentences for the reader when something cannot be done."""

import streamlit as st

from specviz.errors import SpecVizError


def problem(title: str, error: SpecVizError) -> None:
    """Say that something failed, and its sentence as plain text: it may quote a file, a model or a prompt."""
    st.error(title)
    st.text(str(error))
