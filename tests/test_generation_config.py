"""What a target's generation config asks for: outputs equal to `generate` with it, plainly and speculatively, and
replays equal to the engine."""

import json
import re
from dataclasses import replace

import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from specviz import cli
from specviz.engine.acceptance import GreedyRule
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.processing import Processing, TextRequests
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, Sampling, replay
from specviz.replay.generation import LogitRequests, TargetRequests, not_honoured_words
from specviz.replay.rules import Coupled, Rejection, TargetSampleMatch
from specviz.trace import read_recordings, read_trace_csv, trace_differences, write_recordings, write_trace_csv
from specviz.trace.recording import RecordingSet
from specviz.ui.requests import Drawing

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
    tokens = 12 if name == "forced_eos_token_id" else NEW_TOKENS
    expected = generate(pair, asked, tokens=tokens)
    assert expected != written[:tokens], "the request has to change the text"
    for options in ({"pass_mode": "fast"}, {"pass_mode": "invariant", "widest_draft": 8}, {"reduced": True}):
        engine = engine_of(pair, asked, **options)
        assert list(observe_all(engine.plain(PROMPT, tokens), ()).output_ids) == expected
        recording = record(engine, PROMPT, max_new_tokens=tokens, max_draft=8)
        assert name == "repetition_penalty" or list(recording.settings["generation_config"]) == [name]
        for tau, gamma, on_fail in ((0.0, 8, "drop"), (0.3, 4, "keep"), (0.6, 2, "drop")):
            policy = ConfidenceThreshold(tau, on_fail)
            real = engine.trace(PROMPT, Settings(policy, gamma, tokens))
            assert list(real.run.output_ids) == expected, (options, tau, gamma)
            assert trace_differences(real, replay(recording, policy, gamma), confidence_tolerance=1e-4) == []


def test_a_prompt_of_one_token_gets_the_first_token_forced(pair):
    asked = {"forced_bos_token_id": 33, "begin_suppress_tokens": [33, 1]}
    expected = generate(pair, asked, [11])
    assert expected[0] == 33
    engine = engine_of(pair, asked, reduced=True)  # whose draft has no row for 33
    assert list(engine.trace([11], Settings(FixedLength(), 4, NEW_TOKENS)).run.output_ids) == expected
    recording = record(engine, [11], max_new_tokens=NEW_TOKENS, max_draft=4)
    real = engine.trace([11], Settings(FixedLength(), 4, NEW_TOKENS))
    assert trace_differences(real, replay(recording, FixedLength(), 4), confidence_tolerance=1e-4) == []


def test_everything_at_once_under_sampling(pair, written):
    """Under `coupled` each text is plain decoding's with the same noise."""
    asked = asked_of(written)
    asked = {name: asked[name] for name in NAMES if name not in ("min_length", "forced_eos_token_id")}
    asked |= {"renormalize_logits": True, "forced_eos_token_id": 0}
    for reduced in (False, True):
        engine = engine_of(pair, asked, reduced, pass_mode="fast")
        for rule in (Coupled(), TargetSampleMatch()):
            sampling = Sampling(0.9, top_k=40)
            plain = observe_all(engine.plain(PROMPT, NEW_TOKENS, sampling=sampling, seed=3), ())
            recording = record(
                engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8, sampling=sampling, rule=rule, seed=3
            )
            for tau, gamma in ((0.0, 8), (0.3, 3)):
                real = engine.trace(PROMPT, Settings(ConfidenceThreshold(tau), gamma, NEW_TOKENS, sampling, rule, 3))
                assert real.run.output_ids == plain.output_ids
                replayed = replay(recording, ConfidenceThreshold(tau), gamma)
                assert trace_differences(real, replayed, confidence_tolerance=1e-4) == []
        runs = engine.trace(PROMPT, Settings(FixedLength(), 4, NEW_TOKENS, sampling, Rejection(), 1))
        assert len(runs.run.output_ids) >= asked["min_new_tokens"]


def test_logits_are_processed_as_generate_processes_them(pair, written):
    """Rows of texts of different lengths in one call, against transformers' own list for each."""
    asked = asked_of(written) | {"remove_invalid_values": True}
    config = GenerationConfig(
        **asked, do_sample=True, temperature=0.7, top_k=50, top_p=0.9, max_length=len(PROMPT) + 3, eos_token_id=0
    )
    pair.target._prepare_special_tokens(config, False, device="cpu")
    theirs = pair.target._get_logits_processor(
        config,
        input_ids_seq_length=len(PROMPT),
        encoder_input_ids=torch.tensor([PROMPT]),
        device="cpu",
        model_kwargs={},
    )
    requests = TargetRequests.of(config.to_dict())
    about = TextRequests(requests.logits, tuple(PROMPT), 3, (0,), 280)
    ours = Processing(Sampling(0.7, 50, 0.9, 0.0, requests.repetition_penalty), asked=about)
    contexts = [PROMPT, [*PROMPT, written[0]], [*PROMPT, 5, 7], [*PROMPT, 5, 7, 42, 5]]
    logits = 4 * torch.randn(len(contexts), 280, generator=torch.Generator().manual_seed(1))
    logits[1, 9] = torch.nan
    found = ours(logits.clone(), contexts)
    for row, context in enumerate(contexts):
        expected = theirs(torch.tensor([context]), logits[row : row + 1].clone())
        torch.testing.assert_close(found[row : row + 1], expected, rtol=0, atol=0)


