"""Small pairs whose distributions are known, and many speculative generations on them at once.

A pair is two tables: the next-token distribution of target and draft after any two tokens. Generations follow the
rounds of DESIGN.md and use the engine's own judgement (`judge_by_chance`), noise and draws, over thousands of seeds at
a time; a generation is token for token the one that the engine's loop makes with that seed (tested).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specviz.engine.acceptance import ACCEPTANCE, DRAFT_DRAW, OWN_TOKEN, POSITION_NOISE, judge_by_chance
from specviz.engine.noise import draw, gumbel, states, uniform
from specviz.replay.rules import LIKELIEST, SHARED_NOISE, AcceptanceRule

PROMPT = (0, 1)


@dataclass(frozen=True)
class ToyPair:
    """target, draft: (V, V, V) float32, [a, b] is the distribution of what follows the tokens a, b."""

    target: torch.Tensor
    draft: torch.Tensor

    @property
    def vocabulary(self) -> int:
        return self.target.shape[-1]

    def exact_joint(self, tokens: int = 3) -> torch.Tensor:
        """The target's distribution of the first `tokens` tokens after the prompt, float64 of shape (V,) * tokens."""
        v = self.vocabulary
        joint = self.target[PROMPT].double()
        for place in range(1, tokens):
            before = torch.arange(v) if place > 1 else torch.tensor(PROMPT[1])
            following = self.target.double()[before]  # (V, V) or (V, V, V): after `before` and the last token
            joint = joint[..., None] * following
        return joint


