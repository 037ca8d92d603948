"""Acceptance rules at work: what the draft proposes and how one target pass judges it.

The mathematics of the rules is in `specviz.replay.rules`. An object here serves one generation; `rule_at_work` makes
the one that settings ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn.functional import pad

from specviz.engine.distributions import distribution_statistics
from specviz.engine.heads import OutputHead
from specviz.engine.noise import draw, gumbel, states, uniform
from specviz.engine.processing import Processing
from specviz.replay.rules import SHARED_NOISE, AcceptanceRule, Greedy

NAN = float("nan")
DRAFT_DRAW, ACCEPTANCE, OWN_TOKEN = 1, 2, 3  # streams of random numbers
POSITION_NOISE, REJECTED_DRAW, BRANCH_DRAW = 4, 5, 6
NOISE_KEPT = 32  # positions
STEPS_AT_ONCE = 16  # of a round, whose random numbers are made together: each by itself takes as long


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted` leading tokens of the proposal stand; the target's own next token is `target_tokens[accepted]`.

    `target_tokens` and `target_margins` have an entry for each row of the pass (proposal length + 1), or, where
    tokens are drawn, for the first `accepted` + 1 of them. A margin says in fp32 how near the row is to a tie: the
    target's top-1 minus top-2 logit, noise included; it is NaN where tokens are drawn.
    """

    accepted: int
    target_tokens: tuple[int, ...]
    target_margins: tuple[float, ...]


