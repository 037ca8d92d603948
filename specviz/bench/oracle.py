"""The optimal oracle against trying everything, and against every policy, on made-up recordings."""

from __future__ import annotations

from functools import cache

import numpy as np

from specviz.analysis.oracle import fastest_plan, optimal_oracles
from specviz.analysis.prediction import predict
from specviz.bench.contests import contestants_on, made_up_cost
from specviz.bench.replay import synthetic_recording
from specviz.bench.reporting import Verdicts
from specviz.replay import PolicyReplayer
from specviz.trace import Recording

POSITIONS = 12
SIZES = ((12, 1), (9, 2), (7, 3), (5, 8))  # positions, longest draft: few enough ways to try each


def brute_force(
    recording: Recording, max_draft: int, target, draft, second_token: float, overhead: float, remember: bool = False
) -> float:
    """The least time over every sequence of rounds, each tried to the end; written from the meaning of a round.

    Args:
        target: by number of proposed tokens: seconds of a pass, and seconds per token of context.
        draft: the same of a draft step over one token; second_token: what one over two costs more.
        overhead: of a round.
        remember: keep the least time from each position on, which makes longer recordings possible.
    """
    output, eos = recording.output_ids.tolist(), recording.eos_ids
    budget, prompt = recording.budget(None), len(recording.prompt_ids)

    def said(start, step):
        for position in range(start, start + step):
            if recording.draft_token[position] != output[position]:
                return int(recording.branch_token[recording.branch_offsets[position] + step - (position - start) - 1])
        return int(recording.draft_token[start + step])

    def from_here(start, two):
        if start == len(output):
            return 0.0
        context, limit = prompt + start, min(max_draft, budget - start - 1)
        if limit == 0:
            return overhead + target[0][0] + target[0][1] * context + onwards(start + 1, False)
        best, tokens, seconds = np.inf, [], second_token if two else 0.0
        while len(tokens) < limit:
            seconds += draft[0] + draft[1] * (context + len(tokens))
            tokens.append(said(start, len(tokens)))
            for proposal, withheld in ((tokens, False), (tokens[:-1], True)):
                accepted = 0
                while accepted < len(proposal) and proposal[accepted] == output[start + accepted]:
                    accepted += 1
                end = min(start + accepted + 1, len(output))
                verify = target[len(proposal)][0] + target[len(proposal)][1] * context
                whole = accepted == len(proposal) > 0 and not withheld
                best = min(best, seconds + verify + overhead + onwards(end, whole))
            if tokens[-1] in eos:
                break
        return best

    onwards = cache(from_here) if remember else from_here
    return from_here(0, False)


def check_oracle(verdicts: Verdicts, recordings: int = 400, contests: int = 40, tokens: int = 64) -> None:
    """Check both claims on recordings and prices drawn at random."""
    source = np.random.default_rng(0)
    worst = 0.0
    for number in range(recordings):
        positions, max_draft = (*SIZES, (POSITIONS, 8))[number % (len(SIZES) + 1)]
        recording = synthetic_recording(source, positions, max_draft)
        prices = {
            "target": source.uniform(0.5, 2, (max_draft + 1, 1)) * [1, 0.02] * source.uniform(0.5, 1, 2),
            "draft": source.uniform(0.05, 0.5) * np.array([1, 0.01]),
            "second_token": float(source.uniform(0, 0.1)),
            "overhead": float(source.uniform(0, 0.1)),
        }
        _, seconds = fastest_plan(PolicyReplayer([recording], max_draft).rounds[0], max_draft, **prices)
        tried = brute_force(recording, max_draft, **prices, remember=(positions, max_draft) not in SIZES)
        worst = max(worst, abs(seconds / tried - 1))
    verdicts.check(
        f"the optimal oracle equals brute force on {recordings} recordings of up to {POSITIONS} positions",
        worst < 1e-9,
        f"off by at most {worst:.0e}",
    )
    beaten = tried = 0
    for _ in range(contests):
        made = [synthetic_recording(source, tokens) for _ in range(2)]
        cost = made_up_cost(16, *source.uniform(0.2, 3, 2))
        replayer = PolicyReplayer(made, 8)

        def seconds_of(policies, replayer=replayer, cost=cost):
            return predict(replayer.counts(policies), cost, prompt_tokens=replayer.prompt_tokens).seconds

        best = seconds_of(optimal_oracles(replayer, cost))
        for _, per_prompt in contestants_on(replayer, cost):
            tried += len(made)
            beaten += int((seconds_of(per_prompt) < best * (1 - 1e-12)).sum())
    verdicts.check("no policy beats the optimal oracle", beaten == 0, f"{beaten} of {tried} contests")
