"""A slow, obviously right interpreter of the round in the design, for scripted toy models.

It shares no code with the engine, the replay or the trace builder (only the column types), so that agreement with it
means something. A toy model is a pair of functions over the whole context (prompt and output, a tuple of ids):

    draft_step(context)  -> DraftStep(token, confidence, entropy, margin)
    target_next(context) -> TargetStep(token, margin)
"""

import random
from functools import cache
from typing import NamedTuple

import numpy as np

from specviz.replay.policies import Policy, StepStats
from specviz.trace import ROUND_COLUMNS, STEP_COLUMNS, PairInfo, RunInfo, Trace
from specviz.trace.recording import TOP_TOKENS, Recording
from specviz.trace.trace import column_arrays

NAN = float("nan")


class DraftStep(NamedTuple):
    token: int
    confidence: float  # these three must be exact in float32
    entropy: float
    margin: float


class TargetStep(NamedTuple):
    token: int
    margin: float  # exact in float32


def reference_trace(
    draft_step,
    target_next,
    policy: Policy,
    max_draft: int,
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
    prompt_ids: tuple[int, ...] = (),
    output_limit: int = 10**6,
    settings: dict | None = None,
) -> Trace:
    """Generate, one round after the other, and write down everything. fp32 near-tie epsilons, no times."""
    budget = min(max_new_tokens, output_limit)
    output: list[int] = []
    rounds: list[dict] = []
    steps: list[dict] = []
    policy.begin(prompt_ids)
    finished = False
    while not finished:
        start = len(output)
        text = tuple(prompt_ids) + tuple(output)
        remaining = budget - start

        # 1 and 2: the draft phase.
        policy_limit = policy.draft_limit(max_draft)
        limit = min(policy_limit, remaining - 1)
        proposal: list[int] = []
        draft_rows: list[dict] = []
        stop_reason = "budget"
        while len(proposal) < limit:
            said = draft_step(text + tuple(proposal))
            stats = StepStats(len(proposal), start + len(proposal), *said)
            fails = policy.stops(stats)
            close = policy.distance(stats) < 1e-4 or said.margin < 1e-4
            row = {"source": "draft", "position": start + len(proposal), **said._asdict(), "near_tie": close}
            draft_rows.append(row)
            if fails and policy.on_fail == "drop":
                row["status"] = "withheld"
                stop_reason = policy.name
                break
            proposal.append(said.token)
            if fails:
                stop_reason = policy.name
                break
            if said.token in eos_ids:
                stop_reason = "eos"
                break
            if len(proposal) == limit:
                stop_reason = "max_draft" if limit == policy_limit else "budget"

        sent = policy.sent(len(proposal))
        del proposal[sent:]

        # 3 and 4: the target looks at the proposal, left to right.
        accepted = 0
        while accepted < len(proposal) and target_next(text + tuple(proposal[:accepted])).token == proposal[accepted]:
            accepted += 1
        committed = proposal[:accepted]
        ended_by_draft = bool(committed) and committed[-1] in eos_ids
        target_status = ""
        if not ended_by_draft:
            answer = target_next(text + tuple(committed))
            target_status = "plain" if not proposal else "bonus" if accepted == len(proposal) else "correction"
            committed = [*committed, answer.token]

        for index, row in enumerate(draft_rows):
            if index < accepted:
                row["status"] = "accepted"
            elif index < len(proposal):
                row["status"] = "rejected" if index == accepted else "discarded"
            else:
                row["status"] = "withheld"
            row["target_token"], row["target_margin"] = -1, NAN
            if index <= accepted:  # everything before this token is committed
                truth = target_next(text + tuple(committed[:index]))
                row["target_token"], row["target_margin"] = truth
                row["near_tie"] = row["near_tie"] or truth.margin < 1e-3
        if target_status:
            row = {"source": "target", "position": start + accepted, "token": answer.token, "status": target_status}
            row |= {"confidence": NAN, "entropy": NAN, "margin": NAN}
            row |= {"target_token": answer.token, "target_margin": answer.margin, "near_tie": answer.margin < 1e-3}
            draft_rows.append(row)
        for index, row in enumerate(draft_rows):
            steps.append({"round": len(rounds), "step": index, **row})

        tested = accepted if accepted == len(proposal) else accepted + 1
        withheld = sum(row["status"] == "withheld" for row in draft_rows)
        rounds.append(
            {
                "round": len(rounds),
                "start": start,
                "proposed": len(proposal),
                "tested": tested,
                "accepted": accepted,
                "discarded": len(proposal) - tested,
                "withheld": withheld,
                "draft_steps": len(proposal) + withheld,
                "emitted": len(committed),
                "stop_reason": stop_reason,
                "target_status": target_status,
                "draft_seconds": NAN,
                "verify_seconds": NAN,
                "overhead_seconds": NAN,
            }
        )
        output += committed
        policy.end_round(len(proposal), accepted, committed)
        finished = output[-1] in eos_ids or len(output) == budget

    reason = "eos" if output[-1] in eos_ids else "length" if budget == max_new_tokens else "context"
    run_settings = {**(settings or {}), "policy": policy.settings(), "max_draft": max_draft}
    run_settings |= {"max_new_tokens": max_new_tokens, "eos_ids": list(eos_ids)}
    run = RunInfo("replayed", PairInfo(), run_settings, "", tuple(prompt_ids), tuple(output), reason)
    tables = [
        column_arrays(columns, {column.name: [row[column.name] for row in rows] for column in columns})
        for columns, rows in ((ROUND_COLUMNS, rounds), (STEP_COLUMNS, steps))
    ]
    return Trace(run, *tables)


