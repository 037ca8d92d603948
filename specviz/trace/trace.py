"""What happened in one generation: the run, its rounds and its steps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import numpy as np
import pandas as pd
from msgspec import Meta

from specviz.errors import SpecVizError
from specviz.trace.columns import (
    FINISH_REASONS,
    LONGEST_SECONDS,
    ROUND_COLUMNS,
    STEP_COLUMNS,
    STOP_REASONS,
    TEXT,
)
from specviz.trace.json_reader import Name, Number, TokenId
from specviz.trace.limits import LARGEST_INT, MOST_EOS, MOST_OUTPUT, MOST_PROMPT, MOST_PROMPT_TEXT
from specviz.trace.statuses import DRAFT_STATUSES, EMITTED_STATUSES, TARGET_STATUSES

ORIGINS = ("measured", "replayed")


@dataclass(frozen=True)
class PairInfo:
    """The two models and what they ran on."""

    target: Name = ""
    draft: Name = ""
    target_revision: Name = ""
    draft_revision: Name = ""
    target_precision: Name = "fp32"
    draft_precision: Name = "fp32"
    device: Name = ""
    versions: Mapping[Name, Name] = field(default_factory=dict)  # library -> version
    target_source: Name = ""  # what the user loaded it by, a path or a hub id; "" where that is not known
    draft_source: Name = ""


class RunSettings(TypedDict, total=False):
    """The shape of what is known of a run's settings; other names may stand beside these.

    Numbers of policies and rules, and what sampling is made of, are checked by `specviz.replay`, which knows them.
    """

    policy: dict[Name, Any]
    max_draft: Annotated[int, Meta(ge=1, le=LARGEST_INT)]
    max_new_tokens: Annotated[int, Meta(ge=1, le=LARGEST_INT)]
    pass_mode: Name
    widest_draft: Annotated[int, Meta(ge=0, le=LARGEST_INT)]
    compiled: bool
    rule: Name
    sampling: dict[Name, Number | int | None]
    eos_ids: Annotated[list[TokenId], Meta(max_length=MOST_EOS)]
    recorded: Name
    generation_config: dict[Name, Any]
    not_honoured: list[Name]
    stop: list[Name]


@dataclass(frozen=True)
class RunInfo:
    """Everything about a generation that is not a round or a step.

    `settings` is JSON-able and holds at least `policy` (the policy's own settings), `max_draft`, `max_new_tokens`,
    `pass_mode` ("invariant" or "fast"), `rule` (acceptance rule) and `eos_ids`; where there is any, `stop` (strings
    that end the text), `generation_config` (what is honoured of the target's), `not_honoured` (names of what is not).
    """

    origin: Name  # "measured" or "replayed"
    pair: PairInfo
    settings: Mapping[Name, Any]
    prompt: Annotated[str, Meta(max_length=MOST_PROMPT_TEXT)]
    prompt_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_PROMPT)]
    output_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_OUTPUT)]
    finish_reason: Name  # one of FINISH_REASONS
    seed: int = 0
    prefill_seconds: Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)] = float("nan")
    total_seconds: Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)] = float("nan")


@dataclass(frozen=True, eq=False)
class Trace:
    """One generation. `rounds` and `steps` map the names in `columns.py` to numpy arrays of one length each."""

    run: RunInfo
    rounds: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]

    def to_frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rounds and steps as data frames."""
        return pd.DataFrame(self.rounds), pd.DataFrame(self.steps)

    def validate(self) -> "Trace":
        """Check that the tables agree with each other and with the run; return self.

        Raises:
            SpecVizError: naming the first thing that does not fit.
        """
        problem = next(_problems(self), None)
        if problem:
            raise SpecVizError(f"This trace contradicts itself: {problem}; write or record it again.")
        return self


def column_arrays(columns, values: Mapping) -> dict[str, np.ndarray]:
    """Arrays in the documented order and types from any mapping of sequences (an empty one gives empty columns)."""
    return {
        column.name: np.asarray(values.get(column.name, ()), dtype=np.str_ if column.dtype == TEXT else column.dtype)
        for column in columns
    }


def _problems(trace: Trace):
    """Yield what is wrong, most basic first."""
    run, rounds, steps = trace.run, trace.rounds, trace.steps
    for name, columns, table in (("rounds", ROUND_COLUMNS, rounds), ("steps", STEP_COLUMNS, steps)):
        if list(table) != [column.name for column in columns]:
            yield f"the columns of {name} are {list(table)}"
            return
        if len({len(values) for values in table.values()}) > 1:
            yield f"the columns of {name} differ in length"
            return
        if problem := next(filter(None, (column.problem(table[column.name]) for column in columns)), None):
            yield f"in {name}, {problem}"
            return
    if run.origin not in ORIGINS:
        yield f"the origin is {run.origin!r}"
    if run.finish_reason not in FINISH_REASONS:
        yield f"the finish reason is {run.finish_reason!r}"

    number_of_rounds = len(rounds["round"])
    if not np.array_equal(rounds["round"], np.arange(number_of_rounds)):
        yield "rounds are not numbered from 0 in order"
        return
    if not np.array_equal(rounds["start"], np.cumsum(rounds["emitted"]) - rounds["emitted"]):
        yield "a round does not start where the one before it ended"
    if rounds["emitted"].sum() != len(run.output_ids):
        yield "the rounds do not emit as many tokens as the output holds"
    identities = (
        ("draft_steps", rounds["proposed"] + rounds["withheld"]),
        ("tested", np.minimum(rounds["accepted"] + 1, rounds["proposed"])),
        ("discarded", rounds["proposed"] - rounds["tested"]),
        ("emitted", rounds["accepted"] + (rounds["target_status"] != "")),
    )
    for name, expected in identities:
        if not np.array_equal(rounds[name], expected):
            yield f"the counts of round {np.flatnonzero(rounds[name] != expected)[0]} disagree on {name}"
    policy = run.settings.get("policy", {}).get("policy", "")
    if not isinstance(policy, str) or not re.fullmatch("[a-z_]*", policy):  # it becomes a cell of a spreadsheet
        yield f"the policy's name {str(policy)[:40]!r} is more than small letters and underscores"
    if not np.isin(rounds["stop_reason"], (*STOP_REASONS, policy)).all():
        yield "a stop reason is neither the policy's name nor max_draft, eos, stop or budget"
    rejecting = rounds["accepted"] < rounds["proposed"]
    if not np.isin(rounds["target_status"], (*TARGET_STATUSES, "")).all():
        yield "a round's target status is unknown"
    if not np.array_equal(rounds["target_status"] == "correction", rejecting):
        yield "a correction must follow a rejection, and only that"
    if (rounds["proposed"][rounds["target_status"] == "bonus"] == 0).any():
        yield "a round has a bonus token but proposed nothing"
    if (rounds["proposed"][rounds["target_status"] == "plain"] > 0).any():
        yield "a round has a plain token but proposed something"

    order = np.lexsort((steps["step"], steps["round"]))
    if not np.array_equal(order, np.arange(len(order))) or not np.isin(steps["round"], rounds["round"]).all():
        yield "the steps are not in the order of their rounds"
        return
    position = rounds["start"][steps["round"]] + steps["step"]
    drafted = steps["source"] == "draft"
    target = steps["source"] == "target"
    position[target] = (rounds["start"] + rounds["accepted"])[steps["round"][target]]
    if not np.array_equal(steps["position"], position):
        yield "a step's position does not follow from its round and number"
    if not (drafted | target).all():
        yield "a step's source is neither draft nor target"
    if not np.isin(steps["status"][drafted], DRAFT_STATUSES).all():
        yield "a draft step's status is unknown"
    if not np.isin(steps["status"][target], TARGET_STATUSES).all():
        yield "a target token's status is unknown"
    counted = {"rejected": rounds["tested"] - rounds["accepted"]}
    counted |= {status: rounds[status] for status in ("accepted", "discarded", "withheld")}
    counted |= {status: (rounds["target_status"] == status).astype(int) for status in TARGET_STATUSES}
    for status, expected in counted.items():
        found = np.bincount(steps["round"][steps["status"] == status], minlength=number_of_rounds)
        if not np.array_equal(found, expected):
            yield f"rounds and steps count {status} tokens differently"
    emitted = np.isin(steps["status"], EMITTED_STATUSES)
    if not np.array_equal(steps["token"][emitted], np.asarray(run.output_ids)):
        yield "the accepted and target tokens do not spell the output"


def trace_differences(a: Trace, b: Trace, confidence_tolerance: float = 0.0, limit: int = 20) -> list[str]:
    """Where two traces of the same prompt differ, as readable lines (empty: they are equal).

    Compared are tokens, positions, statuses, stop reasons, counts, the target's tokens, the finish reason, and the
    draft's confidence and margin up to `confidence_tolerance` (entropy, a sum over the vocabulary, up to ten times
    it). Ignored are times, names of models, the target's margins and near-tie flags.
    """
    lines = []
    for name in ("prompt_ids", "output_ids", "finish_reason"):
        left, right = getattr(a.run, name), getattr(b.run, name)
        if left != right:
            lines.append(f"run: {name} {left} / {right}")
    tolerances = {"confidence": confidence_tolerance, "margin": confidence_tolerance}
    tolerances["entropy"] = 10 * confidence_tolerance
    ignored = {"draft_seconds", "verify_seconds", "overhead_seconds", "target_margin", "near_tie"}
    for table, columns in (("rounds", ROUND_COLUMNS), ("steps", STEP_COLUMNS)):
        left_table, right_table = getattr(a, table), getattr(b, table)
        lengths = len(left_table["round"]), len(right_table["round"])
        if lengths[0] != lengths[1]:
            lines.append(f"{table}: {lengths[0]} / {lengths[1]} rows")
        common = min(lengths)
        for name in (column.name for column in columns if column.name not in ignored):
            left, right = left_table[name][:common], right_table[name][:common]
            if name in tolerances:
                same = (np.isnan(left) & np.isnan(right)) | (np.abs(left - right) <= tolerances[name])
            else:
                same = left == right
            for row in np.flatnonzero(~same)[:limit]:
                where = f"round {left_table['round'][row]}"
                if table == "steps":
                    where += f" step {left_table['step'][row]} (position {left_table['position'][row]})"
                lines.append(f"{where}: {name} {left[row]} / {right[row]}")
    return lines[:limit]
