"""`bench draft`: how often a draft says what its target says, by category of prompt, against the bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.models.distill.evaluate import (
    Agreement,
    agreement_table,
    measure_agreement,
    read_questions,
)
from specviz.models.distill.generate import encode_prompt, write_texts
from specviz.models.distill.texts import LabelledText, read_shard, write_shard
from specviz.models.draft_model import DraftModel
from specviz.models.loading import LoadedPair, load_pair
from specviz.models.sources import BUILTIN_DRAFT, BUILTIN_TARGET

AGREEMENT_BAR, AGREEMENT_GOAL = 0.38, 0.55
ACCEPTANCE_BAR, ACCEPTANCE_THRESHOLD = 0.70, 0.5
THRESHOLDS = (0.3, ACCEPTANCE_THRESHOLD, 0.7, 0.9)
_BATCH = 15


def run(
    prompts_path: str | Path,
    *,
    target: str = BUILTIN_TARGET,
    draft: str = BUILTIN_DRAFT,
    pair: LoadedPair | None = None,
    precision: str = "fp32",
    device: str = "auto",
    max_new_tokens: int = 96,
    every: int = 1,
    texts_folder: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> bool:
    """Print agreement and acceptance by category and whether both bars are met; return the latter.

    The target first answers every question greedily (chat-formatted, its first turn); the draft is then run along those
    answers, teacher-forced.

    Args:
        prompts_path: JSON lines with `category` and `turns`.
        pair: loaded models; otherwise `target` and `draft` are loaded at `precision`.
        every: take every n-th question only.
        texts_folder: keep the target's answers there, and use those that are there already for the same prompts. A
            folder belongs to one target, one precision and one `max_new_tokens`.
        say: where lines go.

    Raises:
        SpecVizError: the file cannot be read, or the draft has no reduced head to measure.
    """
    questions = read_questions(Path(prompts_path))[:: max(1, every)]
    pair = pair or load_pair(target, draft, precision, precision, device)
    if not isinstance(pair.draft.model, DraftModel):
        raise SpecVizError(
            f"{pair.draft.name} was not distilled by SpecViz: bench draft measures distilled drafts only."
        )
    folder = None if texts_folder is None else Path(texts_folder)
    texts: list[LabelledText] = []
    ids = [encode_prompt(pair.tokenizer, question.text) for question in questions]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        texts += _answers(
            pair,
            [ids[i] for i in chosen],
            [questions[i].kind for i in chosen],
            max_new_tokens,
            folder,
            start,
        )
        say(f"the target has answered {len(texts)} of {len(order)} questions")
    agreement = measure_agreement(pair.draft.model, texts)

    say("")
    where = f"{precision}, {pair.target.model.device}, {len(texts)} questions, up to {max_new_tokens} new tokens"
    say(f"{pair.name}, {where}")
    say(format_table(agreement, THRESHOLDS))
    met = True
    for name, value, bar, goal in (
        (
            "agreement over all",
            agreement.rate(),
            AGREEMENT_BAR,
            f" (goal {AGREEMENT_GOAL})",
        ),
        (
            f"acceptance above confidence {ACCEPTANCE_THRESHOLD:g}",
            agreement.acceptance(ACCEPTANCE_THRESHOLD),
            ACCEPTANCE_BAR,
            "",
        ),
    ):
        met &= value >= bar
        say(f"{name:36}{value:8.3f}   at least {bar}: {'met' if value >= bar else 'missed'}{goal}")
    return met


def format_table(agreement: Agreement, thresholds: Sequence[float]) -> str:
    """The agreement table as aligned text: one line per category, the last over all."""
    rows = agreement_table(agreement, thresholds)
    widths = [max(len(name), 10) for name in rows[0]]
    widths[0] = max(len(str(row["kind"])) for row in rows) + 2
    lines = ["".join(f"{name:>{width + 2}}" for name, width in zip(rows[0], widths, strict=True))]
    for row in rows:
        cells = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values())
        lines.append("".join(f"{cell:>{width + 2}}" for cell, width in zip(cells, widths, strict=True)))
    return "\n".join(lines)


def _answers(
    pair: LoadedPair,
    prompts: Sequence[Sequence[int]],
    categories: Sequence[str],
    max_new_tokens: int,
    folder: Path | None,
    number: int,
) -> list[LabelledText]:
    path = None if folder is None else folder / f"answers-{number:04d}.npz"
    if path is not None and path.exists():
        kept = read_shard(path)
        if [text.ids[: text.prompt_len].tolist() for text in kept] == [list(prompt) for prompt in prompts]:
            return kept
    texts = write_texts(
        pair.target.model,
        prompts,
        max_new_tokens=max_new_tokens,
        temperatures=[0.0] * len(prompts),
        kinds=list(categories),
    )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_shard(path, texts)
    return texts
