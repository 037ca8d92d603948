"""Whether a draft can draft for a target, decided from tokenizers and configurations, before any weights load.

The draft only ever sees ids that the target's tokenizer made, so every id must mean the same token to both. Padding
embeddings to different numbers of rows is fine; so are tokens at the end that only one of them knows.
"""

from __future__ import annotations

from typing import Any

from specviz.errors import SpecVizError
from specviz.models.sources import ModelSource

TEST_STRINGS = (
    "The quick brown fox jumps over the lazy dog.",
    "Numbers 0 7 42 1234567890 3.14159 and 1,000,000",
    "def f(x):\n    return [i ** 2 for i in range(x)]  # squares\n",
    "Ünïcödé, ελληνικά, русский, עברית, 日本語, 한국어 and 👩‍🔬🎉",
    "  leading, trailing   and\t\tinner spaces\r\n\n\n",
    "Don't STOP; it's \"quoted\" <b>markup</b> & http://example.org/a?b=c#d",
)


def check_pair(target: ModelSource, draft: ModelSource) -> tuple[str, ...]:
    """Check that both tokenizers mean the same; returns sentences about harmless differences worth knowing.

    Raises SpecVizError, with an example, when an id or a string means different things to the two.
    """
    target_tokens, draft_tokens = _token_of_id(target.tokenizer), _token_of_id(draft.tokenizer)
    _check_test_strings(target, draft)
    shared = target_tokens.keys() & draft_tokens.keys()
    different = sorted(i for i in shared if target_tokens[i] != draft_tokens[i])
    if different:
        first = different[0]
        raise SpecVizError(
            f"{draft.name} cannot draft for {target.name}: {len(different):,} of {len(shared):,} token ids differ, "
            f"such as {first}, which is {draft_tokens[first]!r} to the draft, {target_tokens[first]!r} to the target; "
            "choose a draft of the target's own family."
        )
    only_target = sorted(target_tokens.keys() - draft_tokens.keys())
    if len(only_target) > 0.01 * len(target_tokens):
        raise SpecVizError(
            f"{draft.name} cannot draft for {target.name}: it lacks {len(only_target):,} of the target's "
            f"{len(target_tokens):,} tokens, such as {target_tokens[only_target[0]]!r}; "
            "choose a draft of the target's own family."
        )
    rows = draft.config.get_text_config().vocab_size
    highest = max(shared, default=-1)
    if highest >= rows:
        raise SpecVizError(
            f"{draft.name} cannot draft: its tokenizer knows the token id {highest}, but its embedding has only "
            f"{rows:,} rows; its files do not belong together."
        )
    return tuple(_differences(target, draft, only_target, target_tokens))


def check_draft_fits(max_draft: int, max_context: int, name: str) -> None:
    """Refuse a draft length that no text of this pair has room for.

    Args:
        max_context: tokens that the context of the pair called `name` holds.
    """
    if max_draft >= max_context:
        raise SpecVizError(
            f"The draft length is {max_draft:,}, but the context of {name} holds {max_context:,} tokens; "
            f"give a draft length of at most {max_context - 1:,}."
        )


def check_shared_embedding(target: ModelSource, draft: ModelSource) -> None:
    """Check that a draft without embedding of its own was made for a target of this shape."""
    shapes = [(c.vocab_size, c.hidden_size) for c in (target.config.get_text_config(), draft.config)]
    if shapes[0] != shapes[1]:
        raise SpecVizError(
            f"{draft.name} was made for a target with an embedding of {shapes[1][0]:,} x {shapes[1][1]}, but that of "
            f"{target.name} is {shapes[0][0]:,} x {shapes[0][1]}: choose the target named in the draft's card."
        )


def _token_of_id(tokenizer: Any) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}


def _check_test_strings(target: ModelSource, draft: ModelSource) -> None:
    for text in TEST_STRINGS:
        ours = target.tokenizer(text, add_special_tokens=False)["input_ids"]
        theirs = draft.tokenizer(text, add_special_tokens=False)["input_ids"]
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            example = target.tokenizer.decode(ours[: at + 3])[-40:] or text[:40]
            raise SpecVizError(
                f"{draft.name} cannot draft for {target.name}: their tokenizers differ, such as at {example!r} "
                f"({len(theirs)} tokens to the draft, {len(ours)} to the target for the same sentence); "
                "choose a draft of the target's own family."
            )


def _differences(target: ModelSource, draft: ModelSource, only_target: list[int], tokens: dict[int, str]) -> list[str]:
    """Sentences about what differs without harm to the output."""
    sentences = []
    if only_target:
        sentences.append(
            f"The draft lacks {len(only_target):,} of the target's tokens, such as {tokens[only_target[0]]!r}, "
            "and so never proposes them."
        )
    ends = [source.tokenizer.eos_token for source in (target, draft)]
    if ends[0] != ends[1]:
        sentences.append(f"The target ends a text with {ends[0]!r}, the draft with {ends[1]!r}; the target decides.")
    templates = [source.tokenizer.chat_template for source in (target, draft)]
    if templates[0] and not templates[1]:
        sentences.append(
            "Only the target has a chat template: the draft was not trained for chat and will agree less often; "
            "an instruct draft would do better."
        )
    elif templates[1] and not templates[0]:
        sentences.append(
            "Only the draft has a chat template: the target continues raw text, for which the draft was not trained."
        )
    elif templates[0] != templates[1]:
        sentences.append("The chat templates differ; both models are prompted with the target's.")
    return sentences
