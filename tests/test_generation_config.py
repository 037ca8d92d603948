"""What a target's generation config asks for: outputs equal to `generate` with it, plainly and speculatively, and
replays equal to the engine."""

import copy

import numpy as np
import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair
from transformers import GenerationConfig

from specviz.engine.acceptance import GreedyRule
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.recording import record, write_output
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, Sampling, replay, replay_expected, replay_grid, trace_counts
from specviz.replay.generation import LogitRequests, TargetRequests, not_honoured_words
from specviz.replay.rules import Coupled, Rejection, TargetSampleMatch
from specviz.trace import read_recordings, read_trace_csv, trace_differences, write_recordings, write_trace_csv
from specviz.trace.recording import RecordingSet

PROMPT = [11, 7, 42, 99, 5, 7, 42]
NEW_TOKENS = 32
# Each changes the text of the tiny pair; the tokens are among those that it writes.
ASKED = {
    "repetition_penalty": 1.4,
    "encoder_repetition_penalty": 3.0,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 1,
    "min_new_tokens": 30,
    "min_length": 38,
    "forced_eos_token_id": 0,
    "exponential_decay_length_penalty": (4, 1.2),
    "watermarking_config": {"bias": 4.0, "context_width": 1},
}


@pytest.fixture(scope="module")
def pair():
    return tiny_models.tiny_pair("llama", ends=True)


@pytest.fixture(scope="module")
def written(pair):
    """What the pair writes when nothing is asked for."""
    return generate(pair, {})


def asked_of(written):
    """`ASKED`, and what speaks of tokens that the target would write."""
    first, *others = (token for token in dict.fromkeys(written) if token != 0)
    seen = list(dict.fromkeys(others))[:3]
    at = written.index(seen[1])
    return ASKED | {
        "suppress_tokens": [first, seen[1]],
        "begin_suppress_tokens": [written[0], 5],
        "bad_words_ids": [[seen[0]], [written[at - 1], written[at]]],
        "sequence_bias": [[[seen[0]], -9.0], [[written[at - 1], written[at]], -9.0], [[17], 2.5]],
    }


NAMES = (*ASKED, "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")


def generate(pair, asked, prompt=PROMPT, tokens=NEW_TOKENS):
    config = GenerationConfig(**asked, do_sample=False, max_new_tokens=tokens, eos_token_id=0, pad_token_id=0)
    ids = torch.tensor([prompt])
    output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output[0, len(prompt) :].tolist()


def engine_of(pair, asked, reduced=False, **options):
    loaded = loaded_pair(pair)
    loaded.target.model.generation_config = GenerationConfig(**asked, eos_token_id=0)
    engine = Engine(loaded, **options)
    if reduced:  # the draft has a row for every other token
        head = engine.draft_runner.head
        original, kept = type(head).__call__, [1, *range(2, 280, 2)]
        head._cover(torch.tensor(kept))
        rows = {"__call__": lambda self, hidden: original(self, hidden)[:, kept]}
        head.__class__ = type("Reduced", (type(head),), rows)
    return engine


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_generates_and_replays_are_the_engines(pair, written, name):
    asked = {name: asked_of(written)[name]}
    expected = generate(pair, asked)
    assert expected != written, "the request has to change the text"
    for options in ({"pass_mode": "fast"}, {"pass_mode": "invariant", "widest_draft": 8}, {"reduced": True}):
        engine = engine_of(pair, asked, **options)
        assert list(observe_all(engine.plain(PROMPT, NEW_TOKENS), ()).output_ids) == expected
        recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8)
        assert name == "repetition_penalty" or list(recording.settings["generation_config"]) == [name]
        for tau, gamma, on_fail in ((0.0, 8, "drop"), (0.3, 4, "keep"), (0.6, 2, "drop")):
            policy = ConfidenceThreshold(tau, on_fail)
            real = engine.trace(PROMPT, Settings(policy, gamma, NEW_TOKENS))
            assert list(real.run.output_ids) == expected, (options, tau, gamma)
            assert trace_differences(real, replay(recording, policy, gamma), confidence_tolerance=1e-4) == []
