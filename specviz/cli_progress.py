"""Progress of long commands on standard error: a bar where it is a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

errors = Console(stderr=True, highlight=False)
SECONDS_BETWEEN_LINES = 10.0  # where there is no terminal; a command that takes less prints none

Report = Callable[..., None]  # (stage, done, total); the numbers are None where nothing can be counted


@contextmanager
def stage_progress(between: float = SECONDS_BETWEEN_LINES) -> Iterator[Report]:
    """A function that takes (stage, done, total) reports and shows the latest."""
    with _bar() if errors.is_terminal else _lines(between) as report:
        yield report


@contextmanager
def _bar() -> Iterator[Report]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(stage: str, done: float | None = None, total: float | None = None) -> None:
            bar.update(task, description=stage, completed=done or 0, total=total)

        yield report


@contextmanager
def _lines(between: float) -> Iterator[Report]:
    """A line every `between` seconds, also while nothing new is reported: silence would look like a hang."""
    began, ended, latest = time.monotonic(), threading.Event(), ["Working"]

    def report(stage: str, done: float | None = None, total: float | None = None) -> None:
        latest[0] = f"{stage}, {done / total:.0%}" if done and total else stage

    def print_lines() -> None:
        while not ended.wait(between):
            errors.print(f"{latest[0]} ({time.monotonic() - began:.0f} s)", markup=False, soft_wrap=True)

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield report
    finally:
        ended.set()
        printer.join()