def toy_pair(seed: int, vocabulary: int, likeness: float = 0.7, zeros: bool = True) -> ToyPair:
    """A random pair of peaked distributions; the draft's are the target's, mixed with noise by 1 - `likeness`.

    zeros: whether each model gives some tokens no probability at all, the draft one token everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (vocabulary,) * 3
    target = 2.5 * torch.randn(shape, generator=generator)
    draft = likeness * target + (1 - likeness) * 4 * torch.randn(shape, generator=generator)
    if zeros:
        target = target.masked_fill(torch.rand(shape, generator=generator) < 0.1, -torch.inf)
        draft = draft.masked_fill(torch.rand(shape, generator=generator) < 0.1, -torch.inf)
        draft[..., vocabulary - 1] = -torch.inf
        best = (target.argmax(-1, keepdim=True), draft.argmax(-1, keepdim=True))
        target, draft = target.scatter(-1, best[0], 4.0), draft.scatter(-1, best[1], 4.0)
    return ToyPair(target.softmax(-1), draft.softmax(-1))


@dataclass(frozen=True)
class Generations:
    """tokens: (B, 3) or more, the first tokens after the prompt; the rest are sums over rounds and generations."""

    tokens: torch.Tensor
    rounds: int
    proposed: int
    accepted: int


class Simulation:
    """Speculative generations on a toy pair.

    Args:
        rule: how proposals are judged.
        threshold, max_draft: of the draft phase; the token that fails is withheld.
        drawn_token_decides: stop by the drawn token's own probability instead of the draft's highest one. Not lossless
            for rules that draw, unless the token is kept.
        keep: propose the token that fails, then stop.
    """

    def __init__(
        self,
        pair: ToyPair,
        rule: AcceptanceRule,
        threshold: float,
        max_draft: int,
        *,
        drawn_token_decides: bool = False,
        keep: bool = False,
    ):
        self.pair, self.rule, self.threshold, self.max_draft = pair, rule, threshold, max_draft
        self.drawn_token_decides, self.keep = drawn_token_decides, keep

    def run(self, seeds: torch.Tensor, tokens: int = 3) -> Generations:
        """One generation per seed (B,), each until it has at least `tokens` tokens."""
        number, width = len(seeds), len(PROMPT) + tokens + self.max_draft + 1
        text = torch.zeros((number, width + self.max_draft + 1), dtype=torch.int64)
        text[:, : len(PROMPT)] = torch.tensor(PROMPT)
        length = torch.full((number,), len(PROMPT))
        rounds = proposed = accepted_in_all = 0
        while (unfinished := length < len(PROMPT) + tokens).any():
            draft_text = text.clone()
            q, proposal_length = self.draft_phase(draft_text, length, seeds, rounds)
            proposal = self.window(draft_text, length, self.max_draft)
            p = self.target_pass(draft_text, length)
            accepted, own = self.judge(p, q, proposal, proposal_length, length, seeds, rounds)
            kept = torch.arange(self.max_draft) < accepted[:, None]
            committed = self.window_index(length, self.max_draft)
            text = torch.where(
                unfinished[:, None], text.scatter(1, committed, torch.where(kept, proposal, 0)), text
            ).scatter(1, (length + accepted)[:, None], own[:, None])
            self.after_round(text, length, accepted, proposal, proposal_length)
            rounds += 1
            proposed += int(proposal_length[unfinished].sum())
            accepted_in_all += int(accepted[unfinished].sum())
            length = torch.where(unfinished, length + accepted + 1, length)
        return Generations(text[:, len(PROMPT) : len(PROMPT) + tokens], rounds, proposed, accepted_in_all)

    def draft_phase(self, text, length, seeds, number) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the proposal behind `length`; the draft's distributions (B, n, V) and proposal lengths (B,)."""
        drafting = torch.ones(len(seeds), dtype=torch.bool)
        proposal_length = torch.zeros_like(length)
        distributions = []
        for step in range(self.max_draft):
            at = length + step
            q = self.pair.draft[self.token_before(text, at, 2), self.token_before(text, at, 1)]
            if self.rule.draft_takes == LIKELIEST:
                token = q.argmax(-1)
            elif self.rule.draft_takes == SHARED_NOISE:
                token = (q.log() + self.position_noise(seeds, at)).argmax(-1)
            else:
                token = draw(q, uniform(seeds, DRAFT_DRAW, number, step))
            chance = q.gather(-1, token[:, None])[:, 0] if self.drawn_token_decides else q.max(-1).values
            fails = chance <= self.threshold
            proposed = drafting & (~fails | self.keep)
            proposal_length = proposal_length + proposed
            drafting = drafting & ~fails
            text.scatter_(1, at[:, None], token[:, None])
            distributions.append(q)
        return torch.stack(distributions, 1), proposal_length

    def target_pass(self, text, length) -> torch.Tensor:
        """The target's distributions (B, n + 1, V) after the text and after each proposed token."""
        rows = [length + step for step in range(self.max_draft + 1)]
        first = torch.stack([self.token_before(text, at, 2) for at in rows], 1)
        second = torch.stack([self.token_before(text, at, 1) for at in rows], 1)
        return self.pair.target[first, second]

    def judge(self, p, q, proposal, proposal_length, length, seeds, number) -> tuple[torch.Tensor, torch.Tensor]:
        """Accepted run and the target's own token, (B,) each."""
        if self.rule.fixed_output:
            rows = [self.position_noise(seeds, length + step) for step in range(self.max_draft + 1)]
            tokens = (p.log() + torch.stack(rows, 1)).argmax(-1)
            counts = torch.arange(self.max_draft) < proposal_length[:, None]
            accepted = ((tokens[:, :-1] == proposal) & counts).long().cumprod(-1).sum(-1)
            return accepted, tokens.gather(1, accepted[:, None])[:, 0]
        steps = torch.arange(self.max_draft)
        decisions = uniform(seeds[:, None], ACCEPTANCE, number, steps[None])
        own = uniform(seeds, OWN_TOKEN, number, 0)
        return judge_by_chance(self.rule, p, q, proposal, proposal_length, torch.cat((decisions, own[:, None]), 1))

    def after_round(self, text, length, accepted, proposal, proposal_length) -> None:
        """Nothing to do where caches are rolled back."""

    def token_before(self, text, at, back: int) -> torch.Tensor:
        """The token `back` places before each `at`, as the models see it."""
        return text.gather(1, (at - back)[:, None])[:, 0]

    def position_noise(self, seeds, at) -> torch.Tensor:
        return gumbel(states(seeds, POSITION_NOISE, at), torch.arange(self.pair.vocabulary))

    @staticmethod
    def window_index(length, n: int) -> torch.Tensor:
        return length[:, None] + torch.arange(n)

    def window(self, text, length, n: int) -> torch.Tensor:
        """The n tokens from each `length` on, (B, n)."""
        return text.gather(1, self.window_index(length, n))


def outcome_counts(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """How often each outcome was drawn: (B, k) tokens give int64 of shape (V,) * k."""
    index = torch.zeros(len(tokens), dtype=torch.int64)
    for place in range(tokens.shape[1]):
        index = index * vocabulary + tokens[:, place]
    return torch.bincount(index, minlength=vocabulary ** tokens.shape[1]).reshape((vocabulary,) * tokens.shape[1])
