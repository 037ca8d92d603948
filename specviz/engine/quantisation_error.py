"""How far a model at one precision has moved from itself at another: both read the same texts, position by position.

Each text is read in one pass without a cache, so that what is compared is what the two precisions make of it and not
how the text was cut into passes (to LLM.int8 that matters, Dettmers et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specviz.engine.decoding import never
from specviz.engine.heads import OutputHead
from specviz.models.loading import LoadedModel
from specviz.trace import Recording

ROWS_AT_ONCE = 64  # rows whose full-vocabulary logits are in memory at once


@dataclass(frozen=True, eq=False)
class TextError:
    """What a model says along one output of N tokens, beside the reference. Read at each position with the text so far.

    token: (N,) int32, its most likely token; reference_token: the reference's.
    divergence: (N,) float64, nats: Kullback-Leibler divergence of its next-token distribution from the reference's,
        sum of p log(p / q) with p the reference's.
    log_prob: (N,) float64, its log probability of the text's token, NaN where its head has no such token;
        reference_log_prob: the reference's.
    reference_margin: (N,) float64, the reference's top-1 minus top-2 logit.
    """

    prompt_id: str
    token: np.ndarray
    reference_token: np.ndarray
    divergence: np.ndarray
    log_prob: np.ndarray
    reference_log_prob: np.ndarray
    reference_margin: np.ndarray


def text_errors(
    models: Sequence[LoadedModel],
    reference: LoadedModel,
    texts: Sequence[Recording],
    *,
    stopped: Callable[[], bool] = never,
    progress: Callable[[float], None] = lambda share: None,
) -> list[list[TextError]] | None:
    """Let models and reference read every recording's prompt and output: a list for each model; None if stopped.

    Args:
        models: any precisions of the model that `reference` is, itself among them or not; all have the same output
            head rows.
    """
    heads, reference_head = [OutputHead(loaded.model) for loaded in models], OutputHead(reference.model)
    errors: list[list[TextError]] = [[] for _ in models]
    for number, text in enumerate(texts):
        read = _hidden(reference, text)
        for place, loaded in enumerate(models):
            if stopped():
                return None
            progress((number * len(models) + place) / (len(texts) * len(models)))
            hidden = read if loaded is reference else _hidden(loaded, text)
            errors[place].append(_text_error((heads[place], reference_head), (hidden, read), text))
    return errors


@torch.inference_mode()
def _text_error(
    heads: tuple[OutputHead, OutputHead], hidden: tuple[torch.Tensor, torch.Tensor], text: Recording
) -> TextError:
    """Of what a model read, beside what the reference read."""
    output = text.output_ids.tolist()
    rows = [heads[1].row_of(token) for token in output]
    found = []
    for first in range(0, len(output), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        ours, theirs = (head(states[part]) for head, states in zip(heads, hidden, strict=True))
        q, p = ours.double().log_softmax(-1), theirs.double().log_softmax(-1)
        best = theirs.topk(2, dim=-1)
        wanted = torch.tensor([-1 if row is None else row for row in rows[part]], device=q.device)[:, None]
        own, reference_own = (
            torch.where(wanted < 0, torch.nan, table.gather(1, wanted.clamp(min=0))) for table in (q, p)
        )
        columns = (
            ours.argmax(-1).double(),
            best.indices[:, 0].double(),
            (p.exp() * (p - q)).sum(-1),
            own[:, 0],
            reference_own[:, 0],
            (best.values[:, 0] - best.values[:, 1]).double(),
        )
        found.append(torch.stack(columns).cpu().numpy())
    token, reference_token, *rest = np.concatenate(found, axis=1)
    ids = [np.array([heads[1].token_of(int(row)) for row in rows], np.int32) for rows in (token, reference_token)]
    return TextError(text.prompt_id, *ids, *rest)


@torch.inference_mode()
def _hidden(loaded: LoadedModel, text: Recording) -> torch.Tensor:
    """Hidden states (N, d) of the last layer, after its norm, that say the next token at each output position."""
    prompt, output = text.prompt_ids.tolist(), text.output_ids.tolist()
    tokens = torch.tensor([prompt + output[:-1]], device=loaded.model.device)
    return loaded.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0, len(prompt) - 1 :]
