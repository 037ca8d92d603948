"""The observer that prints a generation to a terminal while it happens, its tokens coloured by status."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

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
from specviz.replay.stop_strings import StopStrings
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
GHOSTS = ("rejected", "discarded")
KEY = ("accepted", "rejected", "correction", "bonus", "plain")


def printable(text: str) -> str:
    """`text` without control characters: a model's output must not be able to steer the terminal."""
    return "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 127 <= ord(c) < 160) else "\N{REPLACEMENT CHARACTER}" for c in text
    )


class TerminalView:
    """Prints committed tokens as they come; with `ghosts`, rejected and discarded tokens too, struck through.

    With `stop` strings the text is printed up to the first of them, so what one may still begin in is held back.
    """

    def __init__(self, console: Console, token_text: TokenText, ghosts: bool = False, stop: Sequence[str] = ()):
        self._console, self._token_text, self._ghosts = console, token_text, ghosts
        self._stop = StopStrings(stop, token_text.bytes_of)
        self._held: list[tuple[int, str]] = []  # tokens to print, with their statuses
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
                self._print_rest()
                self._console.print(Text(printable(self._decoder.decode(b"", final=True))))

    def _print_round(self, emitted: tuple[int, ...]) -> None:
        accepted = self._verified.accepted
        self._held += [(token, "accepted") for token in emitted[:accepted]]
        if self._ghosts:
            ghosts = self._proposal[accepted:]
            self._held += [(token, "discarded" if place else "rejected") for place, token in enumerate(ghosts)]
        self._held += [(token, self._verified.target_status) for token in emitted[accepted:]]
        text = self._held_text()
        if self._stop.first(text) < 0:
            self._print_held(len(text) - self._stop.reach)

    def _print_rest(self) -> None:
        """Print what is held back, up to the first stop string."""
        text = self._held_text()
        end = self._stop.first(text)
        left = self._print_held(len(text) if end < 0 else end)
        token, status = self._held[0] if self._held else (-1, "")
        if left > 0 and not self._token_text.is_special(token):  # the string begins within a token
            part = self._decoder.decode(self._token_text.bytes_of(token)[:left])
            self._console.print(Text(printable(part), STYLES[status]), end="", soft_wrap=True)

    def _held_text(self) -> bytes:
        return b"".join(self._token_text.bytes_of(token) for token, status in self._held if status not in GHOSTS)

    def _print_held(self, end: int) -> int:
        """Print the tokens held back that lie before byte `end` of their text; the bytes left between them and it."""
        line, printed = Text(), 0
        while self._held:
            token, status = self._held[0]
            data = self._token_text.bytes_of(token)
            if status in GHOSTS:
                line.append(printable(data.decode("utf-8", "replace")), STYLES[status])
            elif printed + len(data) > end:
                break
            else:
                printed += len(data)
                if not self._token_text.is_special(token):
                    line.append(printable(self._decoder.decode(data)), STYLES[status])
            del self._held[0]
        self._console.print(line, end="", soft_wrap=True)
        return end - printed
