"""Prompt sets: files of prompts, and a small set of our own.

Three forms of file: plain text, one prompt a line; JSON lines with `prompt`; JSON lines with `turns` (the form of
Spec-Bench and MT-Bench), of which the first turn is the prompt. JSON lines may carry `category` and `question_id` or
`id`.
"""

from codecs import BOM_UTF8 as BOM
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.trace.json_reader import JsonError, parse_json
from specviz.trace.limits import MB, MOST_NAME, MOST_PROMPT_FILE, MOST_PROMPT_TEXT, MOST_PROMPTS, TooLargeError

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
        SpecVizError: the file is missing, empty, too large, not UTF-8, or a line is not what the others are.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_PROMPT_FILE + 1)
    except OSError as error:
        raise SpecVizError(f"Cannot read {path}: {error.strerror}; check the path.") from error
    return parse_prompts(content, str(path))


def parse_prompts(content: bytes, name: str) -> list[Prompt]:
    """The prompts in the content of a file called `name`; form and errors as in `load_prompts`."""
    if len(content) > MOST_PROMPT_FILE:
        raise SpecVizError(f"{name} is larger than {MOST_PROMPT_FILE // MB} MB; split it into several files.")
    prompts: list[Prompt] = []
    seen: set[str] = set()
    in_json = False
    # Only real line ends: str.splitlines would also cut at characters that may be inside a JSON string.
    for number, line in enumerate(BytesIO(content.removeprefix(BOM)), 1):
        where = f"{name}, line {number}"
        text = _decoded(line, where).strip()
        if not text:
            continue
        if not prompts:
            in_json = text.startswith("{")
        prompt = _from_json(text, where, number) if in_json else Prompt(str(number), "", text)
        _check(prompt, where)
        if prompt.id in seen:
            raise SpecVizError(f"{where}: the id {prompt.id!r} is taken; give each prompt its own.")
        if len(prompts) == MOST_PROMPTS:
            raise SpecVizError(f"{name} holds more than {MOST_PROMPTS:,} prompts; split it into several files.")
        seen.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        raise SpecVizError(f"{name} holds no prompts; write at least one, one a line.")
    return prompts


def _decoded(line: bytes, where: str) -> str:
    if len(line) > MOST_PROMPT_TEXT:
        raise SpecVizError(f"{where} is longer than {MOST_PROMPT_TEXT:,} bytes; shorten the prompt.")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecVizError(f"{where} is not UTF-8 text (byte {error.start}); save the file as UTF-8.") from error


def _check(prompt: Prompt, where: str) -> None:
    """Refuse what a recording could not hold."""
    if "\0" in prompt.text:
        raise SpecVizError(f"{where} holds a NUL character, as a binary file does; give a file of text.")
    if len(prompt.id) > MOST_NAME or len(prompt.category) > MOST_NAME:
        raise SpecVizError(f"{where}: the id or the category is longer than {MOST_NAME} characters; shorten it.")


def _from_json(line: str, where: str, number: int) -> Prompt:
    try:
        values = parse_json(line)
    except JsonError as error:
        raise SpecVizError(f"{where} is not JSON that can be used ({error}); write one JSON object a line.") from error
    except TooLargeError as error:
        raise SpecVizError(f"{where} is too large ({error}); write one JSON object a line.") from error
    if not isinstance(values, dict):
        raise SpecVizError(f"{where} is JSON but no object; write one JSON object a line.")
    turns = values.get("turns")
    text = values["prompt"] if "prompt" in values else turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(text, str) or not text.strip():
        raise SpecVizError(f'{where} has no text; give it "prompt", or "turns" with at least one text.')
    identity, category = values.get("question_id", values.get("id", number)), values.get("category", "")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or not isinstance(category, str):
        raise SpecVizError(f'{where}: the id must be a text or a whole number and "category" a text.')
    return Prompt(str(identity), category, text)
