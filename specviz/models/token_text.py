"""The bytes a token stands for. A character such as an emoji may be split over tokens, so text is joined as bytes."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE uses for bytes (Radford et al. 2019), inverted.

    Bytes that print as themselves keep their character; the others take the characters from U+0100 on, in order.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class TokenText:
    """Turns the ids of one tokenizer into bytes and text."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
        self._byte_level = "ByteLevel" in json.dumps(decoder)
        self._special = set(tokenizer.all_special_ids)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token; special tokens and ids without a token give their name or nothing."""
        piece = self._tokenizer.convert_ids_to_tokens(int(token))
        if piece is None:
            return b""
        if token in self._special:
            return piece.encode()
        if self._byte_level:
            table = _byte_of_character()
            if all(character in table for character in piece):
                return bytes(table[character] for character in piece)
            return piece.encode()
        fallback = _BYTE_FALLBACK.fullmatch(piece)
        if fallback:
            return bytes([int(fallback.group(1), 16)])
        return piece.replace("\u2581", " ").encode()

    def is_special(self, token: int) -> bool:
        return token in self._special

    def text(self, tokens) -> str:
        """The text of several tokens, without special ones; bytes that are no text become U+FFFD."""
        return b"".join(self.bytes_of(t) for t in tokens if t not in self._special).decode("utf-8", "replace")
