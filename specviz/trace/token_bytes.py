"""The bytes of tokens as JSON: a recording holds ids only, and whoever shows it needs the texts beside it."""

from collections.abc import Mapping


def tokens_to_json(tokens: Mapping[int, bytes]) -> dict[str, str]:
    """Token bytes as JSON-able text; bytes that are no text survive as lone surrogates (`surrogateescape`)."""
    return {str(token): text.decode("utf-8", "surrogateescape") for token, text in tokens.items()}


def tokens_from_json(values: Mapping[str, str]) -> dict[int, bytes]:
    """Invert `tokens_to_json`."""
    return {int(token): text.encode("utf-8", "surrogateescape") for token, text in values.items()}
