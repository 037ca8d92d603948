"""Strings that end a text: the token that completes one is the text's last.

Only what is generated is searched, never the prompt. Like transformers' `StopStringCriteria`, the search goes by the
bytes of the tokens, special ones by their names, and the token that completes a string is kept even if it holds more.
Whoever prints the text stops before the string (`first`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from specviz.errors import SpecVizError

MOST_STRINGS, MOST_CHARACTERS = 16, 200


def check_stop_strings(strings: Iterable[str]) -> tuple[str, ...]:
    """The strings, each once.

    Raises:
        SpecVizError: one is empty, too long or no text, or there are too many.
    """
    strings = tuple(dict.fromkeys(strings))
    if len(strings) > MOST_STRINGS:
        raise SpecVizError(f"{len(strings)} stop strings were given; give at most {MOST_STRINGS}.")
    for string in strings:
        if not isinstance(string, str):
            raise SpecVizError(f"The stop string {str(string)[:40]!r} is no text; give text.")
        if not string:
            raise SpecVizError("A stop string is empty; give at least one character, or leave it out.")
        if len(string) > MOST_CHARACTERS:
            raise SpecVizError(
                f"The stop string {string[:20]!r}… has {len(string)} characters; give at most {MOST_CHARACTERS}."
            )
        try:
            string.encode()
        except UnicodeEncodeError as error:
            raise SpecVizError(f"The stop string {string[:40]!r} holds bytes that are no text; give text.") from error
    return strings


class StopStrings:
    """Looks for `strings` in tokens whose bytes `bytes_of` gives."""

    def __init__(self, strings: Sequence[str], bytes_of: Callable[[int], bytes]):
        self._strings = [string.encode() for string in strings]
        self._bytes_of = lru_cache(4096)(bytes_of)
        self.reach = max(map(len, self._strings), default=1) - 1  # bytes before a token that can begin a string in it

    def completed_by_last(self, tokens: Sequence[int], first: int = 0) -> bool:
        """Whether the last of `tokens[first:]` completes a string that lies within them."""
        before, place = b"", len(tokens) - 2
        while place >= first and len(before) < self.reach:
            before = self._bytes_of(tokens[place]) + before
            place -= 1
        text = before + self._bytes_of(tokens[-1])
        return any(text.find(string, max(0, len(before) - len(string) + 1)) >= 0 for string in self._strings)

    def first(self, text: bytes) -> int:
        """Where the first string begins in `text`, -1 if there is none."""
        return min((at for string in self._strings if (at := text.find(string)) >= 0), default=-1)
