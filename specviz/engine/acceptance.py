"""Acceptance rules: how one target pass judges a proposal."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted` leading tokens of the proposal stand; the target's own next token is `target_tokens[accepted]`.

    `target_tokens` and `target_margins` have one entry per row of the pass (proposal length + 1); a margin is the
    target's top-1 minus top-2 logit in fp32 and says how near the row is to a tie.
    """

    accepted: int
    target_tokens: tuple[int, ...]
    target_margins: tuple[float, ...]


class GreedyRule:
    """Accept what equals the target's arg max: the output is that of greedy decoding (Leviathan et al. 2023)."""

    name = "greedy"
    claim = "lossless"

    def judge(self, logits: torch.Tensor, proposal: list[int]) -> Verdict:
        """Judge `proposal` (n tokens) by `logits` (n + 1 rows, fp32, full vocabulary). One host read."""
        best_two = logits.topk(2, dim=-1).values
        # float64 holds every token id and every fp32 margin exactly, so both travel to the host together
        packed = torch.stack((logits.argmax(-1).double(), (best_two[:, 0] - best_two[:, 1]).double()))
        tokens, margins = packed.tolist()
        tokens = [int(token) for token in tokens]
        accepted = 0
        while accepted < len(proposal) and proposal[accepted] == tokens[accepted]:
            accepted += 1
        return Verdict(accepted, tuple(tokens), tuple(margins))
