"""Every column of a trace in one place: its type, unit, meaning and legal values.

Documentation and files are made from here, and what is read is checked against it.
"""

import math
from dataclasses import dataclass

import numpy as np

from specviz.trace.limits import LARGEST_INT
from specviz.trace.statuses import DRAFT_STATUSES, TARGET_STATUSES

STOP_REASONS = ("max_draft", "eos", "stop", "budget")  # besides the names of stopping policies
FINISH_REASONS = ("eos", "stop", "length", "context", "stopped")  # stop: by a stop string; stopped: from outside

TEXT = "str"
INT = "int32"
FLOAT = "float32"
SECONDS = "float64"
FLAG = "bool"

NAN = math.nan
ABOVE_0 = 2.0**-149  # the smallest float32
MOST_NATS = 22.0  # entropy of as many equally likely tokens as an int32 can number
LONGEST_WORD = 64  # characters of a status or a stop reason
LONGEST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Legal are the numbers from `least` to `most`, and `unknown` where something may be unknown; of a
    text, `least` and `most` bound its number of characters. A flag has no bounds."""

    name: str
    dtype: str
    unit: str
    meaning: str
    least: float = 0
    most: float = LARGEST_INT
    unknown: float | None = None

    def problem(self, values: np.ndarray) -> str | None:
        """What is illegal among `values` of any shape, in words; None if nothing is."""
        if self.dtype == FLAG:
            return None
        if self.dtype == TEXT:
            lengths = np.strings.str_len(values)
            legal = (lengths >= self.least) & (lengths <= self.most)
            return None if legal.all() else f"{self.name} holds a text that is too long"
        legal = (values >= self.least) & (values <= self.most)
        if self.unknown is not None:
            legal |= np.isnan(values) if math.isnan(self.unknown) else values == self.unknown
        if legal.all():
            return None
        return f"{self.name} holds {values[~legal][0]}, which is not {self.range}"

    @property
    def range(self) -> str:
        """The legal numbers in words."""
        if self.most >= LARGEST_INT:
            return f"{self.least:g} or more"
        if self.least == ABOVE_0:
            return f"above 0 and at most {self.most:g}"
        return f"between {self.least:g} and {self.most:g}"


def probability(name: str, meaning: str, *, least: float = 0, unknown: float | None = None) -> Column:
    return Column(name, FLOAT, "probability", meaning, least, 1, unknown)


def nats(name: str, meaning: str, *, unknown: float | None = None) -> Column:
    return Column(name, FLOAT, "nats", meaning, 0, MOST_NATS, unknown)


def logit_margin(name: str, meaning: str) -> Column:
    """Of two logits; infinite where sampling leaves one token only, NaN when unknown."""
    return Column(name, FLOAT, "logits", meaning, 0, math.inf, NAN)


def seconds(name: str, meaning: str) -> Column:
    return Column(name, SECONDS, "s", meaning, 0, LONGEST_SECONDS, NAN)


def word(name: str, meaning: str) -> Column:
    return Column(name, TEXT, "", meaning, 0, LONGEST_WORD)


ROUND_COLUMNS = (
    Column("round", INT, "", "number of the round, from 0"),
    Column("start", INT, "tokens", "output tokens committed before the round"),
    Column("proposed", INT, "tokens", "tokens sent to verification"),
    Column("tested", INT, "tokens", "proposed tokens that the acceptance rule looked at: up to the first rejection"),
    Column("accepted", INT, "tokens", "length of the accepted run"),
    Column("discarded", INT, "tokens", "proposed tokens after the first rejection, never tested"),
    Column(
        "withheld",
        INT,
        "tokens",
        "draft steps at the end of the draft phase whose tokens were not proposed: mostly 0 or 1",
    ),
    Column("draft_steps", INT, "steps", "draft forward passes that gave a distribution: proposed + withheld"),
    Column("emitted", INT, "tokens", "tokens committed by the round: the accepted run and the target's token if any"),
    word("stop_reason", "what ended the draft phase: the policy's name, max_draft, eos, stop (string) or budget"),
    word("target_status", f"{', '.join(TARGET_STATUSES)}, or empty when the accepted run ended the text"),
    seconds("draft_seconds", "time of the draft phase; NaN when replayed"),
    seconds("verify_seconds", "time of the target's pass; NaN when replayed"),
    seconds("overhead_seconds", "time of the round spent in neither; NaN when replayed"),
)

STEP_COLUMNS = (
    Column("round", INT, "", "number of the round, from 0"),
    Column("step", INT, "", "number within the round, from 0; the target's token comes last"),
    word("source", "draft or target: which model gave the token"),
    Column("position", INT, "tokens", "output position of the token, from 0"),
    Column("token", INT, "", "token id"),
    word("status", f"{', '.join(DRAFT_STATUSES)} (draft); {', '.join(TARGET_STATUSES)} (target)"),
    probability(
        "confidence",
        "the draft's highest probability (greedily its token's), after temperature; NaN for target",
        least=ABOVE_0,
        unknown=NAN,
    ),
    nats("entropy", "entropy of the draft's distribution; NaN for target", unknown=NAN),
    probability("margin", "draft's top-1 minus top-2 probability; NaN for target", unknown=NAN),
    Column("target_token", INT, "", "what the target says here after the committed text; -1 when unknown", unknown=-1),
    logit_margin("target_margin", "the target's top-1 minus top-2 logit there, noise included; NaN when unknown"),
    Column("near_tie", FLAG, "", "rounding could have turned this step out otherwise (see `near_tie_epsilons`)"),
)


def columns_as_markdown(columns: tuple[Column, ...]) -> str:
    """The documentation of some columns as a Markdown table."""
    rows = [("column", "type", "unit", "meaning"), ("---",) * 4]
    rows += [(f"`{column.name}`", column.dtype, column.unit, column.meaning) for column in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
