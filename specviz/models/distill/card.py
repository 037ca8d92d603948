"""The card of a draft: what it is, how it was made, how well it agrees. Written from the run's own records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from specviz.models.distill.evaluate import Agreement, agreement_table
from specviz.models.distill.texts import LabelledText


def markdown_table(rows: Sequence[Mapping[str, float | str]]) -> str:
    """Rows of equal keys as a Markdown table; fractions with three digits."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    for row in rows:
        cells = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def describe_texts(texts: Sequence[LabelledText]) -> str:
    """One sentence on the training texts and a table by kind."""
    tokens = Counter()
    count = Counter(text.kind for text in texts)
    for text in texts:
        tokens[text.kind] += len(text.output_ids)
    greedy = sum(len(text.output_ids) for text in texts if text.mode == "greedy")
    total = sum(tokens.values())
    rows = [{"kind": kind, "texts": count[kind], "output tokens": n} for kind, n in tokens.most_common()]
    share = greedy / total if total else 0.0
    return (
        f"{len(texts)} texts with {total} output tokens, {share:.0%} of them decoded greedily and the rest sampled.\n\n"
        + markdown_table(rows)
    )


def write_card(
    path: Path, recipe: Mapping[str, object], texts: Sequence[LabelledText], results: Mapping[str, Agreement]
) -> None:
    """Write the card of a freshly distilled draft.

    Args:
        recipe: target, layers, head and training settings.
        results: agreement per set of prompts, by its title.
    """
    lines = [f"# A draft for {recipe['target']}", "", "Made by `python -m specviz distill`.", "", "## Recipe", ""]
    lines += [f"- {name}: {value}" for name, value in recipe.items()]
    lines += ["", "## Training texts", "", describe_texts(texts), ""]
    for title, agreement in results.items():
        lines += [
            f"## Agreement: {title}",
            "",
            "Teacher-forced along the target's greedy text. `agreement`: share of positions where the draft's arg max "
            "is the target's token; `coverage`: share of the target's tokens the head can say; then the share of "
            "positions whose confidence exceeds the threshold, and the agreement among those.",
            "",
            markdown_table(agreement_table(agreement)),
            "",
        ]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("\n".join(lines), encoding="utf-8")
    os.replace(temporary, path)
