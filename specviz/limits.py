"""What a person may ask for: the range of every number, and the names to choose from.

The command line reads its options with these, and `Settings`, `Sampling` and the engine check with them, so that all
refuse the same values in the same words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specviz.errors import SpecVizError

LONGEST_SHOWN = 40  # characters of what was given that a sentence repeats


@dataclass(frozen=True)
class Range:
    """The numbers that one quantity can have.

    Attributes:
        name: the quantity, as a sentence calls it.
        low, high: the least and the largest number, both included.
        whole: only whole numbers.
    """

    name: str
    low: float
    high: float
    whole: bool = True

    def check(self, value: float) -> float:
        """`value` as an int or a float.

        Raises:
            SpecVizError: it is no number, or out of range.
        """
        try:
            fits = not isinstance(value, bool) and self.low <= value <= self.high  # also refuses NaN
            fits = fits and not (self.whole and value != int(value))
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise SpecVizError(self._sentence(str(value)))
        return int(value) if self.whole else float(value)

    def read(self, text: str) -> float:
        """The number that `text` spells; errors as in `check`."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError as error:
            raise SpecVizError(self._sentence(repr(text))) from error
        return self.check(value)

    def _sentence(self, given: str) -> str:
        kind = "whole number" if self.whole else "number"
        shortened = given if len(given) <= LONGEST_SHOWN else f"{given[:LONGEST_SHOWN]}…"
        return f"The {self.name} is {shortened}; give a {kind} between {_spelt(self.low)} and {_spelt(self.high)}."


@dataclass(frozen=True)
class Choice:
    """The names that one setting can have."""

    name: str
    names: tuple[str, ...]

    def read(self, text: str) -> str:
        """`text`, if it is one of the names.

        Raises:
            SpecVizError: it is not.
        """
        if text not in self.names:
            raise SpecVizError(f"There is no {self.name} {text[:LONGEST_SHOWN]!r}; choose {' or '.join(self.names)}.")
        return text


def _spelt(bound: float) -> str:
    return f"{bound:,}" if bound == int(bound) and math.isfinite(bound) else f"{bound:g}"


PASS_MODE = Choice("pass mode", ("invariant", "fast"))
RANDOM_SIZE = Choice("random pair of size", ("7b", "tiny"))

THRESHOLD = Range("threshold", 0, 1, whole=False)
MAX_DRAFT = Range("draft length", 1, 1024)
MAX_NEW_TOKENS = Range("number of new tokens", 1, 1_000_000)
TIMED_TOKENS = Range("number of tokens to time", 1, 1_000_000)

TEMPERATURE = Range("temperature", 0, 1000, whole=False)
TOP_K = Range("top-k", 0, 10_000_000)
TOP_P = Range("top-p", 0, 1, whole=False)
MIN_P = Range("min-p", 0, 1, whole=False)
REPETITION_PENALTY = Range("repetition penalty", 0.01, 100, whole=False)
SEED = Range("seed", 1 - 10**18, 10**18 - 1)  # seeds are 64-bit numbers, with room to count on from each

PROMPTS = Range("number of prompts", 1, 1_000_000)
REPEATS = Range("number of repeats", 1, 1000)
SAMPLES = Range("number of samples", 1000, 10_000_000)
RUNS = Range("number of runs", 1, 1_000_000)

TEXTS = Range("number of texts", 1, 10_000_000)
STEPS = Range("number of training steps", 1, 10_000_000)
HEAD_SIZE = Range("head size", 1, 10_000_000)
