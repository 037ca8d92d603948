"""The central promise: a replayed trace equals the trace that the engine really makes."""

import itertools

import numpy as np
import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair

from specviz.engine.engine import Engine, Settings
from specviz.engine.recording import record
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import trace_differences

THRESHOLDS = [round(0.05 * i, 2) for i in range(21)]
DRAFT_LENGTHS = (1, 2, 3, 5, 8, 16)
PROMPT = [11, 7, 42, 99, 5]
NEW_TOKENS = 40


def differences(engine, recording, settings_list, tolerance=1e-4):
    """All differences between engine and replay over `settings_list`, each with its setting."""
    found = []
    for threshold, max_draft, on_fail in settings_list:
        policy = ConfidenceThreshold(threshold, on_fail)
        real = engine.trace(list(recording.prompt_ids), Settings(policy, max_draft, recording.max_new_tokens))
        replayed = replay(recording, policy, max_draft)
        found += [
            f"tau {threshold}, gamma {max_draft}, {on_fail}: {line}"
            for line in trace_differences(real, replayed, confidence_tolerance=tolerance)
        ]
    return found


SOME_SETTINGS = (
    [(t, 5, "drop") for t in THRESHOLDS[::4]] + [(0.3, g, "keep") for g in DRAFT_LENGTHS] + [(0.0, 16, "drop")]
)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "mistral"])
@pytest.mark.parametrize("ends", [False, True])
def test_replay_equals_the_engine(family, ends):
    engine = Engine(loaded_pair(tiny_models.tiny_pair(family, ends=ends)), pass_mode="fast")
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS)
    assert (recording.draft_token != recording.output_ids).any(), "a draft that is always right has no branches"
    assert differences(engine, recording, SOME_SETTINGS) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_replay_equals_the_engine_across_a_grid(family):
    engine = Engine(
        loaded_pair(tiny_models.tiny_pair(family)),
        pass_mode="invariant",
        widest_draft=16,
    )
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS // 2)
    grid = [(t, g, "drop") for t, g in itertools.product(THRESHOLDS[::2], DRAFT_LENGTHS)]
    assert differences(engine, recording, grid) == []


def test_an_exact_recording_equals_the_engine_in_bf16_to_the_bit():
    pair = tiny_models.with_dtype(tiny_models.tiny_pair("llama"), torch.bfloat16)
    engine = Engine(loaded_pair(pair), pass_mode="invariant", widest_draft=16)
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, method="exact")
    assert differences(engine, recording, SOME_SETTINGS, tolerance=0.0) == []


def test_the_comparison_sees_a_wrong_recording():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS)
    recording.branch_confidence[:] = np.float32(0.999)
    assert differences(engine, recording, SOME_SETTINGS)


def test_both_ways_of_recording_agree_in_fp32():
    engine = Engine(
        loaded_pair(tiny_models.tiny_pair("llama", ends=True)),
        pass_mode="invariant",
        widest_draft=16,
    )
    fast, exact = (record(engine, PROMPT, max_new_tokens=NEW_TOKENS, method=method) for method in ("fast", "exact"))
    for name in (
        "output_ids",
        "draft_token",
        "branch_offsets",
        "branch_token",
        "target_rank_of_draft_token",
    ):
        np.testing.assert_array_equal(getattr(fast, name), getattr(exact, name))
    for name in (
        "draft_confidence",
        "branch_confidence",
        "draft_prob_of_emitted",
        "target_top_probs",
        "target_margin",
    ):
        np.testing.assert_allclose(getattr(fast, name), getattr(exact, name), atol=1e-4)


def test_columns_say_what_an_independent_forward_pass_says():
    pair = tiny_models.tiny_pair("llama")
    engine = Engine(loaded_pair(pair), pass_mode="fast")
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS)
    text = torch.tensor([[*PROMPT, *recording.output_ids.tolist()]])
    with torch.no_grad():
        target = pair.target(text).logits[0, len(PROMPT) - 1 : -1].softmax(-1)
        draft = pair.draft(text).logits[0, len(PROMPT) - 1 : -1].softmax(-1)
    rows = torch.arange(NEW_TOKENS)
    emitted, drafted = (
        text[0, len(PROMPT) :],
        torch.tensor(recording.draft_token).long(),
    )
    assert torch.equal(drafted, draft.argmax(-1))
    expected = {
        "draft_confidence": draft.max(-1).values,
        "draft_entropy": torch.special.entr(draft).sum(-1),
        "draft_prob_of_emitted": draft[rows, emitted],
        "target_prob_of_draft_token": target[rows, drafted],
        "target_entropy": torch.special.entr(target).sum(-1),
        "target_top_probs": target.topk(5).values,
        "draft_top_probs": draft.topk(5).values,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(recording, name), values, atol=1e-4, err_msg=name)
    rank = (target > target[rows, drafted][:, None]).sum(-1) + 1
    np.testing.assert_array_equal(recording.target_rank_of_draft_token, rank)


def test_a_stopped_run_is_recorded_as_far_as_it_came():
    engine = Engine(loaded_pair(tiny_models.tiny_pair("llama")), pass_mode="fast")
    asked = iter(range(10**6))
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, stopped=lambda: next(asked) > 20)
    assert 0 < len(recording.output_ids) < NEW_TOKENS
    assert recording.finish_reason == "length"
    whole = record(engine, PROMPT, max_new_tokens=NEW_TOKENS)
    np.testing.assert_array_equal(recording.output_ids, whole.output_ids[: len(recording.output_ids)])
