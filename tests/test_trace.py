"""What a trace is: the builder's rows, validation and comparison."""

from dataclasses import replace

import numpy as np
import pytest
from reference_round import DraftStep, TargetStep, random_toy, reference_trace

from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, FixedLength, StepStats
from specviz.trace import (
    ROUND_COLUMNS,
    STEP_COLUMNS,
    PairInfo,
    RunInfo,
    TraceBuilder,
    columns_as_markdown,
    near_tie_epsilons,
    trace_differences,
)

EOS = (0,)


def scripted(texts: dict[str, str]):
    """Toy models from a dictionary: "context" -> "token"; tokens are letters, "." is end-of-sequence.

    A draft's token may carry its confidence in tenths, such as "b7"; without one it is 0.9.
    """
    ids = {letter: number for number, letter in enumerate(".abcdefghij")}
    letters = {number: letter for letter, number in ids.items()}

    def draft_step(context):
        said = texts["draft"]["".join(letters[token] for token in context)]
        confidence = float(np.float32(int(said[1:] or 9) / 10))
        return DraftStep(ids[said[0]], confidence, 1.0, 0.5)

    def target_next(context):
        return TargetStep(ids[texts["target"]["".join(letters[token] for token in context)]], 2.0)

    return draft_step, target_next, letters


def test_the_reference_on_a_story_told_by_hand():
    """Output "abcd." with two wrong guesses: after "ab" the draft says "e" (0.6) and goes on "f" (0.2)."""
    output = "abcd."
    target = {output[:end]: output[end] for end in range(5)}
    target |= {"abe": "i", "abef": "j"}  # asked by nobody who obeys the design, so its answer must not matter
    draft = {"": "a", "a": "b8", "ab": "e6", "abe": "f2", "abc": "d", "abcd": ".3", "abef": "g"}
    draft_step, target_next, letters = scripted({"draft": draft, "target": target})

    def told(policy, max_draft, max_new_tokens=10):
        trace = reference_trace(draft_step, target_next, policy, max_draft, max_new_tokens, EOS).validate()
        steps = trace.steps
        marks = [f"{letters[token]} {status}" for token, status in zip(steps["token"], steps["status"], strict=True)]
        rows = [[] for _ in trace.rounds["round"]]
        for number, mark in zip(steps["round"], marks, strict=True):
            rows[number].append(mark)
        return list(zip(trace.rounds["stop_reason"].tolist(), rows, strict=True))

    assert told(ConfidenceThreshold(0.5), 4) == [
        ("threshold", ["a accepted", "b accepted", "e rejected", "f withheld", "c correction"]),
        ("threshold", ["d accepted", ". withheld", ". bonus"]),
    ]
    assert told(ConfidenceThreshold(0.5, "keep"), 4) == [
        ("threshold", ["a accepted", "b accepted", "e rejected", "f discarded", "c correction"]),
        ("threshold", ["d accepted", ". accepted"]),
    ]
    assert told(FixedLength(), 2) == [
        ("max_draft", ["a accepted", "b accepted", "c bonus"]),
        ("eos", ["d accepted", ". accepted"]),
    ]
    assert told(FixedLength(), 1, 4) == [
        ("max_draft", ["a accepted", "b bonus"]),
        ("max_draft", ["e rejected", "c correction"]),
        ("budget", ["d plain"]),
    ]
    assert told(FixedLength(), 9, 4) == [
        ("budget", ["a accepted", "b accepted", "e rejected", "c correction"]),
        ("budget", ["d plain"]),
    ]
    assert told(ConfidenceThreshold(1.0), 9, 3) == [
        ("threshold", ["a withheld", "a plain"]),
        ("threshold", ["b withheld", "b plain"]),
        ("budget", ["c plain"]),
    ]


def test_every_column_is_documented():
    for columns in (ROUND_COLUMNS, STEP_COLUMNS):
        assert all(column.meaning and "|" not in column.meaning for column in columns)
        lines = columns_as_markdown(columns).splitlines()
        assert len(lines) == len(columns) + 2 and {line.count("|") for line in lines} == {5}
        assert f"| `{columns[0].name}` | int32 |  | {columns[0].meaning} |" == lines[2]


def small_trace(pair=PairInfo(), finish_reason="eos"):  # noqa: B008  frozen
    builder = TraceBuilder(pair)
    builder.add_round(
        drafted=[StepStats(0, 0, 5, 0.9, 0.1, 0.8), StepStats(1, 1, 6, 0.3, 1.0, 0.2)],
        distances=[0.5, 0.01],
        withheld=True,
        stop_reason="threshold",
        accepted=1,
        target_tokens=[5, 7],
        target_margins=[2.0, 0.2],
    )
    builder.add_round(
        drafted=[StepStats(0, 2, 8, 0.9, 0.1, 0.8), StepStats(1, 3, 9, 0.9, 0.1, 0.8)],
        distances=[0.5, 0.5],
        withheld=False,
        stop_reason="max_draft",
        accepted=0,
        target_tokens=[4],
        target_margins=[1.0],
        draft_seconds=0.25,
    )
    builder.add_round(
        drafted=[StepStats(0, 3, 0, 0.9, 0.1, 0.8)],
        distances=[0.5],
        withheld=False,
        stop_reason="eos",
        accepted=1,
        target_tokens=[0],
        target_margins=[3.0],
        target_emitted=False,
    )
    settings = {"policy": {"policy": "threshold", "threshold": 0.4}, "max_draft": 2}
    return builder.finish(RunInfo("measured", pair, settings, "hi", (1, 2), (5, 7, 4, 0), finish_reason))


