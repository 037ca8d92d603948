"""The fastest that any stopping policy could be on a recording, by dynamic programming over its positions.

A round is settled by where it starts and by how many tokens it drafts, so the least time from a position to the end is
the least over the choices there of that round's time plus the least time from where it ends. One more bit of state is
needed: after a round whose whole proposal was accepted the next draft step takes in two tokens, which costs more
(`specviz.replay.trace_counts`). Prices are those of `predict`, so the value of the plan is what `predict` says of its
replay, to rounding. The choices are all that a policy has: 1 to γ' draft steps, the last token sent or withheld.
"""

from collections.abc import Sequence

import numpy as np

from specviz.analysis.cost_model import CostModel, rates
from specviz.replay.one_setting import Rounds
from specviz.replay.policies import OptimalOracle, StopOracle
from specviz.replay.policy_counts import PolicyReplayer


def stop_oracles(replayer: PolicyReplayer) -> list[StopOracle]:
    """One per recording: it stops where the draft goes wrong."""
    return [StopOracle(rounds.output) for rounds in replayer.rounds]


def optimal_oracles(replayer: PolicyReplayer, cost: CostModel, pass_mode: str | None = None) -> list[OptimalOracle]:
    """One per recording: no policy of the same longest draft takes less time.

    Raises:
        SpecVizError: the cost model does not cover the recordings.
    """
    outputs = [len(rounds.output) for rounds in replayer.rounds]
    price = rates(cost, pass_mode, replayer.prompt_tokens, outputs, replayer.max_draft)
    plans = []
    for row, rounds in enumerate(replayer.rounds):
        plan, _ = fastest_plan(
            rounds,
            replayer.max_draft,
            target=price.target[row],
            draft=price.draft[row],
            second_token=float(price.second_token[row]),
            overhead=float(price.overhead),
        )
        plans.append(OptimalOracle(plan))
    return plans


def fastest_plan(
    rounds: Rounds,
    max_draft: int,
    *,
    target: np.ndarray,
    draft: np.ndarray,
    second_token: float,
    overhead: float,
) -> tuple[list[tuple[int, int]], float]:
    """The plan of an `OptimalOracle` and its time in seconds.

    Args:
        target: (max_draft + 1, 2), a pass over n proposed tokens: seconds, and seconds per token of context.
        draft: (2,), a draft step over one token likewise.
        second_token: what a step over two tokens costs more.
        overhead: of a round.
    """
    number, prompt = len(rounds.output), len(rounds.prompt)
    least = np.zeros((number + 1, 2))  # (position, whether the next draft step takes in two tokens)
    plan: list[tuple[int, int]] = [(1, 0)] * number
    # All choices, longest first within each kind; a shorter limit only cuts them.
    sent = np.concatenate([np.arange(1, max_draft + 1), np.arange(max_draft)])
    withheld = np.repeat([0, 1], max_draft)
    steps = sent + withheld
    drafted = steps * (steps - 1) // 2
    for start in range(number - 1, -1, -1):
        context = prompt + start
        limit = _draftable(rounds, start, max_draft)
        if limit == 0:
            end = min(start + 1, number)
            least[start] = overhead + target[0, 0] + target[0, 1] * context + least[end, 0]
            continue
        right = rounds.right_run[start]
        accepted = np.minimum(sent, right)
        end = np.minimum(start + accepted + 1, number)
        two_next = ((sent <= right) & (sent > 0) & (withheld == 0)).astype(np.int64)
        seconds = overhead + target[sent, 0] + target[sent, 1] * context
        seconds = seconds + draft[0] * steps + draft[1] * (steps * context + drafted) + least[end, two_next]
        seconds[steps > limit] = np.inf
        best = int(seconds.argmin())
        plan[start] = (int(sent[best]), int(withheld[best]))
        # The surcharge is the same for every choice, since each has at least one draft step.
        least[start] = seconds[best] + np.array([0.0, second_token])
    return plan, float(least[0, 0])


def _draftable(rounds: Rounds, start: int, max_draft: int) -> int:
    """Most draft steps of a round that starts here: γ', or up to the draft's own end of the text."""
    limit = min(max_draft, rounds.budget - start - 1)
    return min(limit, rounds.steps_to_end(start)) if limit > 0 else 0


def captured(plain: Sequence[float], seconds: Sequence[float], best: Sequence[float]) -> float:
    """The share of the optimal oracle's gain over plain decoding: 1 is the oracle, 0 plain decoding, below 0 a loss."""
    gain = float(np.sum(plain) - np.sum(best))
    return float(np.sum(plain) - np.sum(seconds)) / gain if gain > 0 else float("nan")
