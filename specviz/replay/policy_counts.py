"""Counts of any policy, stateful ones included, without making traces."""

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from specviz.errors import SpecVizError
from specviz.replay.counts import RoundCounts
from specviz.replay.one_setting import Rounds
from specviz.replay.policies import Policy
from specviz.trace.recording import Recording


class PolicyReplayer:
    """Replays many policies on the same recordings; what they have in common is worked out once.

    Raises:
        SpecVizError: there is no recording, or one does not cover this draft length.
    """

    def __init__(self, recordings: Sequence[Recording], max_draft: int) -> None:
        if not recordings:
            raise SpecVizError("Replaying policies needs at least one recording.")
        self.recordings = list(recordings)
        self.max_draft = max_draft
        self.rounds = [Rounds(recording, max_draft, None) for recording in recordings]
        self.prompt_tokens = [len(recording.prompt_ids) for recording in recordings]

    def __len__(self) -> int:
        return len(self.rounds)

    def part(self, rows: Sequence[int]) -> "PolicyReplayer":
        """The same for some of the recordings."""
        part = copy(self)
        part.recordings, part.rounds, part.prompt_tokens = (
            [values[row] for row in rows] for values in (self.recordings, self.rounds, self.prompt_tokens)
        )
        return part

    def counts(self, policies: Policy | Iterable[Policy]) -> RoundCounts:
        """What `trace_counts(replay(recording, policy, max_draft))` counts, for each recording in turn.

        Args:
            policies: one for all recordings (what it keeps between generations it keeps here), or one for each.

        Returns:
            Counts of leading shape (R,).
        """
        if isinstance(policies, Policy):
            policies = [policies] * len(self)
        rows = [self._count(rounds, policy) for rounds, policy in zip(self.rounds, policies, strict=True)]
        return RoundCounts(*(np.stack(values) for values in zip(*(vars(row).values() for row in rows), strict=True)))

    def _count(self, rounds: Rounds, policy: Policy) -> RoundCounts:
        output, right_run, number = rounds.output, rounds.right_run, len(rounds.output)
        draft_phase, end_round = rounds.draft_phase, policy.end_round
        policy.begin(rounds.prompt)
        played = []
        start = 0
        while start < number:
            steps, withheld, _ = draft_phase(start, policy)
            accepted = min(steps - withheld, right_run[start])
            end = min(start + accepted + 1, number)
            end_round(steps - withheld, accepted, output[start:end])
            played.append((start, steps, withheld, accepted))
            start = end
        start, steps, withheld, accepted = np.array(played, np.int64).T
        proposed = steps - withheld
        tested = np.minimum(accepted + 1, proposed)
        context = start + len(rounds.prompt)
        all_used = (accepted == proposed) & (proposed > 0) & (withheld == 0)
        bins = self.max_draft + 1
        return RoundCounts(
            rounds=np.int64(len(steps)),
            draft_steps=steps.sum(),
            proposed=proposed.sum(),
            tested=tested.sum(),
            accepted=accepted.sum(),
            discarded=(proposed - tested).sum(),
            withheld=withheld.sum(),
            emitted=np.int64(number),
            two_token_steps=np.int64(np.count_nonzero(all_used[:-1] & (steps[1:] > 0))),
            proposal_lengths=np.bincount(proposed, minlength=bins),
            verify_context=np.bincount(proposed, weights=context, minlength=bins).astype(np.int64),
            draft_context=(steps * context + steps * (steps - 1) // 2).sum(),
        )