def test_nothing_asked_for_costs_nothing(pair):
    engine = engine_of(pair, {})
    assert type(engine.rule_at_work(Settings(), PROMPT)) is GreedyRule
    settings = engine.fixed_settings(Settings())
    assert not {"generation_config", "not_honoured", "stop"} & set(settings)


def test_an_explicit_penalty_wins(pair):
    engine = engine_of(pair, {"repetition_penalty": 1.4})
    found = {
        penalty: engine.trace(
            PROMPT, Settings(max_new_tokens=NEW_TOKENS, sampling=Sampling(repetition_penalty=penalty))
        )
        for penalty in (None, 1.0, 1.4, 1.1)
    }
    assert {penalty: trace.run.settings["sampling"]["repetition_penalty"] for penalty, trace in found.items()} == {
        None: 1.4,
        1.0: 1.0,
        1.4: 1.4,
        1.1: 1.1,
    }
    assert list(found[1.0].run.output_ids) == generate(pair, {})
    assert list(found[1.1].run.output_ids) == generate(pair, {"repetition_penalty": 1.1})
    assert found[None].run.output_ids == found[1.4].run.output_ids != found[1.0].run.output_ids


def test_what_is_not_honoured_is_said_everywhere(pair, tmp_path):
    asked = {
        "num_beams": 4,
        "guidance_scale": 1.5,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "max_length": 99,
    }
    engine = engine_of(pair, asked | {"suppress_tokens": [5]})
    greedy = ["num_beams", "guidance_scale", "do_sample", "temperature", "top_p"]
    trace = engine.trace(PROMPT, Settings(max_new_tokens=8))
    assert trace.run.settings["not_honoured"] == greedy
    words = not_honoured_words(trace.run.settings)
    assert words.count(".") == 1 and all(name in words for name in greedy)
    write_trace_csv(trace, tmp_path / "trace", lambda token: b"x")
    assert read_trace_csv(tmp_path / "trace")[0].run.settings == trace.run.settings
    recording = record(engine, PROMPT, max_new_tokens=8, max_draft=2)
    write_recordings(RecordingSet([recording]), tmp_path / "set.parquet")
    kept = read_recordings(tmp_path / "set.parquet").recordings[0]
    assert kept == recording and kept.settings["not_honoured"] == greedy
    assert kept.settings["generation_config"] == {"suppress_tokens": [5]}
    sampled = engine.fixed_settings(Settings(sampling=Sampling(0.6, top_p=0.8)))
    assert sampled["not_honoured"] == ["num_beams", "guidance_scale", "top_p"]
    assert not_honoured_words({}) == "" == not_honoured_words({"not_honoured": ["<b>evil</b>"]})


def test_recordings_of_different_requests_do_not_belong_together(pair):
    recordings = [
        record(engine_of(pair, asked), PROMPT, max_new_tokens=8, max_draft=2)
        for asked in ({}, {"suppress_tokens": [5]})
    ]
    with pytest.raises(SpecVizError, match="settings"):
        RecordingSet(recordings)


def test_a_recording_is_measured_as_it_was_made(pair):
    """A pair whose generation config has changed since, or a recording from before it counted."""
    recorded = record(engine_of(pair, {"suppress_tokens": [5]}), PROMPT, max_new_tokens=8, max_draft=2, stop=("q",))
    drawing = Drawing.of(recorded)
    assert drawing.requests == LogitRequests(suppress_tokens=(5,)) and drawing.stop == ("q",)
    engine = engine_of(pair, {"suppress_tokens": [6]})
    again = engine.trace(PROMPT, Settings(max_new_tokens=8, **drawing.arguments()))
    assert again.run.output_ids == tuple(recorded.output_ids)
    before = replace(recorded, settings={"pass_mode": "fast", "rule": "greedy"})
    assert Drawing.of(before).requests == LogitRequests() and Drawing.of(before).sampling.repetition_penalty == 1


def test_a_forced_end_depends_on_the_number_of_tokens(pair):
    engine = engine_of(pair, {"forced_eos_token_id": [0]})
    recording = record(engine, PROMPT, max_new_tokens=12, max_draft=4)
    assert recording.finish_reason == "eos" and len(recording.output_ids) == 12
    assert replay(recording, FixedLength(), 4, 12).run.finish_reason == "eos"
    for tokens in (11, 20):
        with pytest.raises(SpecVizError, match="record again"):
            replay(recording, FixedLength(), 4, tokens)
    asks = iter([False] * 6 + [True] * 100)
    with pytest.raises(SpecVizError, match="fewer tokens"):
        record(engine, PROMPT, max_new_tokens=12, max_draft=4, stopped=lambda: next(asks))


