"""The words of the pages, from one file: `glossary.toml` says how it is written.

Sources of the metrics: Leviathan et al. 2023 (acceptance, tokens per target pass), Guo et al. 2017 (calibration error),
Brier 1950, Holm 1979.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "glossary.toml"


@dataclass(frozen=True)
class Term:
    """A word and its definition."""

    key: str
    labels: tuple[str, ...]  # as the word is written; the first is its name
    text: str
    formula: str = ""

    @property
    def name(self) -> str:
        return self.labels[0]

    @property
    def definition(self) -> str:
        """The sentences, and the formula if there is one."""
        return f"{self.text} {self.formula}".strip()


@cache
def glossary() -> dict[str, Term]:
    """Every term by its key."""
    entries = tomllib.loads(FILE.read_text("utf-8"))
    return {key: Term(key, tuple(entry.pop("labels")), **entry) for key, entry in entries.items()}


def define(key: str) -> str:
    """The definition of a term.

    Raises:
        KeyError: there is no such term.
    """
    return glossary()[key].definition


def words_as_markdown(keys: Iterable[str]) -> str:
    """Terms and definitions as a Markdown table; README holds one."""
    rows = [("word", "meaning", "formula"), ("---",) * 3]
    rows += [(term.name, term.text, term.formula) for term in (glossary()[key] for key in keys)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def terms_in(texts: Iterable[str]) -> list[Term]:
    """The terms that occur in these texts as whole words, each once, in the order in which they come.

    Of labels that overlap the longest counts: "draft length" is not also "draft".
    """
    return list(dict.fromkeys(term for text in texts for term in _occurrences(text)))


def _occurrences(text: str) -> Iterator[Term]:
    pattern, by_label = _labels()
    for occurrence in pattern.finditer(text):
        yield by_label[_folded(occurrence[0])]


@cache
def _labels() -> tuple[re.Pattern, dict[str, Term]]:
    by_label = {_folded(label): term for term in glossary().values() for label in term.labels}
    longest_first = sorted(by_label, key=len, reverse=True)
    either_case = ("".join(_either_case(label[0])) + re.escape(label[1:]) for label in longest_first)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(either_case)})(?![\w-])"), by_label


def _folded(label: str) -> str:
    return label[0].lower() + label[1:]


def _either_case(letter: str) -> str:
    return f"[{re.escape(letter.lower())}{re.escape(letter.upper())}]" if letter.isalpha() else re.escape(letter)
