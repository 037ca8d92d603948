"""What a setting would have cost on average, given the text: replay for rules that draw."""

from collections import defaultdict
from copy import deepcopy

import numpy as np

from specviz.errors import SpecVizError
from specviz.replay.counts import RoundCounts
from specviz.replay.policies import Policy, StepStats
from specviz.replay.rules import Rejection, recorded_rule
from specviz.trace.recording import Recording


def replay_expected(
    recording: Recording, policy: Policy, max_draft: int, max_new_tokens: int | None = None
) -> RoundCounts:
    """Expected counts of a run with these settings, given that it emitted the recorded text.

    Under `rejection` what is accepted is a matter of chance, so no single trace is right; but given the text the
    chances are known. Take a position whose context is fixed and whose token is drafted from q and judged against p.
    The token y is drafted and accepted with probability q(y) min(1, p(y)/q(y)) = min(p(y), q(y)), and y is emitted with
    probability p(y), for the rule is lossless. So, given that y was emitted,

        P(accepted | y) = min(p(y), q(y)) / p(y) = min(1, q(y) / p(y)).

    What is emitted from there on depends on the text alone, not on how y came about, and so the acceptances at
    different positions are independent given the whole text. Where nothing is drafted, y comes from p and says nothing
    of chance. A policy that looks only at the text and the draft's distributions proposes, from a round's start s and
    as long as everything is accepted, a number L(s) of tokens that the text settles. With a(i) = min(1, q(y_i)/p(y_i))
    the run accepts k < L(s) tokens with probability a(s) ... a(s+k-1) (1 - a(s+k)) and all L(s) with probability
    a(s) ... a(s+L-1); the next round starts at s + k + 1. One pass over the positions, from v(0) = 1, therefore gives
    the probability v(s) that a round starts at s, and with it every expected count.

    What is drafted after a rejection costs steps, and depends on the token that was rejected. The rejected token x has
    the distribution of the normalised positive part of q - p, whatever y is: x is drafted and rejected and y drawn
    instead with probability (q(x) - min(p(x), q(x))) r(y), r being the residual. The recording holds one such draw per
    position and how the draft went on from it, drawn from q: these parts of draft steps, proposed and discarded tokens
    are unbiased estimates, everything else is exact.

    For recordings of rules with fixed output (a(i) is 0 or 1) the result equals the counts of `replay`.

    Args:
        policy: looks at the draft's distributions and the text only, not at earlier rounds' outcomes.
        max_draft, max_new_tokens: as in `replay`.

    Returns:
        Counts of leading shape (), as float64; `specviz.analysis.predict` prices them like any others.

    Raises:
        SpecVizError: the recording does not cover these settings, or the policy learns from outcomes.
    """
    if type(policy).end_round is not Policy.end_round or policy.looks_at_drawn_token:
        raise SpecVizError(
            f"The policy {policy.name} goes by what was accepted before or by the tokens drawn, so its rounds have no "
            "expectation given the text; choose another, or run it."
        )
    recording.check_max_draft(max_draft)
    budget = recording.budget(max_new_tokens)
    output = recording.output_ids[:budget].tolist()
    chances = acceptance_chances(recording)
    walk = _Walk(recording, policy, max_draft, budget)
    bins = max_draft + 1
    total: dict[str, float] = defaultdict(float)
    lengths, contexts = np.zeros(bins), np.zeros(bins)
    prompt = len(recording.prompt_ids)
    starts = np.zeros(len(output) + 1)
    starts[0] = 1
    for start in range(len(output)):
        for chance, accepted, proposed, withheld, ended in walk.outcomes(start, chances):
            weight = starts[start] * chance
            if not weight:
                continue
            steps, context = proposed + withheld, prompt + start
            end = start + accepted + (not ended)
            starts[min(end, len(output))] += weight
            tested = min(accepted + 1, proposed)
            used = proposed > 0 and accepted == proposed and not withheld
            for name, count in (
                ("rounds", 1),
                ("draft_steps", steps),
                ("proposed", proposed),
                ("tested", tested),
                ("accepted", accepted),
                ("discarded", proposed - tested),
                ("withheld", withheld),
                ("emitted", end - start),
                ("two_token_steps", used and end < len(output) and end < budget - 1),
                ("draft_context", steps * context + steps * (steps - 1) // 2),
            ):
                total[name] += weight * count
            lengths[proposed] += weight
            contexts[proposed] += weight * context
    scalars = {name: np.asarray(total[name]) for name in RoundCounts.__dataclass_fields__ if name in total}
    return RoundCounts(**scalars, proposal_lengths=lengths, verify_context=contexts)


def acceptance_chances(recording: Recording) -> np.ndarray:
    """The chance a(i) that a token drafted at each output position was accepted, given what was emitted, (N,)."""
    rule = recorded_rule(recording.settings)
    agrees = recording.draft_token == recording.output_ids
    if rule.fixed_output:
        return agrees.astype(np.float64)
    if rule is not Rejection:
        raise SpecVizError(f"The rule {rule.name} is lossy, so its text depends on the settings; run each setting.")
    emitted = recording.target_prob_of_emitted.astype(np.float64)
    return np.where(agrees, 1.0, np.minimum(1, recording.draft_prob_of_emitted / np.maximum(emitted, 1e-38)))


class _Walk:
    """The outcomes of rounds from any start."""

    def __init__(self, recording: Recording, policy: Policy, max_draft: int, budget: int) -> None:
        policy.begin(recording.prompt_ids.tolist())
        self._policy, self._max_draft, self._budget = policy, max_draft, budget
        self._eos_ids = recording.eos_ids
        self._output = recording.output_ids[:budget].tolist()
        self._last = len(recording.output_ids) - 1 if recording.ended else None  # no round goes beyond
        self._wrong = recording.draft_token.tolist()
        names = ("confidence", "entropy", "margin")
        self._main = list(zip(*(getattr(recording, f"draft_{name}").tolist() for name in names), strict=True))
        self._branch_tokens = recording.branch_token.tolist()
        self._branch = list(zip(*(getattr(recording, f"branch_{name}").tolist() for name in names), strict=True))
        self._offsets = recording.branch_offsets.tolist()

    def outcomes(self, start: int, chances: np.ndarray):
        """Yield (probability, accepted, proposed, withheld, whether the accepted run ended the text) of one round."""
        policy = deepcopy(self._policy)
        limit = min(policy.draft_limit(self._max_draft), self._max_draft, self._budget - start - 1)
        reached = 1.0
        for depth in range(limit):
            position = start + depth
            emitted, chance = self._output[position], float(chances[position])
            fails = policy.stops(StepStats(depth, position, emitted, *self._main[position]))
            if fails and policy.on_fail == "drop":
                yield reached, depth, depth, 1, False
                return
            if chance < 1:
                proposed, withheld = depth + 1, 0
                if not fails and self._wrong[position] not in self._eos_ids:
                    proposed, withheld = self._after_rejection(deepcopy(policy), start, position, limit)
                yield reached * (1 - chance), depth, proposed, withheld, False
            reached *= chance
            if position == self._last:
                yield reached, depth + 1, depth + 1, 0, True
                return
            if fails:
                yield reached, depth + 1, depth + 1, 0, False
                return
        yield reached, limit, limit, 0, False

    def _after_rejection(self, policy: Policy, start: int, position: int, limit: int) -> tuple[int, int]:
        """Tokens proposed, and withheld, in a round whose draft leaves the text at `position`."""
        first, last = self._offsets[position : position + 2]
        depth = position - start + 1
        for step in range(first, min(last, first + limit - depth)):
            token = self._branch_tokens[step]
            fails = policy.stops(StepStats(depth, start + depth, token, *self._branch[step]))
            if fails and policy.on_fail == "drop":
                return depth, 1
            depth += 1
            if fails or token in self._eos_ids:
                break
        return depth, 0
