"""Progress of long commands on standard error: a bar where it is a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

errors = Console(stderr=True, highlight=False)
SECONDS_OF_STAGE = 1.0  # that a stage takes at least to have a line of its own
SECONDS_BETWEEN_LINES = 10.0  # of one stage

Report = Callable[..., None]  # (stage, done, total, note); the numbers are None where nothing can be counted


@contextmanager
def command_progress(command: str) -> Iterator[None]:
    """Lines for a whole command, also in what reports no stage; where there is a terminal, nothing."""
    if errors.is_terminal:
        yield
    else:
        with _lines(command):
            yield


@contextmanager
def stage_progress() -> Iterator[Report]:
    """A function that takes (stage, done, total, note) reports and shows the latest."""
    with _bar() if errors.is_terminal else _lines("Working") as report:
        yield report


@contextmanager
def _bar() -> Iterator[Report]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(stage: str, done: float | None = None, total: float | None = None, note: str = "") -> None:
            bar.update(task, description=f"{stage} {note}".strip(), completed=done or 0, total=total)

        yield report


class _Lines:
    """Prints a line for every stage that lasts, and again while it lasts: silence would look like a hang."""

    def __init__(self, stage: str) -> None:
        self._began = self._printed_at = time.monotonic()
        self._known = {stage}  # those that take turns have a line of their own only once
        self._ended = threading.Event()
        self.state = (stage, "")

    def run(self) -> None:
        while not self._ended.wait(SECONDS_OF_STAGE):
            stage, details = self.state
            now = time.monotonic()
            if stage not in self._known or now - self._printed_at >= SECONDS_BETWEEN_LINES:
                errors.print(f"{stage}{details} ({now - self._began:.0f} s)", markup=False, soft_wrap=True)
                self._printed_at = now
                self._known.add(stage)

    def end(self) -> None:
        self._ended.set()


_running: _Lines | None = None


@contextmanager
def _lines(stage: str) -> Iterator[Report]:
    """The lines of the command that runs, or of this block if none does."""
    global _running
    outer, lines = _running, _running or _Lines(stage)
    before = lines.state

    def report(stage: str, done: float | None = None, total: float | None = None, note: str = "") -> None:
        share = f", {done / total:.0%}" if done is not None and total else ""
        lines.state = (stage, f"{share}, {note}" if note else share)

    if outer is None:
        _running = lines
        printer = threading.Thread(target=lines.run, daemon=True)
        printer.start()
    try:
        yield report
    finally:
        lines.state = before
        if outer is None:
            _running = None
            lines.end()
            printer.join()
