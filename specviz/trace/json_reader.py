"""Reading JSON that somebody else may have written.

The text is bounded before it is parsed (size, nesting, number of lists and objects, no NaN, no infinity, no number
beyond 64 bits) and its shape is checked after, with msgspec. Types state what is legal: `Name`, `TokenId` and the
fields of the structures that readers hand over.
"""

import json
import math
from collections.abc import Collection
from typing import Annotated, Any, TypeVar

import msgspec

from specviz.trace.limits import (
    LARGEST_INT,
    MOST_CONTAINERS,
    MOST_DEPTH,
    MOST_JSON,
    MOST_NAME,
    MOST_TOKEN_TEXT,
    TooLargeError,
)

Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
TokenText = Annotated[str, msgspec.Meta(max_length=MOST_TOKEN_TEXT)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INT)]
Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
WHOLE = ""
Shape = TypeVar("Shape")


class JsonError(ValueError):
    """The text is no JSON, or not of the shape that was asked for; the message says what is wrong with it."""


def read_json(content: bytes | str, shape: type[Shape], *, most: int = MOST_JSON, raw: Collection[str] = ()) -> Shape:
    """Parse `content` and check that it has this `shape`.

    Args:
        shape: what msgspec converts to: a structure, a dataclass, `dict[str, Name]` …
        most: bytes that the text may have.
        raw: top-level names whose texts stand for bytes and may hold lone surrogates (`surrogateescape`), or WHOLE for
            a content that is one such text; anywhere else a text has to be one that can be written as UTF-8.

    Raises:
        TooLargeError: it is longer.
        JsonError: it is not of that shape, or no JSON.
    """
    return of_shape(parse_json(content, most=most, raw=raw), shape)


def parse_json(content: bytes | str, *, most: int = MOST_JSON, raw: Collection[str] = ()) -> Any:
    """The first half of `read_json`: bounded, of any shape."""
    if len(content) > most:
        raise TooLargeError(f"{len(content) >> 20} MB of JSON, at most {most >> 20}")
    brackets = (b"[", b"{") if isinstance(content, bytes) else ("[", "{")
    if sum(map(content.count, brackets)) > MOST_CONTAINERS:
        raise TooLargeError(f"more than {MOST_CONTAINERS} lists and objects of JSON")
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        values = json.loads(text, parse_constant=_refuse, parse_int=_integer, parse_float=_number)
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error
    except JsonError:
        raise
    except ValueError as error:
        raise JsonError(f"it is no JSON ({error})") from error
    if isinstance(values, dict):
        _check({name: value for name, value in values.items() if name not in raw}, MOST_DEPTH)
    elif not (isinstance(values, str) and WHOLE in raw):
        _check(values, MOST_DEPTH)
    return values


def of_shape(values: Any, shape: type[Shape]) -> Shape:
    """The second half of `read_json`: values that were parsed, as this shape."""
    try:
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        raise JsonError(str(error)) from error


def _refuse(name: str) -> None:
    raise JsonError(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > 19 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise JsonError("a whole number has more than 64 bits")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonError("a number is too large")
    return number


def _check(value: Any, depth: int) -> None:
    """Refuse nesting beyond `depth`, and texts that cannot be written."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise JsonError("a text holds half a character") from error
    elif isinstance(value, dict | list):
        if depth == 0:
            raise JsonError("it is nested too deeply")
        for each in value:
            _check(each, depth - 1)
        if isinstance(value, dict):
            for each in value.values():
                _check(each, depth - 1)
