"""The decoding loop against the slow reference written from DESIGN.md, on scripted toy models."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_round import DraftStep, TargetStep, reference_trace
from scripted_models import ScriptedRunner

from specviz.engine.decoding import decode
from specviz.engine.distributions import distribution_statistics
from specviz.engine.drafting import Drafter
from specviz.engine.endings import Endings, Limits
from specviz.engine.engine import observe_all
from specviz.engine.events import DraftStep as DraftStepEvent
from specviz.engine.events import Finished
from specviz.engine.trace_recorder import TraceRecorder
from specviz.replay import ConfidenceThreshold, FixedLength
from specviz.trace import PairInfo, RunInfo, trace_differences

VOCABULARY = 6
PROMPT = (3, 4)


def scripted_pair(seed, agreement):
    """Two functions from a text to logits; the draft's are the target's with chance `agreement`."""

    def logits_of(role, text):
        source = random.Random(repr((seed, role, text)))
        return torch.tensor([source.choice([-1.0, 0.0, 1.0, 2.0]) + source.random() for _ in range(VOCABULARY)])

    def target(text):
        return logits_of("target", text)

    def draft(text):
        agrees = random.Random(repr((seed, "agrees", text))).random() < agreement
        return logits_of("target" if agrees else "draft", text)

    return target, draft


def said_by_draft(logits):
    """The reference's view of a draft step, computed apart from the engine's."""
    probabilities = torch.softmax(logits, -1)
    top = torch.sort(probabilities, descending=True).values
    entropy = -(probabilities * probabilities.log()).sum()
    return DraftStep(int(logits.argmax()), top[0].item(), entropy.item(), (top[0] - top[1]).item())


def said_by_target(logits):
    top = torch.sort(logits, descending=True).values
    return TargetStep(int(logits.argmax()), (top[0] - top[1]).item())


POLICIES = st.one_of(
    st.just(FixedLength()),
    st.builds(
        ConfidenceThreshold,
        st.floats(0, 1, width=16),
        st.sampled_from(["drop", "keep"]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    policy=POLICIES,
    max_draft=st.integers(1, 6),
    max_new_tokens=st.integers(1, 24),
    eos_ids=st.sampled_from([(), (0,), (0, 5)]),
)
def test_the_loop_makes_the_reference_trace(seed, agreement, policy, max_draft, max_new_tokens, eos_ids):
    target, draft = scripted_pair(seed, agreement)
    expected = reference_trace(
        lambda text: said_by_draft(draft(text)),
        lambda text: said_by_target(target(text)),
        policy,
        max_draft,
        max_new_tokens,
        eos_ids,
        PROMPT,
    )
    trace = run(target, draft, policy, max_draft, max_new_tokens, eos_ids)
    assert trace_differences(trace, expected, confidence_tolerance=1e-6) == []


def run(target, draft, policy, max_draft, max_new_tokens, eos_ids, stopped=lambda: False):
    drafter = Drafter(ScriptedRunner(draft, width=2), policy, max_draft, Endings(frozenset(eos_ids)))
    limits = Limits(max_new_tokens, Endings(frozenset(eos_ids)))
    run_settings = {
        "policy": policy.settings(),
        "max_draft": max_draft,
        "max_new_tokens": max_new_tokens,
    }
    info = RunInfo("measured", PairInfo(), run_settings, "", PROMPT, (), "stopped")
    recorder = TraceRecorder(info, policy)
    events = decode(ScriptedRunner(target), list(PROMPT), limits, drafter=drafter, stopped=stopped)
    observe_all(events, (recorder.observe,))
    return recorder.trace


def test_plain_decoding_is_the_loop_without_a_drafter():
    target, _ = scripted_pair(1, 0.5)
    events = list(decode(ScriptedRunner(target), list(PROMPT), Limits(12)))
    text = list(PROMPT)
    for _ in range(12):
        text.append(int(target(tuple(text)).argmax()))
    assert isinstance(events[-1], Finished) and list(events[-1].output_ids) == text[len(PROMPT) :]
    assert not any(isinstance(event, DraftStepEvent) for event in events)


@pytest.mark.parametrize("patience", [0, 1, 2, 3, 5, 8, 13])
def test_stopping_from_outside_keeps_what_is_committed(patience):
    target, draft = scripted_pair(7, 0.8)
    whole = run(target, draft, FixedLength(), 3, 30, ())
    asked = iter(range(10**6))
    part = run(target, draft, FixedLength(), 3, 30, (), stopped=lambda: next(asked) >= patience)
    assert part.run.finish_reason == "stopped"
    assert part.run.output_ids == whole.run.output_ids[: len(part.run.output_ids)]
    assert len(part.run.output_ids) < len(whole.run.output_ids)


def test_statistics_ignore_tokens_that_the_draft_cannot_produce():
    logits = torch.tensor([[1.0, 0.0, -1.0], [2.0, 2.0, 0.0]])
    widened = torch.cat((logits, torch.full((2, 4), float("-inf"))), dim=-1)
    torch.testing.assert_close(distribution_statistics(widened), distribution_statistics(logits))
    row, confidence, entropy, margin = distribution_statistics(logits)[0].tolist()
    probabilities = torch.softmax(logits[0].double(), -1)
    assert row == 0
    assert confidence == pytest.approx(probabilities[0].item(), abs=1e-6)
    assert entropy == pytest.approx(-(probabilities * probabilities.log()).sum().item(), abs=1e-6)
    assert margin == pytest.approx((probabilities[0] - probabilities[1]).item(), abs=1e-6)
