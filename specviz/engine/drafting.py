"""The draft phase of a round: the draft model proposes tokens until the policy, the limit or the budget stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from specviz.engine.acceptance import GreedyRule
from specviz.engine.endings import Endings
from specviz.engine.events import DraftStep, DraftStopped
from specviz.engine.runner import ModelRunner
from specviz.replay.policies import Policy, StepStats


@dataclass
class Drafter:
    """A draft model that follows the committed text and proposes its continuation.

    Args:
        runner: the draft.
        policy: when to stop; kept across the rounds of one generation.
        max_draft: most tokens proposed in one round (gamma).
        endings: a proposed token that would end the text ends the draft phase.
        rule: takes the draft's tokens; the same object judges them.
    """

    runner: ModelRunner
    policy: Policy
    max_draft: int
    endings: Endings = Endings()
    rule: GreedyRule = field(default_factory=GreedyRule)

    def begin(self, prompt_ids: list[int], max_length: int) -> None:
        """Take in the prompt but for its last token, which belongs to the first round."""
        self.policy.begin(prompt_ids)
        self.runner.begin(max_length)
        self.runner.prefill(prompt_ids[:-1])

    def propose(
        self,
        round_number: int,
        text: list[int],
        position: int,
        remaining: int,
        stopped: Callable[[], bool],
    ) -> Iterator[DraftStep | DraftStopped]:
        """Yield the events of one draft phase, the last of them `DraftStopped`.

        A proposed end-of-sequence token ends the phase (`eos`), and so does a token that completes a stop string. The
        latter is called `stop` only where the phase would have gone on, so that a recording, which holds no text, can
        tell: there the draft's steps end.

        Args:
            text: the committed text, prompt included.
            position: tokens committed after the prompt.
            remaining: how many more tokens may be committed (R >= 1).
            stopped: asked before each draft step; True abandons the phase without a `DraftStopped`.
        """
        limit = min(self.policy.draft_limit(self.max_draft), self.max_draft)
        reason = "budget" if remaining - 1 < limit else "max_draft"
        limit = min(limit, remaining - 1)
        proposal: list[int] = []
        while len(proposal) < limit:
            if stopped():
                return
            stats = self.step(text, proposal, position)
            fails = self.policy.stops(stats)
            proposed = not fails or self.policy.on_fail == "keep"
            if proposed:
                proposal.append(stats.token)
            yield DraftStep(round_number, stats, proposed)
            if fails:
                reason = self.policy.name
                break
            ending = self.endings.of(text + proposal, len(text) - position)
            if ending:
                if ending == "eos" or len(proposal) < limit:
                    reason = ending
                break
        yield DraftStopped(round_number, reason, tuple(proposal[: self.policy.sent(len(proposal))]))

    def step(self, text: list[int], proposal: list[int], position: int) -> StepStats:
        """One draft step: run what the draft has not seen yet (two tokens after a fully accepted round), read once."""
        context = text + proposal
        unseen = context[self.runner.length :]
        width = self.runner.width or len(unseen)
        for first in range(0, len(unseen), width):
            hidden = self.runner.forward(unseen[first : first + width])
        row, confidence, entropy, margin = self.statistics(hidden[-1:], context).tolist()[0]
        token = self.runner.head.token_of(int(row))
        return StepStats(len(proposal), position + len(proposal), token, confidence, entropy, margin)

    @torch.inference_mode()
    def statistics(self, hidden: torch.Tensor, context: list[int]) -> torch.Tensor:
        """The draft's row and statistics after `context`, (1, 4), from its hidden state (1, d)."""
        return self.rule.draft(self.runner.logits(hidden), [context])

    def end_round(self, text_length: int, proposed: int, accepted: int, tokens: list[int]) -> None:
        """Roll back to what is committed; `tokens` are the round's. The newest was not drafted, so it stays unseen."""
        self.runner.rollback(max(0, self.runner.length - (text_length - 1)))
        self.policy.end_round(proposed, accepted, tokens)
