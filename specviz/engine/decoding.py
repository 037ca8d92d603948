"""The decoding loop, as a generator of events. One loop serves plain and speculative decoding.

A round is defined in DESIGN.md's words: draft, verify in one target pass, accept from left to right, add one token of
the target's own, roll both caches back to the committed text (Leviathan et al. 2023, algorithm 1, with a stopping
policy on the draft). Without a drafter every proposal is empty and the loop is plain autoregressive decoding.

A text ends with an end-of-sequence token or with the token that completes a stop string. No proposal goes beyond such a
token (see `Drafter.propose`), so an accepted run can only end with it; then the target adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specviz.engine.acceptance import GreedyRule
from specviz.engine.clock import clock_for
from specviz.engine.drafting import Drafter
from specviz.engine.endings import Limits
from specviz.engine.events import (
    DraftStopped,
    Event,
    Finished,
    RoundCommitted,
    RoundTimes,
    Verified,
)
from specviz.engine.runner import ModelRunner
from specviz.trace.statuses import target_status


def never() -> bool:
    return False


def decode(
    target: ModelRunner,
    prompt_ids: list[int],
    limits: Limits,
    *,
    drafter: Drafter | None = None,
    rule: GreedyRule | None = None,
    stopped: Callable[[], bool] = never,
) -> Iterator[Event]:
    """Yield the events of one generation, the last of them `Finished`.

    Args:
        prompt_ids: at least one token.
        drafter: proposes tokens; None decodes plainly.
        rule: judges proposals; greedy by default. It serves one generation, and the drafter has the same one.
        stopped: asked before every draft step and every target pass; True ends the generation with what is committed.
    """
    rule = rule or GreedyRule()
    clock = clock_for(target.device)
    began = clock.mark()
    text = list(prompt_ids)
    longest = len(text) + limits.max_new_tokens
    target.begin(longest)
    target.prefill(text[:-1])
    if drafter:
        drafter.begin(text, longest)
    prefill_seconds = seconds = clock.seconds(began, clock.mark())

    emitted = round_number = 0
    reason = None
    while reason is None:
        round_began = clock.mark()
        remaining = limits.max_new_tokens - emitted
        proposal: tuple[int, ...] | None = ()
        if drafter:
            proposal = None
            for event in drafter.propose(round_number, text, emitted, remaining, stopped):
                yield event
                if isinstance(event, DraftStopped):
                    proposal = event.proposal
        if proposal is None or stopped():
            reason = "stopped"
            break

        drafted = clock.mark()
        hidden = target.forward([text[-1], *proposal])
        verdict = rule.judge(target.logits(hidden), list(proposal), text)
        verified = clock.mark()

        accepted = verdict.accepted
        new_tokens = list(proposal[:accepted])
        ending = limits.endings.of(text + new_tokens, len(prompt_ids)) if accepted else None
        target_token, own_status = None, ""
        if ending is None:
            target_token = verdict.target_tokens[accepted]
            own_status = target_status(len(proposal), accepted)
            new_tokens.append(target_token)
            ending = limits.endings.of(text + new_tokens, len(prompt_ids))
        yield Verified(
            round_number,
            accepted,
            verdict.target_tokens,
            verdict.target_margins,
            target_token,
            own_status,
            hidden,
        )

        text += new_tokens
        target.rollback(target.length - (len(text) - 1))
        if drafter:
            drafter.end_round(len(text), len(proposal), accepted, new_tokens)
        committed = clock.mark()
        draft_seconds, verify_seconds = (
            clock.seconds(round_began, drafted),
            clock.seconds(drafted, verified),
        )
        round_seconds = clock.seconds(round_began, committed)
        seconds += round_seconds  # what whoever iterates does between two rounds is not decoding
        overhead = round_seconds - draft_seconds - verify_seconds
        times = RoundTimes(draft_seconds, verify_seconds, overhead)
        yield RoundCommitted(round_number, emitted, tuple(new_tokens), times)

        emitted += len(new_tokens)
        round_number += 1
        reason = ending or (limits.finish_reason if emitted == limits.max_new_tokens else None)
    yield Finished(reason, tuple(text[len(prompt_ids) :]), prefill_seconds, seconds)
