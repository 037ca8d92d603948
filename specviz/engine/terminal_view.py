"""The observer that prints a generation to a terminal while it happens, its tokens coloured by status."""

from __future__ import annotations

import codecs

from rich.console import Console
from rich.text import Text

from specviz.engine.events import (
    DraftStopped,
    Event,
    Finished,
    RoundCommitted,
    Verified,
)
from specviz.models.token_text import TokenText
from specviz.trace.statuses import NO_LINE, STATUSES

# A terminal has one kind of underline, so the dotted one is bold and the double one is bold and underlined.
LINES = {
    "underline": "underline",
    "dotted underline": "bold",
    "double underline": "bold underline",
    "line-through": "strike",
    "dotted outline": "dim",
    NO_LINE: "",
}
STYLES = {name: f"{LINES[status.line]} {status.colour}".strip() for name, status in STATUSES.items()}
KEY = ("accepted", "rejected", "correction", "bonus", "plain")


def printable(text: str) -> str:
    """`text` without control characters: a model's output must not be able to steer the terminal."""
    return "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 127 <= ord(c) < 160) else "\N{REPLACEMENT CHARACTER}" for c in text
    )


class TerminalView:
    """Prints committed tokens as they come; with `ghosts`, rejected and discarded tokens too, struck through."""

    def __init__(self, console: Console, token_text: TokenText, ghosts: bool = False):
        self._console, self._token_text, self._ghosts = console, token_text, ghosts
        self._proposal: tuple[int, ...] = ()
        self._verified: Verified | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @staticmethod
    def key() -> Text:
        """The legend."""
        return Text("  ").join(Text(f"{name} {STATUSES[name].glyph}".strip(), style=STYLES[name]) for name in KEY)

    def observe(self, event: Event) -> None:
        """Take in the next event."""
        match event:
            case DraftStopped(proposal=proposal):
                self._proposal = proposal
            case Verified():
                self._verified = event
            case RoundCommitted(emitted=emitted):
                self._print_round(emitted)
                self._proposal = ()
            case Finished():
                self._console.print(Text(printable(self._decoder.decode(b"", final=True))))

    def _print_round(self, emitted: tuple[int, ...]) -> None:
        line = Text()
        accepted = self._verified.accepted
        for token in emitted[:accepted]:
            self._append(line, token, "accepted")
        if self._ghosts:
            for place, token in enumerate(self._proposal[accepted:]):
                ghost = self._token_text.bytes_of(token).decode("utf-8", "replace")
                line.append(printable(ghost), STYLES["discarded" if place else "rejected"])
        for token in emitted[accepted:]:
            self._append(line, token, self._verified.target_status)
        self._console.print(line, end="", soft_wrap=True)

    def _append(self, line: Text, token: int, status: str) -> None:
        if not self._token_text.is_special(token):
            line.append(
                printable(self._decoder.decode(self._token_text.bytes_of(token))),
                STYLES[status],
            )
