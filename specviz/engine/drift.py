"""How far acceptance rules drift from the target, computed from both models' full distributions along a text."""

from __future__ import annotations

from collections.abc import Sequence
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
    top_ids, top_p, top_q: (N, k), the tokens likeliest to either model.
    """

    confidence: np.ndarray
    entropy: np.ndarray
    accept: np.ndarray
    kl: np.ndarray
    total_variation: np.ndarray
    surprise: np.ndarray
    top_ids: np.ndarray
    top_p: np.ndarray
    top_q: np.ndarray


@torch.inference_mode()
def text_drift(
    engine: Engine, prompt_ids: list[int], output: Sequence[int], sampling: Sampling, rules: Sequence[AcceptanceRule]
) -> TextDrift:
    """Score `output`, a text that the target wrote after `prompt_ids`, under every rule."""
    blocks = []
    for p, q in distributions_along(engine, prompt_ids, output, sampling):
        entropy = torch.special.entr(p).sum(-1)
        log_p = p.clip(1e-38).log()
        confidence = q.max(-1).values
        per_rule = [_of_rule(rule, p, q, log_p) for rule in rules]
        top_ids = torch.maximum(p, q).topk(min(PICTURE_TOKENS, p.shape[-1]), -1).indices
        columns = [confidence, entropy, torch.stack(per_rule), top_ids, p.gather(-1, top_ids), q.gather(-1, top_ids)]
        blocks.append([column.cpu().numpy() for column in columns])
    confidence, entropy, rows, *tops = zip(*blocks, strict=True)
    accept, kl, distance, surprise = np.concatenate(rows, -1).transpose(1, 0, 2)
    return TextDrift(
        np.concatenate(confidence), np.concatenate(entropy), accept, kl, distance, surprise, *map(np.concatenate, tops)
    )


def distributions_along(engine: Engine, prompt_ids: list[int], output: Sequence[int], sampling: Sampling):
    """Yield (p, q), both (rows, V) after `sampling`, for one stretch of output positions after the other."""
    rule = engine.rule_at_work(Settings(sampling=sampling))
    target, draft = engine.target_runner.fork(None), engine.scoring_draft
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


def _of_rule(rule: AcceptanceRule, p: torch.Tensor, q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """(4, rows): acceptance, KL, total variation, surprise."""
    if isinstance(rule, Coupled):  # its acceptance is computed in numpy
        rate = torch.tensor(rule.acceptance_rate(p.double().cpu().numpy(), q.double().cpu().numpy()), device=p.device)
    else:
        rate = rule.acceptance_rate(p, q)
    effective = rule.effective(p, q)
    log_ratio = effective.clip(1e-38).log() - log_p
    kl = (effective * log_ratio).sum(-1).clip(0)
    distance = 0.5 * (effective - p).abs().sum(-1)
    return torch.stack([rate.float(), kl, distance, -(effective * log_p).sum(-1)])
