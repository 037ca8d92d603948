"""Token ids to texts fit for showing, without loading a model."""

import unicodedata
from collections.abc import Callable, Mapping

LINE_BREAK = "↵\n"


def display_text(token: str | bytes) -> str:
    """The text of a token as the app shows it.

    Line breaks get a mark. Control characters, among them those that would turn the direction of everything around
    them, become their code in brackets; bytes that are no whole character become hexadecimal.
    """
    if isinstance(token, bytes):
        token = token.decode("utf-8", "surrogateescape")
    return "".join(map(_display_character, token.replace("\r\n", "\n")))


def _display_character(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return LINE_BREAK
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape
        return f"⟨{code - 0xDC00:02x}⟩"
    if character == "\t":
        return "⇥"
    # Cs: lone surrogates. Of the format characters the joiners belong to emoji and to several scripts.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\u200c\u200d":
        return f"⟨{code:x}⟩"
    return character


def display_from(tokens: Mapping[int, bytes]) -> Callable[[int], str]:
    """A lookup of display texts; it shows the id of a token whose bytes are not known."""
    return lambda token: display_text(tokens[token]) if token in tokens else f"⟨{token}⟩"
