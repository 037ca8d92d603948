"""The table of statuses as a style sheet, for the live components and the report."""

from specviz.trace.statuses import NO_LINE, STATUSES

# Share of a status's colour in its ink; the rest is the text's colour, which makes it legible on light and dark pages.
COLOUR_SHARE = 60
COLOURED_TEXT = ("rejected", "correction", "bonus")
TEXT_LINES = {
    "underline": "underline 2px",
    "dotted underline": "underline dotted 2px",
    "double underline": "underline double 1.5px",
    "line-through": "line-through",
}


def status_css(scope: str, ink: str = "var(--st-text-color)") -> str:
    """Properties and classes of the statuses, under the selector `scope`.

    For a status such as `bonus`: `--fill-bonus` for areas, `--bonus` for text, `--glyph-bonus` as a string, and a class
    `bonus` that draws a token's text with its line.

    Args:
        ink: the colour of the text around.
    """
    properties, classes = [], []
    for name, status in STATUSES.items():
        fill = status.colour or ink
        properties.append(f"--fill-{name}: {fill}; --glyph-{name}: {css_string(status.glyph)};")
        properties.append(f"--{name}: color-mix(in srgb, {fill} {COLOUR_SHARE}%, {ink});")
        rules = []
        if status.line in TEXT_LINES:
            rules.append(f"text-decoration: {TEXT_LINES[status.line]} var(--fill-{name});")
            rules.append("text-decoration-skip-ink: none; text-underline-offset: 5px;")
        elif status.line != NO_LINE:
            rules.append("outline: 1px dotted; outline-offset: -1px; padding: 0 2px; margin: 0 1px;")
        if name in COLOURED_TEXT:
            rules.append(f"color: var(--{name});")
        classes.append(f"{scope} .of-{name} {{ --glyph: var(--glyph-{name}); }}")
        if rules:
            classes.append(f"{scope} .{name} {{ {' '.join(rules)} }}")
    return "\n".join((f"{scope} {{ {' '.join(properties)} }}", *classes, ""))


def css_string(text: str) -> str:
    return f'"{text}"'