class GreedyRule:
    """Accept what equals the target's arg max: the output is that of greedy decoding (Leviathan et al. 2023)."""

    def draft(self, logits: torch.Tensor, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """The draft's rows and its distribution's statistics, (n, 4) as in `distribution_statistics`.

        Args:
            logits: (n, rows) fp32, of the draft.
            contexts: the n texts that the rows continue, prompt included.
        """
        return distribution_statistics(logits)

    def judge(self, logits: torch.Tensor, proposal: list[int], text: Sequence[int] = ()) -> Verdict:
        """Judge `proposal` (n tokens) by `logits` (n + 1 rows, fp32, full vocabulary). One host read.

        Args:
            text: what the proposal continues, prompt included.
        """
        best_two = logits.topk(2, dim=-1).values
        # float64 holds every token id and every fp32 margin exactly, so both travel to the host together
        packed = torch.stack((logits.argmax(-1).double(), (best_two[:, 0] - best_two[:, 1]).double()))
        tokens, margins = packed.tolist()
        tokens = [int(token) for token in tokens]
        accepted = 0
        while accepted < len(proposal) and proposal[accepted] == tokens[accepted]:
            accepted += 1
        return Verdict(accepted, tuple(tokens), tuple(margins))

    def along(
        self,
        logits: torch.Tensor,
        contexts: Sequence[Sequence[int]],
        target_logits: Callable[[], torch.Tensor],
        emitted: Sequence[int],
    ) -> torch.Tensor:
        """What a recording holds of the draft along the finished text: as `draft`, but given the tokens emitted.

        Where tokens are drawn, the draft's row is the emitted token's if it could not have been rejected, and else a
        draw of what would have been rejected in its favour (see `specviz.replay.expected`).

        Args:
            target_logits: gives the target's (n, V) fp32 logits at the same places.
            emitted: the n tokens that the text goes on with.
        """
        return self.draft(logits, contexts)

    def branch(self, logits: torch.Tensor, contexts: Sequence[Sequence[int]], starts: Sequence[int]) -> torch.Tensor:
        """As `draft`, on branches that left the text at the positions `starts` (prompt included)."""
        return self.draft(logits, contexts)

    def target_distributions(self, logits: torch.Tensor, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Processed target logits (n, V) of rows that continue `contexts`."""
        return logits

    def draft_distributions(self, logits: torch.Tensor, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Processed draft logits (n, rows) of rows that continue `contexts`."""
        return logits


class ProcessedGreedyRule(GreedyRule):
    """Greedy decoding from processed logits, such as under a repetition penalty."""

    def __init__(self, target: Processing, draft: Processing):
        self.target_distributions, self.draft_distributions = target, draft

    def draft(self, logits, contexts):
        return super().draft(self.draft_distributions(logits, contexts), contexts)

    def judge(self, logits, proposal, text=()):
        return super().judge(self.target_distributions(logits, contexts_of(text, proposal)), proposal, text)


class FixedNoiseRule(ProcessedGreedyRule):
    """`coupled` and `target_sample_match`: the target's token at a position is the arg max of its log-probabilities
    plus Gumbel noise that belongs to seed and position, so it is a draw that no proposal influences.

    Args:
        draft_head: of the draft, which may cover a reduced vocabulary; None stands for one row a token.
        vocabulary: number of token ids, of whichever model has more.
        shared: whether the draft adds the same noise (`coupled`) or takes its likeliest token.
    """

    def __init__(
        self,
        target: Processing,
        draft: Processing,
        *,
        draft_head: OutputHead | None,
        vocabulary: int,
        seed: int,
        shared: bool,
    ):
        super().__init__(target, draft)
        self._head = draft_head
        self._vocabulary, self._seed, self._shared = vocabulary, seed, shared
        self._noise_at = lru_cache(NOISE_KEPT)(self._make_noise)  # a draft step and the target's pass want the same

    def draft(self, logits, contexts):
        processed = self.draft_distributions(logits, contexts)
        statistics = distribution_statistics(processed)
        if self._shared:
            noise = self._noise(contexts, logits.device)
            noise = noise[:, : logits.shape[-1]] if self._head is None else self._head.by_row(noise)
            statistics[:, 0] = (processed + noise).argmax(-1)
        return statistics

    def judge(self, logits, proposal, text=()):
        contexts = contexts_of(text, proposal)
        noise = self._noise(contexts, logits.device)[:, : logits.shape[-1]]
        return GreedyRule.judge(self, self.target_distributions(logits, contexts) + noise, proposal)

    def _noise(self, contexts: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
        return torch.stack([self._noise_at(len(context), device) for context in contexts])

    def _make_noise(self, position: int, device: torch.device) -> torch.Tensor:
        state = states(self._seed, POSITION_NOISE, position).to(device)
        return gumbel(state, torch.arange(self._vocabulary, device=device))


class DrawnRule(ProcessedGreedyRule):
    """`rejection` and the lossy rules: the draft draws from its own distribution, and chance decides what stands.

    Every number drawn belongs to the seed, the round and the step, so nothing is drawn twice.
    """

    def __init__(
        self, rule: AcceptanceRule, target: Processing, draft: Processing, *, draft_head: OutputHead | None, seed: int
    ):
        super().__init__(target, draft)
        self._rule, self._head, self._seed = rule, draft_head, seed
        self._round = 0
        self._numbers = lru_cache(2)(self._make_numbers)
        self._drafted: list[torch.Tensor] = []  # the draft's distributions of this round, (1, rows) each

    def draft(self, logits, contexts):
        block, place = divmod(len(self._drafted), STEPS_AT_ONCE)
        statistics, probabilities = self._drawn(logits, contexts, self._numbers(self._round, block)[0, place])
        self._drafted.append(probabilities)
        return statistics

    def judge(self, logits, proposal, text=()):
        length = len(proposal)
        p = self.target_distributions(logits, contexts_of(text, proposal)).softmax(-1)
        q = torch.cat(self._drafted[:length]) if length else p[:0]
        if length and self._head is not None:
            q = self._head.by_token(q)
        p, q = of_one_size(p, q)
        blocks = [self._numbers(self._round, block) for block in range(1 + length // STEPS_AT_ONCE)]
        decisions = torch.cat([block[1] for block in blocks])[:length]
        numbers = torch.cat((decisions, blocks[0][2, :1])).to(p.device)
        tokens = torch.tensor([proposal], device=p.device, dtype=torch.int64)
        lengths = torch.tensor([length], device=p.device)
        accepted, own = torch.stack(judge_by_chance(self._rule, p[None], q[None], tokens, lengths, numbers[None]))[
            :, 0
        ].tolist()
        self._drafted, self._round = [], self._round + 1
        return Verdict(accepted, (*proposal[:accepted], own), (NAN,) * (accepted + 1))

    def along(self, logits, contexts, target_logits, emitted):
        p = self.target_distributions(target_logits(), contexts).softmax(-1)
        positions = torch.tensor([len(context) for context in contexts])
        statistics, q = self._drawn(logits, contexts, torch.zeros(len(contexts)))
        tokens = q.shape[-1] if self._head is None else self._head.vocabulary
        p = pad(p, (0, max(0, tokens - p.shape[-1])))
        p_rows = p[:, :tokens] if self._head is None else self._head.by_row(p)
        wrong = draw((q - p_rows).clip(0), uniform(self._seed, REJECTED_DRAW, positions))
        for at, token in enumerate(emitted):
            row = token if self._head is None else self._head.row_of(token)
            stands = row is not None and row < q.shape[-1] and q[at, row] >= p_rows[at, row]
            statistics[at, 0] = row if stands else wrong[at]
        return statistics

    def branch(self, logits, contexts, starts):
        places = torch.tensor([(start, len(context)) for start, context in zip(starts, contexts, strict=True)])
        return self._drawn(logits, contexts, uniform(self._seed, BRANCH_DRAW, places[:, 0], places[:, 1]))[0]

    def _make_numbers(self, round_number: int, block: int) -> torch.Tensor:
        """For draws, decisions and the target's own token (rows), at the steps of one block of a round (columns)."""
        streams = torch.tensor([[DRAFT_DRAW], [ACCEPTANCE], [OWN_TOKEN]])
        return uniform(self._seed, streams, round_number, block * STEPS_AT_ONCE + torch.arange(STEPS_AT_ONCE))

    def _drawn(self, logits, contexts, numbers) -> tuple[torch.Tensor, torch.Tensor]:
        """Statistics with a drawn row in front, and the distribution drawn from."""
        processed = self.draft_distributions(logits, contexts)
        statistics = distribution_statistics(processed)
        probabilities = processed.softmax(-1)
        statistics[:, 0] = draw(probabilities, numbers.reshape(len(contexts)))
        return statistics, probabilities


def judge_by_chance(
    rule: AcceptanceRule,
    p: torch.Tensor,
    q: torch.Tensor,
    proposal: torch.Tensor,
    lengths: torch.Tensor,
    numbers: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Judge B proposals of up to n tokens, each by itself, without reading anything back.

    Args:
        p: (B, n + 1, V), the target's distribution at each proposed token and after the last.
        q: (B, n, V), the draft's at each proposed token.
        proposal: (B, n) token ids; lengths: (B,), how many of them count.
        numbers: (B, n + 1) in [0, 1): one for each decision, the last for the target's own token.

    Returns:
        Lengths of the accepted runs and the target's own tokens, (B,) each.
    """
    n = proposal.shape[1]
    chances = rule.chance(p[:, :n], q, proposal)
    counts = torch.arange(n, device=p.device) < lengths[:, None]
    accepted = ((numbers[:, :n] < chances) & counts).long().cumprod(-1).sum(-1)
    own = _row(p, accepted)
    if n:
        after = rule.after(own, _row(q, accepted.clamp(max=n - 1)))
        own = torch.where((accepted < lengths)[:, None], after, own)
    return accepted, draw(own, numbers[:, n])


def _row(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Row `row[b]` of each values[b]: (B, n, V) and (B,) give (B, V)."""
    return values.gather(1, row[:, None, None].expand(-1, 1, values.shape[-1]))[:, 0]


def of_one_size(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both distributions over as many tokens as the larger has; tokens a model does not know have probability 0."""
    size = max(p.shape[-1], q.shape[-1])
    return tuple(x if x.shape[-1] == size else pad(x, (0, size - x.shape[-1])) for x in (p, q))


def contexts_of(text: Sequence[int], proposal: Sequence[int]) -> list[list[int]]:
    """What each row of a target pass continues: the text, then the text with one more proposed token, and so on."""
    whole = [*text, *proposal]
    return [whole[: len(text) + taken] for taken in range(len(proposal) + 1)]


def rule_at_work(
    rule: AcceptanceRule,
    seed: int,
    target: Processing,
    draft: Processing,
    target_head: OutputHead,
    draft_head: OutputHead,
) -> GreedyRule:
    """The object that takes and judges the tokens of one generation."""
    if isinstance(rule, Greedy):
        return GreedyRule() if target.changes_nothing else ProcessedGreedyRule(target, draft)
    if not rule.fixed_output:
        return DrawnRule(rule, target, draft, draft_head=draft_head, seed=seed)
    shared = rule.draft_takes == SHARED_NOISE
    vocabulary = max(target_head.vocabulary, draft_head.vocabulary)
    return FixedNoiseRule(target, draft, draft_head=draft_head, vocabulary=vocabulary, seed=seed, shared=shared)