def test_builder_derives_every_count_and_status():
    rounds, steps = small_trace().to_frames()
    assert list(rounds) == [column.name for column in ROUND_COLUMNS]
    assert list(steps) == [column.name for column in STEP_COLUMNS]
    assert rounds["start"].tolist() == [0, 2, 3]
    assert rounds["proposed"].tolist() == [1, 2, 1]
    assert rounds["tested"].tolist() == [1, 1, 1]
    assert rounds["discarded"].tolist() == [0, 1, 0]
    assert rounds["withheld"].tolist() == [1, 0, 0]
    assert rounds["emitted"].tolist() == [2, 1, 1]
    assert rounds["target_status"].tolist() == ["bonus", "correction", ""]
    assert steps["status"].tolist() == [
        *("accepted", "withheld", "bonus"),
        *("rejected", "discarded", "correction"),
        "accepted",
    ]
    assert steps["position"].tolist() == [0, 1, 1, 2, 3, 2, 3]
    assert steps["target_token"].tolist() == [5, 7, 7, 4, -1, 4, 0]
    assert not steps["near_tie"].any()


def test_near_ties_follow_the_precision():
    coarse = PairInfo(target_precision="bf16", draft_precision="bf16")
    assert small_trace(coarse).steps["near_tie"].tolist() == [False, True, True, False, False, False, False]
    assert near_tie_epsilons(coarse) > near_tie_epsilons(PairInfo())
    limits = {name: near_tie_epsilons(PairInfo(target_precision=name))[1] for name in ("nf4", "int8", "int8+t0")}
    assert limits["int8"] > limits["nf4"] == limits["int8+t0"], "only LLM.int8's rows depend on their neighbours"


def test_builder_refuses_lists_that_do_not_fit():
    with pytest.raises(ValueError, match="target tokens"):
        TraceBuilder(PairInfo()).add_round(
            drafted=[], distances=[], withheld=False, stop_reason="budget", accepted=0, target_tokens=[],
            target_margins=[],
        )  # fmt: skip


def spoilt(trace, table, name, row, value):
    values = getattr(trace, table)[name].copy()
    if values.dtype.kind == "U":
        values = values.astype("U20")
    values[row] = value
    return replace(trace, **{table: {**getattr(trace, table), name: values}})


@pytest.mark.parametrize(
    ("table", "name", "row", "value"),
    [
        *(("rounds", column.name, 1, 7) for column in ROUND_COLUMNS if column.dtype == "int32"),
        ("rounds", "stop_reason", 0, "tired"),
        ("rounds", "target_status", 0, "correction"),
        ("rounds", "target_status", 0, "gift"),
        ("rounds", "target_status", 0, "plain"),
        ("steps", "round", 0, 1),
        ("steps", "round", 6, 9),
        ("steps", "step", 0, 1),
        ("steps", "source", 0, "target"),
        ("steps", "source", 0, "author"),
        ("steps", "position", 3, 9),
        ("steps", "token", 0, 6),
        ("steps", "token", 2, 6),
        ("steps", "status", 0, "rejected"),
        ("steps", "status", 3, "accepted"),
        ("steps", "status", 4, "withheld"),
        ("steps", "status", 2, "correction"),
    ],
)
def test_validation_notices_any_contradiction(table, name, row, value):
    with pytest.raises(SpecVizError, match="contradicts itself") as caught:
        spoilt(small_trace(), table, name, row, value).validate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"), [("output_ids", (5, 7, 4)), ("origin", "guessed"), ("finish_reason", "bored")]
)
def test_validation_checks_the_run(field, value):
    trace = small_trace()
    with pytest.raises(SpecVizError, match="contradicts itself"):
        replace(trace, run=replace(trace.run, **{field: value})).validate()


def test_a_trace_stopped_before_its_first_round_is_valid():
    run = RunInfo("measured", PairInfo(), {}, "hi", (1,), (), "stopped")
    trace = TraceBuilder(PairInfo()).finish(run)
    assert trace_differences(trace, trace) == []


def test_differences_are_found_and_told_apart():
    trace = small_trace()
    assert trace_differences(trace, small_trace()) == []
    assert trace_differences(trace, spoilt(trace, "rounds", "draft_seconds", 0, 9.0)) == []
    assert trace_differences(trace, spoilt(trace, "steps", "confidence", 0, 0.90005), 1e-4) == []
    assert "confidence" in trace_differences(trace, spoilt(trace, "steps", "confidence", 0, 0.9002), 1e-4)[0]
    for table, columns in (("rounds", ROUND_COLUMNS), ("steps", STEP_COLUMNS)):
        for column in columns:
            if column.name in ("target_margin", "near_tie") or column.unit == "s":
                continue
            value = "other" if column.dtype == "str" else 77
            lines = trace_differences(trace, spoilt(trace, table, column.name, 1, value))
            assert any(f" {column.name} " in line for line in lines), (column.name, lines)
    assert "finish_reason" in trace_differences(trace, small_trace(finish_reason="stopped"))[0]
    toy = random_toy(3)
    long, short = (reference_trace(*toy, FixedLength(), 3, tokens, EOS) for tokens in (12, 4))
    assert any("rows" in line for line in trace_differences(long, short))
    assert len(trace_differences(long, short, limit=3)) == 3
