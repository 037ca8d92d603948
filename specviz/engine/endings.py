"""When a generation ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.replay.stop_strings import StopStrings


@dataclass(frozen=True)
class Endings:
    """Tokens and strings that end a text.

    Attributes:
        eos_ids: a text ends with any of these tokens.
        stop: a text ends with the token that completes one of these strings.
    """

    eos_ids: frozenset[int] = frozenset()
    stop: StopStrings | None = None

    def of(self, text: Sequence[int], first: int) -> str | None:
        """How `text`, whose prompt are its `first` tokens, ends with its last token: `eos`, `stop`, or not (None)."""
        if text[-1] in self.eos_ids:
            return "eos"
        if self.stop and self.stop.completed_by_last(text, first):
            return "stop"
        return None


@dataclass(frozen=True)
class Limits:
    """A generation ends after `max_new_tokens`, or where its text does.

    `finish_reason` is what to call the first of these: `length`, or `context` when the models' context is what
    bounds the number of tokens.
    """

    max_new_tokens: int
    endings: Endings = Endings()
    finish_reason: str = "length"
