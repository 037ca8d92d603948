"""The list of what the project folder keeps: open, rename, save and delete."""

from datetime import date, datetime

import streamlit as st

from specviz.errors import SpecVizError
from specviz.trace import kept
from specviz.ui import query
from specviz.ui.choosing import PAGES
from specviz.ui.library import KEPT, set_as_parquet, unkept_sets
from specviz.ui.messages import problem

LISTED_AT_FIRST = 8
KINDS = {kept.RUN: "own prompt", kept.SET: "recorded set", kept.UPLOAD: "uploaded", kept.FILE: "file"}
PARQUET = "application/octet-stream"


def kept_list() -> None:
    """Every recording set of the project folder, the newest first, each with what can be done with it."""
    entries = list(kept.kept_sets().values())
    for name, offered in unkept_sets().items():
        st.warning("A recording is not kept: save it now, since it ends with this session.")
        st.text(f"{offered.title}, {_count(offered.prompts, 'prompt')}.")
        st.download_button(
            "Download it (Parquet)", lambda one=offered: set_as_parquet(one), "recordings.parquet", PARQUET, key=name
        )
    if not entries:
        st.info(
            "Nothing is kept yet. What you record on Explore or Thresholds, and files that you load below, are listed "
            "here and stay."
        )
        st.text(f"They are kept in {kept.recordings_folder()}.")
        return
    total = sum(entry.size for entry in entries)
    st.text(
        f"{_count(len(entries), 'file')}, {_size(total)}, in {kept.recordings_folder()}. "
        "Everybody who can open this app sees them."
    )
    key = "kept-all"
    shown = entries if st.session_state.get(key) else entries[:LISTED_AT_FIRST]
    for place, entry in enumerate(shown):
        _row(entry, place)
    if len(shown) < len(entries):
        st.button(f"Show all {len(entries)}", key="kept-more", on_click=lambda: st.session_state.update({key: True}))


def _row(entry: kept.KeptSet, place: int) -> None:
    with st.container(key=f"kept-row-{place}", horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(key=f"kept-about-{place}", gap=None, width="stretch"):
            st.text(entry.title)
            st.text(_about(entry))
        with st.container(key=f"kept-actions-{place}", horizontal=True, width="content", gap="small"):
            if entry.contents is not None:
                page = st.menu_button(
                    "Open in", [page for page in PAGES if page != "Data"], key=f"open-{entry.name}", type="tertiary"
                )
                if page:
                    st.switch_page(PAGES[page], query_params={"set": entry.name})
                if st.button("Rename", key=f"rename-{entry.name}", type="tertiary"):
                    _rename(entry)
            st.download_button(
                "Download",
                lambda: _content(entry),
                _file_name(entry),
                PARQUET,
                key=f"download-{entry.name}",
                type="tertiary",
                on_click="ignore",
            )
            if st.button("Delete", key=f"delete-{entry.name}", type="tertiary"):
                _delete(entry)


def _about(entry: kept.KeptSet) -> str:
    facts = [KINDS[entry.origin]]
    if entry.contents is None:
        facts = [entry.problem]
    else:
        contents = entry.contents
        facts += [_count(contents.prompts, "prompt"), _count(contents.tokens, "token")]
        facts += [f"{contents.target} with {contents.draft}", _precisions(contents)]
        facts += [] if contents.priced else ["no pass times"]
    return " · ".join([*facts, _date(entry.made), _size(entry.size)])


def _precisions(contents: kept.Contents) -> str:
    if contents.target_precision == contents.draft_precision:
        return contents.target_precision
    return f"{contents.target_precision}, draft {contents.draft_precision}"


@st.dialog("Rename")
def _rename(entry: kept.KeptSet) -> None:
    title = st.text_input("Title", entry.title, max_chars=kept.LONGEST_TITLE, key="new-title")
    if st.button("Save", type="primary", key="rename-save"):
        try:
            kept.rename(entry.name, title)
            st.rerun()
        except SpecVizError as error:
            problem("This cannot be renamed.", error)


@st.dialog("Delete for good?")
def _delete(entry: kept.KeptSet) -> None:
    st.text(entry.title)
    st.text(_about(entry))
    if st.button("Delete", type="primary", key="delete-confirmed"):
        try:
            kept.delete(entry.name)
        except SpecVizError as error:
            problem("This cannot be deleted.", error)
            return
        if query.set_from_link() == KEPT + entry.name:
            query.put_shown_into_link("")
        st.rerun()


def _content(entry: kept.KeptSet) -> bytes:
    try:
        return entry.path.read_bytes()
    except OSError as error:
        raise SpecVizError(kept.GONE) from error


def _file_name(entry: kept.KeptSet) -> str:
    """What a browser saves it as: letters and digits of the title, since browsers differ in what else they take."""
    if entry.contents is None:
        return "file"
    letters = "".join(character if character.isalnum() else "-" for character in entry.title)
    return f"{'-'.join(filter(None, letters.split('-')))[:60] or 'recordings'}.parquet"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _size(number: int) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 1e6 else f"{max(1, round(number / 1e3))} kB"


def _date(made: datetime) -> str:
    return f"{made:%H:%M}, today" if made.date() == date.today() else f"{made:%d %b %Y, %H:%M}".lstrip("0")
