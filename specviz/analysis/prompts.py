"""Prompt sets: files of prompts, and a small set of our own.

Three forms of file: plain text, one prompt a line; JSON lines with `prompt`; JSON lines with `turns` (the form of
Spec-Bench and MT-Bench), of which the first turn is the prompt. JSON lines may carry `category` and `question_id` or
`id`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecVizError

DEFAULT_PROMPTS = Path(__file__).with_name("default_prompts.jsonl")


@dataclass(frozen=True)
class Prompt:
    """One prompt. `id` is unique in its set; `category` may be empty."""

    id: str
    category: str
    text: str


def default_prompts() -> list[Prompt]:
    """The validation set that comes with SpecViz: 40 prompts of 8 kinds, with the passages they are about."""
    return load_prompts(DEFAULT_PROMPTS)


def load_prompts(path: str | Path) -> list[Prompt]:
    """Read a prompt file. Its first line decides the form: a line that starts with `{` makes it JSON lines.

    Raises:
        SpecVizError: the file is missing, empty, not UTF-8, or a line is not what the others are.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecVizError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    except OSError as error:
        raise SpecVizError(f"Cannot read {path}: {error.strerror}; check the path.") from error
    return parse_prompts(text, str(path))


def parse_prompts(text: str, name: str) -> list[Prompt]:
    """The prompts in the text of a file called `name`; form and errors as in `load_prompts`."""
    # Only real line ends: str.splitlines would also cut at characters that may stand inside a JSON string.
    lines = text.replace("\r\n", "\n").split("\n")
    lines = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not lines:
        raise SpecVizError(f"{name} holds no prompts; write at least one, one a line.")
    if lines[0][1].startswith("{"):
        prompts = [_from_json(line, f"{name}, line {number}", number) for number, line in lines]
    else:
        prompts = [Prompt(str(number), "", line) for number, line in lines]
    seen: set[str] = set()
    for (number, _), prompt in zip(lines, prompts, strict=True):
        if prompt.id in seen:
            raise SpecVizError(f"{name}, line {number}: the id {prompt.id!r} is taken; give each prompt its own.")
        seen.add(prompt.id)
    return prompts


def _from_json(line: str, where: str, number: int) -> Prompt:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecVizError(f"{where} is not JSON; write one JSON object a line.") from error
    if not isinstance(values, dict):
        raise SpecVizError(f"{where} is JSON but no object; write one JSON object a line.")
    turns = values.get("turns")
    text = values["prompt"] if "prompt" in values else turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(text, str) or not text.strip():
        raise SpecVizError(f'{where} has no text; give it "prompt", or "turns" with at least one text.')
    identity, category = values.get("question_id", values.get("id", number)), values.get("category", "")
    if not isinstance(identity, str | int) or not isinstance(category, str):
        raise SpecVizError(f'{where}: the id must be a text or a whole number and "category" a text.')
    return Prompt(str(identity), category, text)