@pytest.mark.parametrize(
    "asked",
    [
        {"suppress_tokens": "x"},
        {"suppress_tokens": [1.5]},
        {"bad_words_ids": [3]},
        {"bad_words_ids": [[]]},
        {"sequence_bias": {"x": 1.0}},
        {"sequence_bias": [[[1], float("nan")]]},
        {"min_new_tokens": -1},
        {"no_repeat_ngram_size": "2"},
        {"exponential_decay_length_penalty": [3]},
        {"forced_eos_token_id": -1},
        {"repetition_penalty": "big"},
        {"encoder_repetition_penalty": 0},
        {"stop_strings": [""]},
        {"stop_strings": 7},
        {"remove_invalid_values": "yes"},
        {"min_new_tokens": True},
        {"min_length": 10**400},
        {"repetition_penalty": float("nan")},
        {"watermarking_config": {"greenlist_ratio": 2}},
    ],
    ids=str,
)
def test_what_cannot_be_used_is_a_sentence(asked):
    with pytest.raises(SpecVizError) as error:
        TargetRequests.of(asked)
    assert str(error.value).endswith(".")


def test_a_token_that_the_target_lacks_is_a_sentence(pair):
    with pytest.raises(SpecVizError, match="280"):
        engine_of(pair, {"bad_words_ids": [[5, 280]]})
    engine_of(pair, {"suppress_tokens": [-1, 999]})  # names nothing that could be suppressed


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_requests_survive_their_json_form(data):
    token = st.integers(0, 300)
    fields = {
        "sequence_bias": st.lists(st.tuples(st.lists(token, min_size=1), st.floats(-9, 9)), min_size=1),
        "bad_words_ids": st.lists(st.lists(token, min_size=1), min_size=1),
        "suppress_tokens": st.lists(token),
        "forced_eos_token_id": st.one_of(token, st.lists(token)),
        "exponential_decay_length_penalty": st.tuples(token, st.floats(0.5, 2)),
        "min_length": token,
        "min_new_tokens": token,
        "remove_invalid_values": st.booleans(),
        "watermarking_config": st.fixed_dictionaries({"bias": st.floats(0, 5), "seeding_scheme": st.just("selfhash")}),
    }
    asked = data.draw(st.fixed_dictionaries({}, optional=fields))
    requests = LogitRequests.of(asked)
    assert LogitRequests.of(json.loads(json.dumps(requests.settings()))) == requests


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Options of a pair in folders whose target asks for something, and has something asked that is not honoured."""
    target, draft = tiny_models.save_pair(tmp_path_factory.mktemp("pair"), "llama")
    asked = {"suppress_tokens": [5], "repetition_penalty": 1.2, "num_beams": 3, "eos_token_id": 0}
    (target / "generation_config.json").write_text(json.dumps(asked))
    return ["--target", str(target), "--draft", str(draft), "--precision", "fp32"]


def test_the_command_line_says_what_is_honoured(saved, tmp_path, capsys):
    out = tmp_path / "trace"
    assert cli.main(["run", "the cat", *saved, "-n", "12", "--no-baseline", "--stop", "qqq", "--csv", str(out)]) == 0
    said = capsys.readouterr()
    assert "suppress_tokens" in said.out and re.search(r"repetition penalty +1\.2", said.out)
    assert said.err.count("Not honoured of the target's generation config: num_beams.") == 1
    settings = read_trace_csv(out)[0].run.settings
    assert settings["not_honoured"] == ["num_beams"] and settings["stop"] == ["qqq"]
    assert settings["sampling"]["repetition_penalty"] == 1.2
    (tmp_path / "prompts.txt").write_text("the cat\n")
    arguments = [
        "record",
        *saved,
        "-n",
        "8",
        "-g",
        "2",
        "--no-cost-model",
        "--repetition-penalty",
        "1",
        "--stop",
        "qqq",
    ]
    assert cli.main([*arguments, "--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "s.parquet")]) == 0
    assert "num_beams" in capsys.readouterr().err
    recorded = read_recordings(tmp_path / "s.parquet").settings
    assert (recorded["not_honoured"], recorded["stop"]) == (["num_beams"], ["qqq"])
    assert recorded["sampling"]["repetition_penalty"] == 1


@pytest.mark.parametrize("stop", [[""], ["x" * 300], list("abcdefghijklmnopq")], ids=len)
@pytest.mark.parametrize("command", [["run", "the cat"], ["record", "--out", "out.parquet"]], ids=lambda c: c[0])
def test_unusable_stop_strings_are_refused_before_anything_loads(command, stop, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_load", lambda options: pytest.fail("something was loaded"))
    assert cli.main([*command, *(f"--stop={string}" for string in stop)]) == 2
    assert capsys.readouterr().err.count(".") == 1
