"""Teaching a draft to copy, the cheapest skill that pays.

Much of what a small target writes is copied: from a passage it was given, from the question, from its own last
sentence. Copying takes two kinds of attention head: one that looks at the previous token and, in a later layer, one
that looks for what followed the last time (an induction head, Olsson et al. 2022). A draft cut from early layers only
has none of the second kind, so the layers are chosen by measurement, and repeated spans keep the heads working
together although the layers between them are gone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from specviz.models.distill.texts import LabelledText


@torch.no_grad()
def attention_scores(target: PreTrainedModel, *, length: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """How strongly each layer copies: (layers,) induction and (layers,) previous-token scores.

    Both are read off a text of random tokens that is repeated once. Induction: attention from a token in the repeat
    to the token after its first occurrence, summed over heads above 0.1. Previous token: attention to the token
    before, of the strongest head.
    """
    rng = torch.Generator().manual_seed(seed)
    span = torch.randint(3, target.config.get_text_config().vocab_size, (4, length), generator=rng)
    ids = torch.cat([span, span], dim=1).to(target.device)
    implementation = target.config._attn_implementation
    target.set_attn_implementation("eager")
    try:
        attentions = target(input_ids=ids, output_attentions=True, use_cache=False).attentions
    finally:
        target.set_attn_implementation(implementation)
    repeat = torch.arange(length + 1, 2 * length, device=ids.device)
    induction, previous = [], []
    for attention in attentions:
        per_head = attention[:, :, repeat, repeat - length + 1].float().mean((0, 2))
        induction.append(float(per_head[per_head > 0.1].sum()))
        previous.append(float(attention[:, :, repeat, repeat - 1].float().mean((0, 2)).max()))
    return np.array(induction), np.array(previous)


def choose_layers(induction: Sequence[float], previous: Sequence[float], count: int) -> tuple[int, ...]:
    """`count` layers for a draft: the first two, those that copy, then further early ones.

    Those that copy are the layer with the strongest induction heads, the one before it (from the third layer on) with
    the strongest previous-token head, and the stronger in induction of its neighbours.
    """
    layers = len(induction)
    order = [0, 1]
    best = int(np.argmax(induction))
    if induction[best] > 0.1:
        order.append(best)
        if best > 2:
            order.append(2 + int(np.argmax(np.asarray(previous)[2:best])))
        order.append(max((i for i in (best - 1, best + 1) if 0 <= i < layers), key=lambda i: induction[i]))
    order += range(2, layers)
    return tuple(sorted(list(dict.fromkeys(order))[: min(count, layers)]))


def repeated_spans(
    texts: Sequence[LabelledText], head_tokens: Sequence[int], count: int, *, seed: int = 0
) -> list[LabelledText]:
    """Made-up texts in which a span of 8 to 48 tokens comes twice; its repeat, two tokens on, is labelled.

    Spans are cut from `texts` or drawn from `head_tokens`, commoner ones more often, so that neither sense nor habit
    helps and only copying does. No target is needed: the label is the token itself.
    """
    rng, tokens_rng = random.Random(seed), np.random.default_rng(seed)
    head = np.asarray(head_tokens)
    weights = np.arange(1, len(head) + 1) ** -0.3
    weights /= weights.sum()

    def cut(length: int) -> np.ndarray:
        ids = rng.choice(texts).ids
        start = rng.randrange(max(1, len(ids) - length))
        return ids[start : start + length]

    made = []
    for _ in range(count):
        length = rng.randint(8, 48)
        span = head[tokens_rng.choice(len(head), length, p=weights)] if rng.random() < 0.4 else cut(length)
        if len(span) < 3:
            continue
        before = [cut(rng.randint(0, 20)), span, cut(rng.randint(0, 40)), span[:2]]
        prompt, rest = np.concatenate(before), span[2:]
        top_ids = np.zeros((len(rest), texts[0].top_ids.shape[1]), np.int32)
        top_logp = np.full(top_ids.shape, -np.inf, np.float16)
        top_ids[:, 0], top_logp[:, 0] = rest, 0.0
        made.append(
            LabelledText(
                kind="repeat",
                mode="repeat",
                ids=np.concatenate([prompt, rest]).astype(np.int32),
                prompt_len=len(prompt),
                top_ids=top_ids,
                top_logp=top_logp,
                hidden=np.zeros((len(rest), 0), np.float16),
            )
        )
    return made
