"""What happened, as a handful of numbers with one definition each."""

from dataclasses import dataclass

import numpy as np

from specviz.analysis.prediction import ratio
from specviz.replay import RoundCounts, trace_counts
from specviz.trace import Trace


@dataclass(frozen=True, eq=False)
class Metrics:
    """Every array has the leading shape of the counts, () for a trace. A ratio of nothing to nothing is NaN."""

    acceptance_rate: np.ndarray  # accepted / proposed
    acceptance_rate_tested: np.ndarray  # accepted / tested, where tested stops at the first rejection
    tokens_per_target_pass: np.ndarray  # emitted / rounds (block efficiency)
    mean_accepted_run: np.ndarray  # accepted / rounds
    mean_draft_length: np.ndarray  # proposed / rounds
    draft_steps_wasted: np.ndarray  # draft steps whose token was not accepted: rejected, discarded or withheld
    target_passes_saved: np.ndarray  # emitted - rounds: plain decoding takes one pass a token


def metrics(what: Trace | RoundCounts) -> Metrics:
    """The metrics of a trace or of counts. For a whole prompt set, sum the counts first: `pooled`."""
    counts = trace_counts(what) if isinstance(what, Trace) else what
    return Metrics(
        acceptance_rate=ratio(counts.accepted, counts.proposed),
        acceptance_rate_tested=ratio(counts.accepted, counts.tested),
        tokens_per_target_pass=ratio(counts.emitted, counts.rounds),
        mean_accepted_run=ratio(counts.accepted, counts.rounds),
        mean_draft_length=ratio(counts.proposed, counts.rounds),
        draft_steps_wasted=counts.draft_steps - counts.accepted,
        target_passes_saved=counts.emitted - counts.rounds,
    )


def pooled(counts: RoundCounts) -> RoundCounts:
    """Counts summed over their first axis, the recordings."""
    return counts.map(lambda values: values.sum(axis=0, dtype=np.int64))


@dataclass(frozen=True)
class ThresholdOutcomes:
    """The threshold read as a classifier of draft tokens into good (the target agrees) and bad, in tokens.

    Only tokens on which the target has spoken are judged. A token drafted after the first mismatch of its round is
    `discarded` if proposed and `withheld_untested` if withheld: neither choice could have made it count.
    """

    accepted: int  # proposed, and the target agrees
    rejected: int  # proposed, and the target disagrees
    rightly_withheld: int  # withheld, and the target would have disagreed
    wrongly_withheld: int  # withheld, and the target would have agreed
    discarded: int
    withheld_untested: int


def threshold_outcomes(trace: Trace) -> ThresholdOutcomes:
    """Count the draft steps of a trace by what became of them. Counts alone do not tell right from wrong here."""
    steps = trace.steps
    withheld = steps["status"] == "withheld"
    known = steps["target_token"] >= 0
    agrees = steps["target_token"] == steps["token"]
    return ThresholdOutcomes(
        accepted=int((steps["status"] == "accepted").sum()),
        rejected=int((steps["status"] == "rejected").sum()),
        rightly_withheld=int((withheld & known & ~agrees).sum()),
        wrongly_withheld=int((withheld & known & agrees).sum()),
        discarded=int((steps["status"] == "discarded").sum()),
        withheld_untested=int((withheld & ~known).sum()),
    )
