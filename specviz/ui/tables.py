"""Tables of a page: each column with its definition, and a hint where a narrow screen cuts columns off."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from specviz.ui.glossary import Term, glossary, terms_in
from specviz.ui.terms import terms_html

# Pixels of a column as Streamlit lays it out: about what a character takes, what is around the text, and its limits.
CHARACTER, PADDING, NARROWEST, WIDEST = 5.2, 27, 50, 500


@dataclass(frozen=True)
class Column:
    """How a column is shown.

    `term`: a term or its key in the glossary; without it, the first term in the label. `format`: of numbers, as
    Streamlit takes it.
    """

    label: str
    term: str | Term = ""
    format: str | None = None

    @property
    def terms(self) -> list[Term]:
        """The term of the label, if it has one."""
        if isinstance(self.term, Term):
            return [self.term]
        return [glossary()[self.term]] if self.term else terms_in([self.label])[:1]


def show_table(frame: pd.DataFrame, columns: Mapping[str, Column], key: str, height: int | None = None) -> None:
    """Show these columns of a frame, the first of them in view however far the reader scrolls.

    Args:
        columns: name in the frame -> how it is shown.
        height: in pixels; by default all rows.
    """
    frame = frame[list(columns)]
    shown = {name: _config(column, pinned=name == next(iter(columns))) for name, column in columns.items()}
    height = height or 35 * (len(frame) + 1) + 3
    st.dataframe(frame, hide_index=True, height=height, column_config=shown, key=key)
    terms = dict.fromkeys(term for column in columns.values() for term in column.terms)
    needed = sum(_width(frame[name], column) for name, column in columns.items())
    st.html(
        f'<div class="under-table" style="--needed: {needed:.0f}px">'
        '<p class="scroll-hint">Scroll the table sideways for more columns →</p>'
        f"{terms_html(terms, key) if terms else ''}</div>"
    )


def _config(column: Column, pinned: bool):
    definition = column.terms[0].definition if column.terms else None
    kind = st.column_config.NumberColumn if column.format else st.column_config.Column
    formats = {"format": column.format} if column.format else {}
    return kind(column.label, help=definition, pinned=pinned, **formats)


def _width(values: pd.Series, column: Column) -> float:
    longest = max((len(_written(value)) for value in values), default=0)
    return min(WIDEST, max(NARROWEST, CHARACTER * max(longest, len(column.label)) + PADDING))


def _written(value) -> str:
    return f"{value:.3f} ×" if isinstance(value, float) else str(value)
