"""What a generation cost, in counts: everything a cost model needs, and nothing it does not."""

from dataclasses import dataclass, fields

import numpy as np

from specviz.trace import Trace


@dataclass(frozen=True, eq=False)
class RoundCounts:
    """Counts of one generation, or of many: every array has the same leading shape S, () for a single trace.

    `proposal_lengths` and `verify_context` have one more axis, over the number n of proposed tokens, 0..G: together
    they price a target pass whose time is any function of n plus any multiple (depending on n) of the context length.
    Context lengths count the prompt.
    """

    rounds: np.ndarray  # S, also the number of target passes
    draft_steps: np.ndarray  # S
    proposed: np.ndarray  # S
    tested: np.ndarray  # S
    accepted: np.ndarray  # S
    discarded: np.ndarray  # S
    withheld: np.ndarray  # S
    emitted: np.ndarray  # S
    two_token_steps: np.ndarray  # S, draft steps that consume two tokens (see `trace_counts`)
    proposal_lengths: np.ndarray  # S + (G + 1,), rounds that proposed n tokens
    verify_context: np.ndarray  # S + (G + 1,), committed tokens before the round, summed over those rounds
    draft_context: np.ndarray  # S, tokens before each draft step's new token (committed or proposed), summed over steps

    def map(self, function) -> "RoundCounts":
        """Apply one function to every array, such as picking a cell or summing over a leading axis."""
        return RoundCounts(*(function(getattr(self, item.name)) for item in fields(self)))


def trace_counts(trace: Trace, max_draft: int | None = None) -> RoundCounts:
    """The counts of one trace, measured or replayed.

    A draft step consumes two tokens when it is the first after a round whose whole proposal, at least one token, was
    accepted: neither the last proposed token nor the bonus has been through the draft. A withheld step had already
    consumed the last proposed token, so it is followed by a step over one.

    Args:
        max_draft: the axis of `proposal_lengths` goes up to this; default: the trace's own draft length.
    """
    rounds = trace.rounds
    if max_draft is None:
        max_draft = trace.run.settings["max_draft"]
    context = len(trace.run.prompt_ids) + rounds["start"].astype(np.int64)
    steps = rounds["draft_steps"].astype(np.int64)
    all_used = (rounds["accepted"] == rounds["proposed"]) & (rounds["proposed"] > 0) & (rounds["withheld"] == 0)
    bins = max_draft + 1
    return RoundCounts(
        rounds=np.asarray(len(steps)),
        **{
            name: rounds[name].sum(dtype=np.int64)
            for name in ("draft_steps", "proposed", "tested", "accepted", "discarded", "withheld", "emitted")
        },
        two_token_steps=np.count_nonzero(all_used[:-1] & (steps[1:] > 0)),
        proposal_lengths=np.bincount(rounds["proposed"], minlength=bins),
        verify_context=np.bincount(rounds["proposed"], weights=context, minlength=bins).astype(np.int64),
        draft_context=(steps * context + steps * (steps - 1) // 2).sum(),
    )
