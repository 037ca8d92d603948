"""Terms of the glossary where they are shown: a line of words, each with its definition on hover, focus and touch."""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

import streamlit as st

from specviz.ui.glossary import Term, glossary

FOLDER = Path(__file__).parent
TERM_CSS = (FOLDER / "terms.css").read_text("utf-8")


def term_script() -> str:
    """The glossary and the function `term`, for the scripts of a live component."""
    terms = {key: {"name": term.name, "text": term.text, "formula": term.formula} for key, term in glossary().items()}
    return f"const GLOSSARY = {json.dumps(terms, ensure_ascii=False)};\n{(FOLDER / 'terms.js').read_text('utf-8')}"


def term_html(term: Term, place: str) -> str:
    """One term as HTML: text that can have the focus, described by a definition that the style sheet shows then.

    Args:
        place: names where on the page it is, for the id of the definition.
    """
    name = f"definition-{place}-{term.key}"
    code = f"<code>{escape(term.formula)}</code>" if term.formula else ""
    return (
        f'<span class="term" tabindex="0" aria-describedby="{escape(name)}">{escape(term.name)}'
        f'<span class="definition" role="tooltip" id="{escape(name)}">{escape(term.text)}{code}</span></span>'
    )


def terms_html(terms: Iterable[Term], place: str) -> str:
    """A line of terms as HTML."""
    items = "".join(f"<li>{term_html(term, place)}</li>" for term in terms)
    return f'<ul class="terms" aria-label="What the words mean">{items}</ul>'


def term_line(keys: Iterable[str], place: str) -> None:
    """Show a line of terms of the glossary, if there are any."""
    terms = [glossary()[key] for key in keys]
    if terms:
        st.html(terms_html(terms, place))
