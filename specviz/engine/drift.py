"""How far acceptance rules drift from the target, computed from both models' full distributions along a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specviz.engine.acceptance import of_one_size
from specviz.engine.engine import Engine, Settings
from specviz.replay.rules import AcceptanceRule, Coupled
from specviz.replay.sampling import Sampling

SCORED_ROWS = 32
PICTURE_TOKENS = 12


@dataclass(frozen=True)
class TextDrift:
    """Arrays along one text of N output positions; per rule, what it does where it judges a token drafted from q.

    confidence: (N,), the draft's highest probability; entropy: (N,), of the target in nats.
    accept: (R, N) for R rules, chance that the draft's token stands; kl, total_variation: (R, N), of the effective
    distribution from the target's; surprise: (R, N), the mean of -log p of the token that the text gets, in nats.
    ids: (N, K), the tokens likeliest to either model, and -1 in the last place for all others together; p, q,
    overlap (min of both), residual (positive part of p - q): (N, K), of these tokens.
    token_accept: (R, N, K), chance that each stands if drafted (of all others: on average); token_effective: (R, N, K),
    chance that it is what the text gets.
    """

    confidence: np.ndarray
    entropy: np.ndarray
    accept: np.ndarray
    kl: np.ndarray
    total_variation: np.ndarray
    surprise: np.ndarray
    ids: np.ndarray
    p: np.ndarray
    q: np.ndarray
    overlap: np.ndarray
    residual: np.ndarray
    token_accept: np.ndarray
    token_effective: np.ndarray


@torch.inference_mode()
def text_drift(
    engine: Engine, prompt_ids: list[int], output: Sequence[int], sampling: Sampling, rules: Sequence[AcceptanceRule]
) -> TextDrift:
    """Score `output`, a text that the target wrote after `prompt_ids`, under every rule."""
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in TextDrift.__dataclass_fields__}
    for p, q in distributions_along(engine, prompt_ids, output, sampling):
        best = torch.maximum(p, q).topk(min(PICTURE_TOKENS, p.shape[-1]), -1).indices
        log_p = p.clip(1e-38).log()
        columns = {
            "confidence": q.max(-1).values,
            "entropy": torch.special.entr(p).sum(-1),
            "ids": torch.cat((best, torch.full_like(best[:, :1], -1)), 1),
            "p": _shares(p, best),
            "q": _shares(q, best),
            "overlap": _shares(torch.minimum(p, q), best),
            "residual": _shares((p - q).clip(0), best),
        }
        of_rules = [_of_rule(rule, p, q, log_p, best) for rule in rules]
        columns |= {name: torch.stack([found[name] for found in of_rules], 1) for name in of_rules[0]}
        for name, column in columns.items():
            blocks[name].append(column.cpu().numpy())
    whole = {name: np.concatenate(parts) for name, parts in blocks.items()}
    return TextDrift(
        **{name: values.swapaxes(0, 1) if name in of_rules[0] else values for name, values in whole.items()}
    )


def distributions_along(
    engine: Engine, prompt_ids: list[int], output: Sequence[int], sampling: Sampling
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (p, q), both (rows, V) after `sampling`, for one stretch of output positions after the other."""
    rule = engine.rule_at_work(Settings(sampling=sampling, max_new_tokens=len(output)), prompt_ids)
    target, draft = engine.target_runner.fork(None, eager=True), engine.scoring_draft
    for runner in (target, draft):
        runner.begin(len(prompt_ids) + len(output))
        runner.prefill(prompt_ids[:-1])
    text = [*prompt_ids, *output]
    for first in range(0, len(output), SCORED_ROWS):
        last = min(first + SCORED_ROWS, len(output))
        fed = text[len(prompt_ids) + first - 1 : len(prompt_ids) + last - 1]
        contexts = [text[: len(prompt_ids) + position] for position in range(first, last)]
        p = rule.target_distributions(target.logits(target.forward(fed)), contexts).softmax(-1)
        q = rule.draft_distributions(draft.logits(draft.forward(fed)), contexts).softmax(-1)
        yield of_one_size(p, draft.head.by_token(q))


def _of_rule(
    rule: AcceptanceRule, p: torch.Tensor, q: torch.Tensor, log_p: torch.Tensor, best: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The rule's columns of `TextDrift`, one row a position."""
    if isinstance(rule, Coupled):  # its acceptance is computed in numpy
        accept = torch.tensor(rule.accept(p.double().cpu().numpy(), q.double().cpu().numpy()), device=p.device).float()
    else:
        accept = rule.accept(p, q)
    drafted, effective = rule.drafted(q), rule.effective(p, q)
    stands = drafted * accept
    kl = (effective * (effective.clip(1e-38).log() - log_p)).sum(-1).clip(0)
    chances, others = accept.gather(-1, best), _shares(drafted, best)[:, -1:]
    average = torch.where(others > 0, _shares(stands, best)[:, -1:] / others.clip(1e-38), torch.zeros_like(others))
    return {
        "accept": stands.sum(-1),
        "kl": kl,
        "total_variation": 0.5 * (effective - p).abs().sum(-1),
        "surprise": -(effective * log_p).sum(-1),
        "token_accept": torch.cat((chances, average.clip(0, 1)), -1),
        "token_effective": _shares(effective, best),
    }


def _shares(values: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """(rows, k + 1) of values (rows, V): those of the tokens `best` (rows, k), and the sum of all others."""
    chosen = values.gather(-1, best)
    others = values.scatter(-1, best, 0).sum(-1, keepdim=True)
    return torch.cat((chosen, others), -1)
