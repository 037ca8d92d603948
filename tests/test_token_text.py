"""Tokens as bytes: joined they are the text, whatever a tokenizer does to bytes, spaces and emoji."""

import tiny_models
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specviz.engine.terminal_view import printable
from specviz.models.token_text import TokenText

TOKENIZER = tiny_models.tiny_tokenizer()
TEXT = TokenText(TOKENIZER)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_the_bytes_of_all_tokens_are_the_bytes_of_the_text(text):
    tokens = [token for token in TOKENIZER(text)["input_ids"] if token not in TOKENIZER.all_special_ids]
    if not any(name in text for name in tiny_models.SPECIAL_TOKENS):
        assert b"".join(map(TEXT.bytes_of, tokens)) == text.encode()
        assert TEXT.text(tokens) == text


def test_an_emoji_split_over_tokens_is_joined():
    tokens = TOKENIZER("🙂")["input_ids"]
    assert len(tokens) > 1, "this tokenizer has one token a byte here"
    assert TEXT.text(tokens) == "🙂"
    assert TEXT.text(tokens[:1]) == "\N{REPLACEMENT CHARACTER}"


def test_sentencepiece_spaces_and_byte_tokens():
    vocabulary = {"<unk>": 0, "▁the": 1, "<0xF0>": 2, "cat": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    text = TokenText(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"))
    assert text.bytes_of(1) == b" the"
    assert text.bytes_of(2) == b"\xf0"
    assert text.bytes_of(99) == b""
    assert text.is_special(0)


@given(st.text(max_size=60))
def test_nothing_printed_can_steer_the_terminal(text):
    shown = printable(text)
    assert len(shown) == len(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