def recording_from_toy(
    draft_step,
    target_next,
    max_draft: int,
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
    prompt_ids: tuple[int, ...] = (),
    output_limit: int = 10**6,
    settings: dict | None = None,
) -> Recording:
    """The recording of the same toy, its branches as short as allowed; what replay does not read is zero."""
    output: list[int] = []
    while len(output) < min(max_new_tokens, output_limit) and not (output and output[-1] in eos_ids):
        output.append(target_next(tuple(prompt_ids) + tuple(output)).token)
    finish_reason = "eos" if output[-1] in eos_ids else "length" if len(output) == max_new_tokens else "context"

    reach = output_limit if finish_reason == "eos" else len(output)  # the token at reach - 1 is never proposed
    main, branches, offsets = [], [], [0]
    for position, emitted in enumerate(output):
        text = tuple(prompt_ids) + tuple(output[:position])
        said = draft_step(text)
        main.append(said)
        if said.token != emitted:
            guess = [said.token]
            while len(guess) < max_draft and guess[-1] not in eos_ids and position + len(guess) < reach - 1:
                branches.append(draft_step(text + tuple(guess)))
                guess.append(branches[-1].token)
        offsets.append(len(branches))

    def floats(values):
        return np.array(values, np.float32)

    def ints(values):
        return np.array(values, np.int32)

    number = len(output)
    margins = [target_next(tuple(prompt_ids) + tuple(output[:position])).margin for position in range(number)]
    return Recording(
        prompt_id="toy",
        category="toy",
        prompt="",
        pair=PairInfo(),
        settings=settings or {},
        seed=0,
        finish_reason=finish_reason,
        max_new_tokens=max_new_tokens,
        output_limit=output_limit,
        max_draft=max_draft,
        eos_ids=tuple(eos_ids),
        prompt_ids=ints(prompt_ids),
        output_ids=ints(output),
        draft_token=ints([step.token for step in main]),
        draft_confidence=floats([step.confidence for step in main]),
        draft_entropy=floats([step.entropy for step in main]),
        draft_margin=floats([step.margin for step in main]),
        draft_prob_of_emitted=floats([0] * number),
        target_prob_of_draft_token=floats([0] * number),
        target_rank_of_draft_token=ints([1] * number),
        target_entropy=floats([0] * number),
        target_prob_of_emitted=floats([0] * number),
        target_margin=floats(margins),
        draft_top_ids=np.full((number, TOP_TOKENS), -1, np.int32),
        draft_top_probs=np.zeros((number, TOP_TOKENS), np.float32),
        target_top_ids=np.full((number, TOP_TOKENS), -1, np.int32),
        target_top_probs=np.zeros((number, TOP_TOKENS), np.float32),
        branch_offsets=ints(offsets),
        branch_token=ints([step.token for step in branches]),
        branch_confidence=floats([step.confidence for step in branches]),
        branch_entropy=floats([step.entropy for step in branches]),
        branch_margin=floats([step.margin for step in branches]),
    ).validate()


def random_toy(seed: int, vocabulary: int = 5, agreement: float = 0.6, eos_ids: tuple[int, ...] = (0,), levels=8):
    """Two toy models that depend on the whole context, agree with chance `agreement`, and whose confidences take few
    values, so that ties with each other and with thresholds are common. Token 0 is rarer than the rest.
    """

    def choose(source: random.Random) -> int:
        return source.choices(range(vocabulary), [0.2] + [1.0] * (vocabulary - 1))[0]

    @cache
    def target_next(context: tuple[int, ...]) -> TargetStep:
        source = random.Random(repr((seed, "target", context)))
        return TargetStep(choose(source), source.choice([0.0, 0.0005, 0.25, 3.0]))

    @cache
    def draft_step(context: tuple[int, ...]) -> DraftStep:
        source = random.Random(repr((seed, "draft", context)))
        token = target_next(context).token if source.random() < agreement else choose(source)
        confidence = float(np.float32(source.randint(1, levels) / levels))
        return DraftStep(token, confidence, source.choice([0.0, 0.5, 1.5]), confidence * source.choice([0.0, 0.5, 1.0]))

    return draft_step, target_next
