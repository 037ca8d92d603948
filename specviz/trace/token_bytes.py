"""The bytes that token ids stand for, kept beside recordings so that they can be read without the tokenizer."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta

from specviz.trace.json_reader import JsonError, TokenText
from specviz.trace.limits import LARGEST_INT
from specviz.trace.recording import Recording

# Token ids as texts -> what their bytes are as text.
TokenTable = dict[Annotated[str, Meta(pattern="^[0-9]{1,10}$")], TokenText]


def used_tokens(recordings: Iterable[Recording]) -> list[int]:
    """Every token id in these recordings but those of the prompts, ascending."""
    ids: set[int] = set()
    for recording in recordings:
        for name in ("output_ids", "draft_token", "branch_token", "draft_top_ids", "target_top_ids"):
            ids.update(getattr(recording, name).ravel().tolist())
    ids.discard(-1)
    return sorted(ids)


def tokens_to_json(tokens: Mapping[int, bytes]) -> dict[str, str]:
    """Token bytes as JSON-able text; bytes that are no text survive as lone surrogates (`surrogateescape`)."""
    return {str(token): text.decode("utf-8", "surrogateescape") for token, text in tokens.items()}


def tokens_from_json(values: Mapping[str, str]) -> dict[int, bytes]:
    """Invert `tokens_to_json`.

    Raises:
        JsonError: an id is no token id, or a text stands for no bytes.
    """
    try:
        tokens = {int(token): text.encode("utf-8", "surrogateescape") for token, text in values.items()}
    except ValueError as error:
        raise JsonError(f"a token's text stands for no bytes ({error.reason})") from error
    if tokens and max(tokens) > LARGEST_INT:
        raise JsonError(f"{max(tokens)} is no token id")
    return tokens
