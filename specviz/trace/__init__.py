"""The tables: what a trace and a recording are, and how they are kept in files. Imports no other room."""

from specviz.trace.builder import TraceBuilder, near_tie_epsilons
from specviz.trace.columns import ROUND_COLUMNS, STEP_COLUMNS, Column, columns_as_markdown
from specviz.trace.csv_files import read_trace_csv, write_trace_csv
from specviz.trace.parquet import read_recordings, write_recordings
from specviz.trace.recording import Recording, RecordingSet
from specviz.trace.token_bytes import tokens_from_json, tokens_to_json, used_tokens
from specviz.trace.trace import PairInfo, RunInfo, Trace, trace_differences

__all__ = [
    "ROUND_COLUMNS",
    "STEP_COLUMNS",
    "Column",
    "PairInfo",
    "Recording",
    "RecordingSet",
    "RunInfo",
    "Trace",
    "TraceBuilder",
    "columns_as_markdown",
    "near_tie_epsilons",
    "read_recordings",
    "read_trace_csv",
    "tokens_from_json",
    "tokens_to_json",
    "trace_differences",
    "used_tokens",
    "write_recordings",
    "write_trace_csv",
]
