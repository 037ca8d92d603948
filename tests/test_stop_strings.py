"""Stop strings: a text ends where `generate` with the same strings ends it, however drafted; replays are exact."""

from io import StringIO

import numpy as np
import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.recording import record
from specviz.engine.terminal_view import TerminalView
from specviz.errors import SpecVizError
from specviz.models.token_text import TokenText, _byte_of_character
from specviz.replay import (
    ConfidenceThreshold,
    PolicyReplayer,
    Sampling,
    replay,
    replay_expected,
    replay_grid,
    trace_counts,
)
from specviz.replay.policies import LlamaCpp
from specviz.replay.rules import Rejection
from specviz.replay.stop_strings import StopStrings, check_stop_strings
from specviz.trace import read_recordings, read_trace_csv, trace_differences, write_recordings, write_trace_csv
from specviz.trace.recording import RecordingSet
from specviz.ui.panel_data import round_variants

PROMPT = [11, 7, 42, 99, 5]
NEW_TOKENS = 32
# What the tokens of the text spell, one after the other: words over several tokens, characters split over tokens.
PIECES = [b"We", b" st", b"op", b"ped", b" at", b" a", b" ca", b"f\xc3", b"\xa9", b",", b" pa", b"id", b" 5", b" \xe2"]
PIECES += [b"\x82\xac", b".", b"\n", b"\n\n", b"Us", b"er", b":", b" ho", b"w", b" mu", b"ch", b"?"]
POLICIES = tuple(
    (ConfidenceThreshold(tau, on_fail), gamma)
    for tau, gamma, on_fail in (
        (0.0, 8, "drop"),
        (0.0, 3, "drop"),
        (0.2, 4, "keep"),
        (0.5, 2, "drop"),
        (1.0, 1, "drop"),
    )
)


