"""The statuses of a token: the one table from which charts, terminal, pages and reports take name, glyph and colour.

Colours are those of Okabe and Ito (2008), which colour-blind readers can distinguish; a glyph and a line say the same.
"""

from dataclasses import dataclass

NO_LINE = "none"


@dataclass(frozen=True, slots=True)
class Status:
    """What may become of a token.

    `line` is one of underline, dotted underline, double underline, line-through, dotted outline and none.
    """

    name: str
    source: str  # draft or target: which model gave the token
    glyph: str  # shown beside the name; "" for none
    colour: str  # "#rrggbb", as an area; "" for the colour of the text around it
    line: str


STATUSES = {
    status.name: status
    for status in (
        Status("accepted", "draft", "✓", "#009E73", "underline"),
        Status("rejected", "draft", "✕", "#D55E00", "line-through"),
        Status("discarded", "draft", "–", "#999999", "line-through"),
        Status("withheld", "draft", "○", "#8a8781", "dotted outline"),
        Status("correction", "target", "↺", "#E69F00", "dotted underline"),
        Status("bonus", "target", "+", "#0072B2", "double underline"),
        Status("plain", "target", "", "", NO_LINE),
    )
}
DRAFT_STATUSES = tuple(status.name for status in STATUSES.values() if status.source == "draft")
TARGET_STATUSES = tuple(status.name for status in STATUSES.values() if status.source == "target")
EMITTED_STATUSES = ("accepted", *TARGET_STATUSES)  # of the tokens that are in the text


def target_status(proposed: int, accepted: int) -> str:
    """Status of the target's own token after `accepted` of `proposed` tokens were accepted."""
    if accepted < proposed:
        return "correction"
    return "bonus" if proposed else "plain"
