"""Every column of a trace in one place: its type, unit and meaning. Documentation and files are made from here."""

from dataclasses import dataclass

from specviz.trace.statuses import DRAFT_STATUSES, TARGET_STATUSES

STOP_REASONS = ("max_draft", "eos", "budget")  # besides the names of stopping policies
FINISH_REASONS = ("eos", "length", "context", "stopped")

TEXT = "str"
INT = "int32"
FLOAT = "float32"
SECONDS = "float64"
FLAG = "bool"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype: str
    unit: str
    meaning: str


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
    Column("stop_reason", TEXT, "", "what ended the draft phase: the policy's name, max_draft, eos or budget"),
    Column("target_status", TEXT, "", f"{', '.join(TARGET_STATUSES)}, or empty when the accepted run ended the text"),
    Column("draft_seconds", SECONDS, "s", "time of the draft phase; NaN when replayed"),
    Column("verify_seconds", SECONDS, "s", "time of the target's pass; NaN when replayed"),
    Column("overhead_seconds", SECONDS, "s", "time of the round spent in neither; NaN when replayed"),
)

STEP_COLUMNS = (
    Column("round", INT, "", "number of the round, from 0"),
    Column("step", INT, "", "number within the round, from 0; the target's token comes last"),
    Column("source", TEXT, "", "draft or target: which model gave the token"),
    Column("position", INT, "tokens", "output position of the token, from 0"),
    Column("token", INT, "", "token id"),
    Column("status", TEXT, "", f"{', '.join(DRAFT_STATUSES)} (draft); {', '.join(TARGET_STATUSES)} (target)"),
    Column(
        "confidence",
        FLOAT,
        "probability",
        "the draft's highest probability (greedily its token's), after temperature; NaN for target",
    ),
    Column("entropy", FLOAT, "nats", "entropy of the draft's distribution; NaN for target"),
    Column("margin", FLOAT, "probability", "draft's top-1 minus top-2 probability; NaN for target"),
    Column("target_token", INT, "", "what the target says here after the committed text; -1 when unknown"),
    Column(
        "target_margin",
        FLOAT,
        "logits",
        "the target's top-1 minus top-2 logit there, noise included; NaN when unknown",
    ),
    Column("near_tie", FLAG, "", "rounding could have turned this step out otherwise (see `near_tie_epsilons`)"),
)


def columns_as_markdown(columns: tuple[Column, ...]) -> str:
    """The documentation of some columns as a Markdown table."""
    rows = [("column", "type", "unit", "meaning"), ("---",) * 4]
    rows += [(f"`{column.name}`", column.dtype, column.unit, column.meaning) for column in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