def tokenizer_that_spells(ids: list[int], pieces: list[bytes]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose tokens `ids`, in order of appearance, are `pieces`; all others begin with "z"."""
    characters = {byte: character for character, byte in _byte_of_character().items()}
    spelt = dict(zip(dict.fromkeys(ids), pieces, strict=False))
    vocabulary = {
        "".join(characters[byte] for byte in spelt.get(token, b"z%d" % token)): token
        for token in range(1, tiny_models.VOCAB_SIZE)
    }
    tokenizer = Tokenizer(models.BPE(vocabulary | {"<|end|>": 0}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


@pytest.fixture(scope="module")
def pair():
    plain = tiny_models.tiny_pair("llama", noise=0.01)
    output = generate(plain, ())
    tokenizer = tokenizer_that_spells(output, PIECES)
    return tiny_models.TinyPair(plain.target, plain.draft, tokenizer)


@pytest.fixture(scope="module")
def engine(pair):
    return Engine(loaded_pair(pair), pass_mode="fast", widest_draft=8)


@pytest.fixture(scope="module")
def whole(pair):
    """What is written without stop strings, and the bytes of each token."""
    bytes_of = TokenText(pair.tokenizer).bytes_of
    output = generate(pair, ())
    return output, [bytes_of(token) for token in output]


def generate(pair, stop):
    ids = torch.tensor([PROMPT])
    limits = {"max_new_tokens": NEW_TOKENS, "eos_token_id": 0, "pad_token_id": 0, "do_sample": False}
    strings = {"stop_strings": list(stop), "tokenizer": pair.tokenizer} if stop else {}
    output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), **limits, **strings)
    return output[0, len(PROMPT) :].tolist()


def cut(whole, stop):
    """The shortest beginning of the text that holds one of the strings; all of it if none does."""
    output, pieces = whole
    for number in range(1, len(output) + 1):
        if any(string.encode() in b"".join(pieces[:number]) for string in stop):
            return output[:number]
    return output


STRINGS = [
    ("stop",),  # over two tokens, beginning within one
    ("opp",),  # ends within a token that goes on
    ("café",),  # a character split over tokens
    ("é",),
    ("€",),
    ("\n\n",),
    ("\n\n\n",),
    (".\n", "\n\n"),  # overlapping
    ("User:", "ser"),
    ("no such", "pa aid"),
    ("id 5We",),
    ("z1", "z2", "How"),  # what the draft alone would say
]


@pytest.mark.parametrize("stop", STRINGS, ids=repr)
def test_a_text_ends_where_generate_ends_it(engine, pair, whole, stop):
    expected = generate(pair, stop)
    assert expected == cut(whole, stop)
    plain = observe_all(engine.plain(PROMPT, NEW_TOKENS, stop=stop), ())
    assert list(plain.output_ids) == expected
    ended = any(string.encode() in b"".join(whole[1]) for string in stop)
    assert plain.reason == ("stop" if ended else "length")
    for policy, gamma in POLICIES:
        trace = engine.trace(PROMPT, Settings(policy, gamma, NEW_TOKENS, stop=stop))
        assert list(trace.run.output_ids) == expected and trace.run.finish_reason == plain.reason
        assert trace.run.settings["stop"] == list(stop)


@pytest.mark.parametrize("pass_mode", ["fast", "invariant"])
@pytest.mark.parametrize("stop", [("pa aid",), ("€", "z"), ("z1", "id 5We"), ("z", "Z")], ids=repr)
def test_a_recording_replays_every_setting(pair, stop, pass_mode):
    engine = Engine(loaded_pair(pair), pass_mode=pass_mode, widest_draft=8)
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8, stop=stop)
    reasons = set()
    for policy, gamma in (*POLICIES, (LlamaCpp(), 6)):
        for tokens in {len(recording.output_ids) - 1, len(recording.output_ids), NEW_TOKENS}:
            real = engine.trace(PROMPT, Settings(policy, gamma, tokens, stop=stop))
            replayed = replay(recording, policy, gamma, tokens)
            assert trace_differences(real, replayed, confidence_tolerance=1e-4) == [], (policy, gamma, tokens)
            reasons |= set(real.rounds["stop_reason"])
    assert "stop" in reasons


@pytest.mark.parametrize("stop", [("stop",), ("€", "z"), ("pa aid",)], ids=repr)
def test_every_way_of_replaying_agrees(engine, stop, tmp_path):
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8, stop=stop)
    write_recordings(RecordingSet([recording]), tmp_path / "set.parquet")
    recording = read_recordings(tmp_path / "set.parquet").recordings[0]
    assert recording.ended and recording.finish_reason == "stop"
    thresholds = (0.0, 0.2, 0.5, 1.0)
    for on_fail in ("drop", "keep"):
        grid = replay_grid([recording], thresholds, (1, 3, 8), on_fail).counts
        for row, tau in enumerate(thresholds):
            for column, gamma in enumerate((1, 3, 8)):
                policy = ConfidenceThreshold(tau, on_fail)
                trace = replay(recording, policy, gamma)
                counts = trace_counts(trace)
                for other, at in (
                    (grid, (0, row, column)),
                    (PolicyReplayer([recording], gamma).counts(policy), (0,)),
                    (replay_expected(recording, policy, gamma), ()),
                ):
                    for name in vars(counts):
                        exact, found = getattr(counts, name), getattr(other, name)[at]
                        np.testing.assert_allclose(found[: len(exact)] if exact.ndim else found, exact, err_msg=name)
    _, starts = round_variants(recording, 8)
    first = replay(recording, ConfidenceThreshold(0.0), 8).rounds
    for start, reason, accepted in zip(first["start"], first["stop_reason"], first["accepted"], strict=True):
        variant = starts[start][0]
        assert variant.stop_reason == reason and variant.steps.count("a") == accepted
    write_trace_csv(replay(recording, ConfidenceThreshold(0.0), 8), tmp_path / "trace", lambda token: b"x")
    assert read_trace_csv(tmp_path / "trace")[0].run.finish_reason == "stop"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_strings_end_the_text_where_they_first_stand(engine, whole, data):
    text = b"".join(whole[1]).decode("utf-8", "ignore")
    ends = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 9))
    pieces = st.one_of(ends.map(lambda cut: text[cut[0] : cut[0] + cut[1]]), st.sampled_from(["z", "z1", "z12", "Q"]))
    stop = tuple(data.draw(st.lists(pieces, min_size=1, max_size=3, unique=True)))
    policy, gamma = data.draw(st.sampled_from(POLICIES))
    sampling = data.draw(st.sampled_from([Sampling(), Sampling(0.7, top_k=20)]))
    real = engine.trace(PROMPT, Settings(policy, gamma, NEW_TOKENS, sampling, seed=2, stop=stop))
    plain = observe_all(engine.plain(PROMPT, NEW_TOKENS, sampling=sampling, seed=2, stop=stop), ())
    assert (real.run.output_ids, real.run.finish_reason) == (plain.output_ids, plain.reason)
    if sampling.greedy:
        assert list(plain.output_ids) == cut(whole, stop)
    recording = record(engine, PROMPT, max_new_tokens=NEW_TOKENS, max_draft=8, sampling=sampling, seed=2, stop=stop)
    assert trace_differences(real, replay(recording, policy, gamma), confidence_tolerance=1e-4) == []


def test_an_accepted_run_can_end_the_text(engine):
    """Then the target adds nothing, and nothing is drafted beyond."""
    found = [
        engine.trace(PROMPT, Settings(ConfidenceThreshold(0.0), 8, NEW_TOKENS, stop=stop)).rounds
        for stop in (("stop",), ("€",), ("pa aid",), ("\n",))
    ]
    by_run = [rounds for rounds in found if rounds["target_status"][-1] == ""]
    assert by_run and all(rounds["accepted"][-1] == rounds["proposed"][-1] for rounds in by_run)
    assert {rounds["stop_reason"][-1] for rounds in by_run} <= {"stop", "max_draft"}


def test_expectations_under_rejection_know_the_end(engine):
    sampling = Sampling(0.7, top_k=20)
    for seed in range(6):
        recording = record(
            engine,
            PROMPT,
            max_new_tokens=24,
            max_draft=4,
            sampling=sampling,
            rule=Rejection(),
            seed=seed,
            stop=("z", "o"),
        )
        counts = replay_expected(recording, ConfidenceThreshold(0.1), 4)
        assert recording.finish_reason == "stop"
        np.testing.assert_allclose(counts.emitted, len(recording.output_ids))


def test_prompt_text_does_not_count(engine, pair):
    """The prompt spells the beginning of the string, the first token its end: as in servers, the text goes on."""
    text = TokenText(pair.tokenizer)
    across = (text.bytes_of(PROMPT[-1]) + text.bytes_of(generate(pair, ())[0])).decode()
    assert len(generate(pair, (across,))) == 1  # `generate` reads over the edge
    assert len(observe_all(engine.plain(PROMPT, NEW_TOKENS, stop=(across,)), ()).output_ids) == NEW_TOKENS


@pytest.mark.parametrize("stop", STRINGS, ids=repr)
def test_the_printed_text_stops_before_the_string(engine, pair, whole, stop):
    written = StringIO()
    view = TerminalView(Console(file=written, width=1000), TokenText(pair.tokenizer), stop=stop)
    engine.trace(PROMPT, Settings(ConfidenceThreshold(0.0), 8, NEW_TOKENS, stop=stop), observers=(view.observe,))
    text = b"".join(whole[1][: len(cut(whole, stop))]).decode()
    first = min((text.index(string) for string in stop if string in text), default=len(text))
    assert written.getvalue() == text[:first] + "\n"


def test_the_targets_own_stop_strings_count_unless_a_run_has_its_own(pair, whole):
    loaded = loaded_pair(pair)
    loaded.target.model.generation_config.stop_strings = ["pa aid"]
    engine = Engine(loaded, pass_mode="fast")
    for stop, expected in ((None, ("pa aid",)), (("stop",), ("stop",)), ((), ())):
        assert list(observe_all(engine.plain(PROMPT, NEW_TOKENS, stop=stop), ()).output_ids) == cut(whole, expected)
        trace = engine.trace(PROMPT, Settings(max_new_tokens=NEW_TOKENS, stop=stop))
        assert tuple(trace.run.settings.get("stop", ())) == expected


def test_recordings_with_different_stop_strings_do_not_belong_together(engine):
    recordings = [record(engine, PROMPT, max_new_tokens=8, max_draft=2, stop=stop) for stop in (("stop",), ())]
    with pytest.raises(SpecVizError, match="settings"):
        RecordingSet(recordings)


@pytest.mark.parametrize(
    "strings",
    [("",), ("a", ""), tuple("abcdefghijklmnopq"), ("a" * 201,), ("\udcff",), (1,)],
    ids=lambda s: repr(s)[:20],
)
def test_unusable_strings_are_a_sentence(strings):
    with pytest.raises(SpecVizError) as error:
        Settings(stop=strings)
    assert str(error.value).endswith(".")
    assert check_stop_strings(["a", "b", "a"]) == ("a", "b")


def test_a_string_has_to_end_within_the_last_token():
    stop = StopStrings(("ab", "bcd"), {0: b"a", 1: b"b", 2: b"c", 3: b"d", 4: b""}.get)
    assert stop.completed_by_last([0, 1]) and stop.completed_by_last([2, 1, 2, 3])
    assert not stop.completed_by_last([0, 1, 4]) and not stop.completed_by_last([0, 1, 2])
    assert not stop.completed_by_last([0, 1], first=1)
    assert (stop.first(b"xbcdab"), stop.first(b"xyz")) == (1, -1)
