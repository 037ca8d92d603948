"""The kind of position at which a token is drafted, from the text before it and the draft's most likely token.

Nothing here looks at what the target says, so a policy may use it while drafting.
"""

import base64
from collections.abc import Callable, Sequence

import numpy as np

from specviz.trace.recording import Recording

KINDS = (
    "code",  # within a fenced block
    "repeated",  # the last three tokens stood together before, in the prompt or the output
    "number",  # right after a digit
    "inside a word",  # after a letter, and the draft goes on with a letter
    "start of a sentence",  # after a full stop, question or exclamation mark or a line break
    "after punctuation",  # after any other mark
    "elsewhere",
)
CODE, REPEATED, NUMBER, INSIDE_WORD, SENTENCE_START, AFTER_PUNCTUATION, ELSEWHERE = range(len(KINDS))
REPEAT = 3  # tokens that make a repetition

# One byte says all that is needed of a token.
BLANK, LINE_BREAK, ENDS_SENTENCE, ENDS_PUNCTUATION, ENDS_DIGIT, ENDS_LETTER, GOES_ON, FENCE = (1 << i for i in range(8))
CLOSING = "\"'”’)]*_"


def token_flags(text: bytes) -> int:
    """The flags of one token."""
    characters = text.decode("utf-8", "replace")
    core = characters.strip()
    flags = LINE_BREAK if "\n" in characters else 0
    if not core:
        return flags | BLANK
    end = core.rstrip(CLOSING)[-1:] or core[-1]
    if end in ".!?…。":
        flags |= ENDS_SENTENCE
    elif not end.isalnum():
        flags |= ENDS_PUNCTUATION
    if not characters[-1].isspace():
        flags |= ENDS_DIGIT if characters[-1].isdigit() else ENDS_LETTER if characters[-1].isalpha() else 0
    if characters[0].isalpha():
        flags |= GOES_ON
    return flags | (FENCE if "```" in characters else 0)


def vocabulary_flags(bytes_of: Callable[[int], bytes], size: int) -> bytes:
    """The flags of the tokens 0 .. size - 1, one byte each."""
    return bytes(token_flags(bytes_of(token)) for token in range(size))


def flags_as_text(flags: bytes) -> str:
    """As a policy's settings keep them."""
    return base64.b64encode(flags).decode("ascii")


class ContextTracker:
    """Follows a text and tells the kind of the position after it, or after it and some drafted tokens.

    Args:
        flags: one byte a token; a token beyond them counts as a symbol that ends nothing.
    """

    def __init__(self, flags: bytes) -> None:
        self._flags = flags
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        """Forget everything, then read these."""
        self._tail: tuple[int, ...] = ()
        self._seen: set[tuple[int, ...]] = set()
        self._state = (False, SENTENCE_START, 0)  # in code, what the text before ended, flags of the last token
        self._draft = self._state, self._tail
        self.commit(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """Read tokens that now stand in the text."""
        for token in tokens:
            # What stands before a token has been seen to go on.
            if len(self._tail) == REPEAT:
                self._seen.add(self._tail)
            self._state, self._tail = self._after(self._state, self._tail, token)

    def kind_of_drafted(self, depth: int, token: int) -> int:
        """The kind of the position at which `token` is drafted, `depth` tokens after the text; then draft it.

        Depths must come in order, from 0.
        """
        if depth == 0:
            self._draft = self._state, self._tail
        kind = self._kind(*self._draft, token)
        self._draft = self._after(*self._draft, token)
        return kind

    def kind_of(self, token: int) -> int:
        """The kind of the position right after the text if `token` is drafted there."""
        return self._kind(self._state, self._tail, token)

    def _of(self, token: int) -> int:
        return self._flags[token] if 0 <= token < len(self._flags) else 0

    def _kind(self, state, tail, token) -> int:
        in_code, boundary, last = state
        if in_code:
            return CODE
        if len(tail) == REPEAT and tail in self._seen:
            return REPEATED
        if last & ENDS_DIGIT:
            return NUMBER
        if last & ENDS_LETTER and self._of(token) & GOES_ON:
            return INSIDE_WORD
        return boundary

    def _after(self, state, tail, token):
        in_code, boundary, _ = state
        flags = self._of(token)
        if flags & FENCE:
            in_code = not in_code
        if flags & (LINE_BREAK | ENDS_SENTENCE):
            boundary = SENTENCE_START
        elif not flags & BLANK:
            boundary = AFTER_PUNCTUATION if flags & ENDS_PUNCTUATION else ELSEWHERE
        return (in_code, boundary, flags), (*tail, token)[-REPEAT:]


def kinds_of_positions(recording: Recording, flags: bytes) -> np.ndarray:
    """(N,) index into `KINDS` of every output position, given the draft's token there."""
    tracker = ContextTracker(flags)
    tracker.begin(recording.prompt_ids.tolist())
    kinds = []
    for drafted, emitted in zip(recording.draft_token.tolist(), recording.output_ids.tolist(), strict=True):
        kinds.append(tracker.kind_of(drafted))
        tracker.commit((emitted,))
    return np.array(kinds)


def places_in_sentence(recording: Recording, flags: bytes) -> np.ndarray:
    """(N,) tokens since the last sentence began, 0 for its first token; a line break begins a sentence too."""
    places, place = [], 0
    known = np.frombuffer(flags, np.uint8)
    output = recording.output_ids
    inside = (output >= 0) & (output < len(known))
    ends = np.zeros(len(output), np.uint8)
    ends[inside] = known[output[inside]]
    for flag in ends.tolist():
        places.append(place)
        place = 0 if flag & (LINE_BREAK | ENDS_SENTENCE) else place + 1
    return np.array(places)
