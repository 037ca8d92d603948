"""Data: recordings and traces in and out."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.trace import ROUND_COLUMNS, STEP_COLUMNS
from specviz.ui import query
from specviz.ui.advice import choose_on_fail
from specviz.ui.charts import IMAGE_FORMAT, IMAGE_FORMATS
from specviz.ui.choosing import choose_member, choose_set, links_to
from specviz.ui.glossary import Term, define
from specviz.ui.kept_list import kept_list
from specviz.ui.library import (
    MOST_UPLOAD_MB,
    TRACE_FILES,
    add_upload,
    read_trace_upload,
    set_as_parquet,
    sets_on_offer,
    trace_as_zip,
)
from specviz.ui.messages import problem
from specviz.ui.report import html_report
from specviz.ui.sweeps import sweep_form
from specviz.ui.tables import Column, show_table
from specviz.ui.token_texts import display_from

TABLE_HEIGHT = 420


def tables(trace, texts) -> None:
    """Rounds and steps, to sort and to filter."""
    rounds, steps = trace.to_frames()
    steps.insert(5, "text", [texts(token) for token in steps["token"].tolist()])
    which = st.segmented_control("Table", ["Rounds", "Steps"], default="Steps", required=True, key="table")
    if which == "Steps":
        kept = st.pills(
            "Only these statuses (all if none is chosen)",
            sorted(set(steps["status"])),
            selection_mode="multi",
            help=define("status"),
            key="statuses",
        )
        frame, columns = steps[steps["status"].isin(kept)] if kept else steps, STEP_COLUMNS
    else:
        kept = st.pills(
            "Only rounds that stopped for (all if none is chosen)",
            sorted(set(rounds["stop_reason"])),
            selection_mode="multi",
            help=define("stop_reason"),
            key="reasons",
        )
        frame, columns = rounds[rounds["stop_reason"].isin(kept)] if kept else rounds, ROUND_COLUMNS
    show_table(frame, described(columns, frame), "frame", TABLE_HEIGHT)
    st.caption(f"{len(frame)} rows. Click a column's head to sort.")


def described(columns, frame) -> dict[str, Column]:
    """The columns of a table of a trace, with their meanings."""
    meanings = {column.name: column.meaning for column in columns} | {"text": "the token's text"}
    return {name: Column(name, Term(name, (name,), meanings[name])) for name in frame}


def image_format() -> None:
    """Ask for the format of single figures."""
    chosen = st.segmented_control(
        "Single figures are saved by the camera above each chart, as",
        IMAGE_FORMATS,
        default=st.session_state.get(IMAGE_FORMAT, IMAGE_FORMATS[0]),
        required=True,
        key="image-choice",
    )
    st.session_state[IMAGE_FORMAT] = chosen


def load_form() -> None:
    """Load a recording set from a file; it is kept like those that are recorded here."""
    upload = st.file_uploader(
        f"A Parquet file made by `record` or downloaded here, at most {MOST_UPLOAD_MB} MB",
        type="parquet",
        key="upload-set",
        max_upload_size=MOST_UPLOAD_MB,
    )
    if upload is None:
        return
    if st.session_state.get("taken-upload", ("",))[0] != upload.file_id:
        try:
            name, not_kept = add_upload(upload.name, upload.getvalue())
        except SpecVizError as error:
            problem("This file cannot be used.", error)
            return
        st.session_state["taken-upload"] = upload.file_id, name, not_kept
        st.session_state["data-set"] = name
        st.rerun()
    _, name, not_kept = st.session_state["taken-upload"]
    if not_kept:
        st.warning("Loaded for this session only: it cannot be kept.")
        st.text(not_kept)
    elif name not in sets_on_offer():
        return  # deleted since
    else:
        st.success("Loaded and kept. Open it in:")
    links_to(name, ("Explore", "Thresholds", "Tuning", "Policies"))


def one_setting() -> None:
    """Every step and round of one recording at one setting."""
    chosen = choose_set("data-set", priced=False, prefers=1)
    if chosen is None:
        return
    shown = choose_member(chosen, "data-member")
    left, right = st.columns(2, gap="large")
    tau = left.slider(
        "Threshold τ", 0.0, 1.0, query.tau_from_link(), 0.001, format="%.3f", help=define("threshold"), key="data-tau"
    )
    max_draft = right.slider(
        "Draft length γ",
        1,
        shown.longest_draft,
        query.max_draft_from_link(shown.longest_draft),
        help=define("draft_length"),
        key="data-gamma",
    )
    on_fail = choose_on_fail("data-on-fail")
    query.put_into_link(tau=tau, gamma=max_draft)
    st.caption(shown.about())
    tables(shown.trace(tau, max_draft, on_fail), display_from(shown.tokens))
    buttons = st.columns(3)
    buttons[0].download_button(
        "This trace as CSV (zip)",
        lambda: trace_as_zip(shown, tau, max_draft, on_fail),
        "trace.zip",
        "application/zip",
        width="stretch",
        on_click="ignore",
    )
    buttons[1].download_button(
        "This recording set (Parquet)",
        lambda: set_as_parquet(chosen),
        "recordings.parquet",
        "application/octet-stream",
        width="stretch",
        on_click="ignore",
    )
    buttons[2].download_button(
        "Report of this view (HTML, works offline)",
        lambda: html_report(shown, tau, max_draft, on_fail),
        "specviz-report.html",
        "text/html",
        width="stretch",
        on_click="ignore",
    )
    image_format()


st.title("What you recorded, and what you bring")
st.caption(
    "Recordings stay until you delete them, and every page offers them. Below the list: load a file, record a set, see "
    "every step of one setting, and look at a trace made elsewhere."
)
st.subheader("Your recordings")
kept_list()

left, right = st.columns(2, gap="large")
with left:
    st.subheader("Load a recording set")
    load_form()
with right:
    st.subheader("Record a set of prompts")
    with st.expander("Choose prompts and a pair", expanded=query.sweep_from_link() is not None):
        try:
            sweep_form()
        except SpecVizError as error:
            problem("This set cannot be recorded.", error)

st.subheader("Every step of one setting")
try:
    one_setting()
except SpecVizError as error:
    problem("This setting cannot be replayed.", error)

st.subheader("Look at a trace")
files = st.file_uploader(
    f"A zip file with {', '.join(TRACE_FILES)}, or the three files, at most {MOST_UPLOAD_MB} MB each",
    type=["zip", "csv", "json"],
    accept_multiple_files=True,
    key="upload-trace",
    max_upload_size=MOST_UPLOAD_MB,
)
if files:
    try:
        trace, tokens = read_trace_upload({file.name: file.getvalue() for file in files})
        run = trace.run
        st.text(
            f"A {run.origin} trace: {len(run.output_ids)} tokens in {len(trace.rounds['round'])} rounds, "
            f"{run.pair.target} with {run.pair.draft} on {run.pair.device}."
        )
        rounds, steps = trace.to_frames()
        texts = display_from(tokens)
        steps.insert(5, "text", [texts(token) for token in steps["token"].tolist()])
        show_table(rounds, described(ROUND_COLUMNS, rounds), "uploaded-rounds", 240)
        show_table(steps, described(STEP_COLUMNS, steps), "uploaded-steps", TABLE_HEIGHT)
    except SpecVizError as error:
        problem("This is no trace that can be shown.", error)
