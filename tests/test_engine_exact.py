"""The engine's output against transformers' greedy `generate`, and against itself across all settings."""

import copy
import itertools

import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair

from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.family_check import make_runner
from specviz.engine.grouped_attention import NAME
from specviz.replay import ConfidenceThreshold, FixedLength

THRESHOLDS = (0.0, 0.3, 0.6, 0.9, 1.0)
DRAFT_LENGTHS = (1, 2, 4, 8, 16)
FAMILIES = ("llama", "gpt2", "qwen2", "mistral", "gemma3")
NEW_TOKENS = 48  # the windows of mistral and gemma3 hold 16 tokens, so they are crossed several times


def generate(target, prompt, new_tokens=NEW_TOKENS):
    ids = torch.tensor([prompt])
    output = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=0,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pass_mode", ["invariant", "fast"])
def test_output_is_that_of_generate_for_every_setting(family, pass_mode):
    pair = tiny_models.tiny_pair(family)
    engine = Engine(loaded_pair(pair), pass_mode=pass_mode, widest_draft=16)
    prompt = [11, 7, 42, 99, 5]
    expected = generate(pair.target, prompt)
    # two orderings cover the grid: every threshold at one length, every length at one threshold, both kinds of failing
    settings = [(t, 4, "drop") for t in THRESHOLDS] + [(0.3, g, "keep") for g in DRAFT_LENGTHS]
    accepted = 0
    for threshold, max_draft, on_fail in settings:
        trace = engine.trace(
            prompt,
            Settings(ConfidenceThreshold(threshold, on_fail), max_draft, NEW_TOKENS),
        )
        assert list(trace.run.output_ids) == expected, (threshold, max_draft, on_fail)
        accepted += trace.rounds["accepted"].sum()
    assert accepted > 0, "a draft that is never right exercises nothing"
    assert list(observe_all(engine.plain(prompt, NEW_TOKENS), ()).output_ids) == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_output_is_that_of_generate_on_the_whole_grid(family):
    pair = tiny_models.tiny_pair(family, ends=True)
    engine = Engine(loaded_pair(pair), pass_mode="fast", widest_draft=16)
    prompt = list(range(20, 60))
    expected = generate(pair.target, prompt)
    for threshold, max_draft in itertools.product(THRESHOLDS, DRAFT_LENGTHS):
        trace = engine.trace(prompt, Settings(ConfidenceThreshold(threshold), max_draft, NEW_TOKENS))
        assert list(trace.run.output_ids) == expected, (threshold, max_draft)


def target_rows(engine, prompt, settings):
    """Target logits and tokens seen in a run, by output position."""
    seen = {}
    original = engine._target.logits

    def spy(hidden):
        logits = original(hidden)
        seen.setdefault("rows", []).append(logits.clone())
        return logits

    engine._target.logits = spy
    try:
        trace = engine.trace(prompt, settings)
    finally:
        engine._target.logits = original
    rows = {}
    for start, known, logits in zip(trace.rounds["start"], trace.rounds["accepted"] + 1, seen["rows"], strict=True):
        for row in range(min(known, logits.shape[0])):
            rows[int(start) + row] = logits[row]
    return trace, rows


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_one_width_makes_bf16_logits_bitwise_independent_of_the_settings(family):
    pair = tiny_models.with_dtype(tiny_models.tiny_pair(family), torch.bfloat16)
    engine = Engine(loaded_pair(pair), pass_mode="invariant", widest_draft=16)
    prompt = [11, 7, 42, 99, 5]
    reference_trace, reference = target_rows(engine, prompt, Settings(FixedLength(), 1, NEW_TOKENS))
    for threshold, max_draft in ((0.0, 16), (0.3, 5), (0.6, 2), (1.0, 8)):
        trace, rows = target_rows(
            engine,
            prompt,
            Settings(ConfidenceThreshold(threshold), max_draft, NEW_TOKENS),
        )
        assert trace.run.output_ids == reference_trace.run.output_ids
        for position in range(NEW_TOKENS):
            assert torch.equal(rows[position], reference[position]), (
                threshold,
                max_draft,
                position,
            )


def test_the_bitwise_comparison_sees_a_pass_of_another_width():
    """The test above can fail: in pass mode `fast` the same comparison finds differences."""
    pair = tiny_models.with_dtype(tiny_models.tiny_pair("llama"), torch.bfloat16)
    engine = Engine(loaded_pair(pair), pass_mode="fast")
    prompt = [11, 7, 42, 99, 5]
    _, narrow = target_rows(engine, prompt, Settings(FixedLength(), 1, NEW_TOKENS))
    _, wide = target_rows(engine, prompt, Settings(FixedLength(), 8, NEW_TOKENS))
    assert any(not torch.equal(narrow[p], wide[p]) for p in set(narrow) & set(wide))


def test_rolling_back_leaves_no_trace_across_a_window_edge():
    """After a detour of rejected tokens the next hidden state equals that of a text that never took it."""
    for family in ("mistral", "gemma3"):
        pair = tiny_models.tiny_pair(family)
        engine = Engine(loaded_pair(pair), pass_mode="fast")
        text = list(range(30, 30 + 40))
        for cut in (10, 15, 16, 17, 31, 33):
            runner = engine._target
            runner.begin(128)
            runner.prefill(text[:cut])
            straight = runner.forward(text[cut : cut + 3])
            runner.begin(128)
            runner.prefill(text[:cut])
            runner.forward([200, 201, 202, 203, 204, 205, 206, 207])
            runner.rollback(8)
            assert torch.equal(runner.forward(text[cut : cut + 3]), straight), (
                family,
                cut,
            )


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_attention_that_reads_shared_keys_in_place_is_at_work_and_says_what_transformers_does(family):
    loaded = loaded_pair(tiny_models.tiny_pair(family)).target
    model = loaded.model
    untouched = copy.deepcopy(model)
    runner = make_runner(loaded, width=None)
    assert (model.config._attn_implementation, untouched.config._attn_implementation) == (NAME, "sdpa")
    text = list(range(5, 30))
    runner.begin(len(text))
    runner.prefill(text[:-3])
    with torch.inference_mode():
        expected = untouched.base_model(input_ids=torch.tensor([text])).last_hidden_state[0, -3:]
    torch.testing.assert_close(runner.forward(text[-3:]), expected, atol=1e-4, rtol=1e-4)
