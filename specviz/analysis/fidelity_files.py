"""A report on fidelity as a folder.

`drift.parquet` has a row per text, rule and output position, `pictures.parquet` a row per position and token of the
first text; `rules.csv` is the table of the rules at the report's own setting; `fidelity.json` holds everything else.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

from specviz.analysis.cost_model import CostModel
from specviz.analysis.fidelity import DriftedText, RuleDrift
from specviz.analysis.fidelity_report import (
    FidelityReport,
    Output,
    Pictures,
    ToldTest,
    TraceToken,
    trade_off_table,
)
from specviz.analysis.report import write_table
from specviz.errors import SpecVizError
from specviz.replay import Sampling
from specviz.replay.rules import AcceptanceRule, rule_from_text
from specviz.trace import PairInfo
from specviz.trace.columns import FLOAT, INT, Column, nats, probability
from specviz.trace.files import whole_file
from specviz.trace.json_reader import Name, Number, TokenId, read_json
from specviz.trace.limits import (
    MOST_DRAFT,
    MOST_OUTPUT,
    MOST_PROMPT,
    MOST_PROMPT_TEXT,
    MOST_REPORT,
    MOST_UNPACKED,
)
from specviz.trace.parquet import open_parquet
from specviz.trace.token_bytes import TokenTable, tokens_from_json, tokens_to_json

DRIFT, PICTURES, RULES, FACTS = "drift.parquet", "pictures.parquet", "rules.csv", "fidelity.json"
ALONG = ("confidence", "entropy")
PER_RULE = ("accept", "kl", "total_variation", "surprise")
PICTURE = ("p", "q", "overlap", "residual")
TESTS = ("greedy", "first_three", "first_token")
ROUNDING = 1e-3  # sums of probabilities over a vocabulary may leave their range by so much
DRIFT_COLUMNS = (
    Column("text", "int16", "", "number of the text, from 0"),
    Column("prompt_tokens", INT, "tokens", "of the text's prompt", most=MOST_PROMPT),
    probability("confidence", "the draft's highest probability"),
    nats("entropy", "entropy of the target's distribution"),
    Column("accept", FLOAT, "probability", "chance that the draft's token is accepted", -ROUNDING, 1 + ROUNDING),
    Column("kl", FLOAT, "nats", "of the effective distribution from the target's", most=math.inf),
    Column("total_variation", FLOAT, "probability", "between them", -ROUNDING, 1 + ROUNDING),
    Column("surprise", FLOAT, "nats", "mean of -log p of the token that the text gets", -ROUNDING, math.inf),
)
MOST_RULES = 100
Note = Annotated[str, msgspec.Meta(max_length=10_000)]
PLAIN = ("pass_mode", "threshold", "max_draft", "samples", "prompt")


def write_fidelity(report: FidelityReport, folder: str | Path) -> None:
    """Write the folder; `fidelity.json` comes last, so that a folder that has one is whole.

    Raises:
        SpecVizError: a file cannot be written.
    """
    folder = Path(folder)
    _write_parquet(_drift_table(report.drift), folder / DRIFT)
    _write_parquet(_picture_table(report.pictures), folder / PICTURES)
    write_table(trade_off_table(report.trade_offs(report.threshold, report.max_draft)), folder / RULES)
    facts = {name: getattr(report, name) for name in PLAIN} | {
        "pair": asdict(report.pair),
        "sampling": report.sampling.settings(),
        "cost_model": report.cost.to_json(),
        "tests": {name: [asdict(test) for test in getattr(report, name)] for name in TESTS},
        "outputs": [asdict(output) for output in report.outputs],
        "trace": [[token.token, token.status, token.position] for token in report.trace],
        "tokens": tokens_to_json(report.tokens),
    }
    with whole_file(folder / FACTS) as temporary:
        temporary.write_text(json.dumps(facts) + "\n", "utf-8")


class _Output(msgspec.Struct):
    title: Note
    claim: Name
    rule: Name | None
    greedy: bool
    output: list[TokenId]


class _Test(msgspec.Struct):
    title: Note
    claim: Name
    passed: bool
    expected: bool
    verdict: Note


class _Facts(msgspec.Struct):
    """What `fidelity.json` holds."""

    pass_mode: Name
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]
    max_draft: Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT)]
    samples: Annotated[int, msgspec.Meta(ge=0)]
    prompt: Annotated[str, msgspec.Meta(max_length=MOST_PROMPT_TEXT)]
    pair: PairInfo
    sampling: dict[Name, Number | int | None]  # None: as the generation config asks
    cost_model: Mapping
    tests: dict[Name, list[_Test]]
    outputs: list[_Output]
    trace: list[tuple[TokenId, Name, Annotated[int, msgspec.Meta(ge=0, lt=MOST_OUTPUT)]]]
    tokens: TokenTable


def read_fidelity(folder: str | Path) -> FidelityReport:
    """Read what `write_fidelity` wrote.

    Older reports call the target's token `bonus` also in a round that proposed nothing; it is read as `plain`.

    Raises:
        SpecVizError: there is no report, or a file of it is missing, damaged or too large.
    """
    folder = Path(folder)
    try:
        facts = read_json((folder / FACTS).read_bytes(), _Facts, most=MOST_REPORT, raw=("tokens",))
        drift = _read_drift(_read_parquet(folder / DRIFT, DRIFT_COLUMNS, ("rule",)))
        report = FidelityReport(
            **{name: getattr(facts, name) for name in PLAIN},
            pair=facts.pair,
            sampling=Sampling(**facts.sampling),
            cost=CostModel.from_json(facts.cost_model),
            drift=drift,
            **{name: tuple(ToldTest(**msgspec.structs.asdict(test)) for test in facts.tests[name]) for name in TESTS},
            outputs=tuple(
                Output(one.title, one.claim, one.rule, one.greedy, tuple(one.output)) for one in facts.outputs
            ),
            trace=tuple(_with_plain_named(TraceToken(*token) for token in facts.trace)),
            pictures=_read_pictures(
                _read_parquet(folder / PICTURES, _picture_columns(len(drift.rules)), ()), len(drift.rules)
            ),
            tokens=tokens_from_json(facts.tokens),
        )
        _check_parts(report)
        return report
    except SpecVizError as error:
        raise SpecVizError(f"The report in {folder} cannot be used: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException) as error:
        raise SpecVizError(
            f"The report in {folder} is missing or damaged; make it again with `python -m specviz fidelity`."
        ) from error


def _with_plain_named(trace: Iterable[TraceToken]) -> Iterator[TraceToken]:
    """The tokens, `bonus` only where an accepted one comes before it in its round; withheld ones may lie between."""
    follows_accepted = False
    for token in trace:
        if token.status == "bonus" and not follows_accepted:
            token = replace(token, status="plain")
        if token.status != "withheld":
            follows_accepted = token.status == "accepted"
        yield token


def _check_parts(report: FidelityReport) -> None:
    """Refuse parts that do not fit together.

    Raises:
        ValueError: they do not.
        SpecVizError: the prices do not cover the texts.
    """
    positions = len(report.drift.texts[0].confidence)
    if len(report.pictures.ids) != positions or not all(0 <= t.position < positions for t in report.trace):
        raise ValueError("texts, pictures and trace do not fit together")
    alone = {output.greedy for output in report.outputs if output.rule is None}
    if not {output.greedy for output in report.outputs} <= alone:
        raise ValueError("there is no output of the target alone")
    report.trade_offs(report.threshold, report.max_draft)


def _read_parquet(path: Path, columns: Sequence[Column], texts: Sequence[str]) -> pd.DataFrame:
    """A table with these columns and texts, whose numbers are in their range.

    Raises:
        ValueError: they are not, or a column is missing.
    """
    names = [*(column.name for column in columns), *texts]
    with open_parquet(path, names, texts, MOST_UNPACKED) as file:
        table = file.read(names)
    table.validate(full=True)
    frame = table.to_pandas()
    for column in columns:
        values = frame[column.name].to_numpy()
        if values.dtype != column.dtype:
            raise ValueError(f"{column.name} is {values.dtype}")
        if problem := column.problem(values):
            raise ValueError(problem)
    return frame


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    with whole_file(path) as temporary:
        table.to_parquet(temporary, index=False, compression="zstd")


def _drift_table(drift: RuleDrift) -> pd.DataFrame:
    frames = []
    for number, text in enumerate(drift.texts):
        for row, rule in enumerate(drift.rules):
            frames.append(
                pd.DataFrame(
                    {"text": np.int16(number), "prompt_tokens": np.int32(text.prompt_tokens), "rule": str(rule)}
                    | {name: getattr(text, name).astype(np.float32) for name in ALONG}
                    | {name: getattr(text, name)[row].astype(np.float32) for name in PER_RULE}
                )
            )
    return pd.concat(frames).astype({"rule": "category"})


def _read_drift(table: pd.DataFrame) -> RuleDrift:
    names = list(dict.fromkeys(table["rule"]))
    if len(names) > MOST_RULES or not names or table["text"].nunique() > MOST_RULES * 100:
        raise ValueError(f"{len(names)} rules")
    rules: dict[str, AcceptanceRule] = {name: rule_from_text(name) for name in names}
    texts = []
    for _, rows in table.groupby("text", sort=True):
        per_rule = [rows[rows["rule"] == name] for name in rules]
        first = per_rule[0]
        texts.append(
            DriftedText(
                int(first["prompt_tokens"].iloc[0]),
                *(first[name].to_numpy() for name in ALONG),
                *(np.stack([found[name].to_numpy() for found in per_rule]) for name in PER_RULE),
            )
        )
    return RuleDrift(tuple(rules.values()), tuple(texts))


def _picture_table(pictures: Pictures) -> pd.DataFrame:
    number, width = pictures.ids.shape
    columns = {"position": np.repeat(np.arange(number, dtype=np.int32), width)}
    columns["token"] = pictures.ids.ravel().astype(np.int32)
    columns |= {name: getattr(pictures, name).ravel().astype(np.float32) for name in PICTURE}
    for rule in range(len(pictures.accept)):
        columns[f"accept_{rule}"] = pictures.accept[rule].ravel().astype(np.float32)
        columns[f"effective_{rule}"] = pictures.effective[rule].ravel().astype(np.float32)
    return pd.DataFrame(columns)


def _picture_columns(rules: int) -> list[Column]:
    names = [*PICTURE, *(f"{name}_{rule}" for rule in range(rules) for name in ("accept", "effective"))]
    return [
        Column("position", INT, "tokens", "of the first text, from 0", most=MOST_OUTPUT),
        Column("token", INT, "", "token id; -1 for all others together", unknown=-1),
        *(Column(name, FLOAT, "probability", "", -ROUNDING, 1 + ROUNDING) for name in names),
    ]


def _read_pictures(table: pd.DataFrame, rules: int) -> Pictures:
    shape = (int(table["position"].max()) + 1, -1)
    return Pictures(
        table["token"].to_numpy().reshape(shape),
        *(table[name].to_numpy().reshape(shape) for name in PICTURE),
        *(
            np.stack([table[f"{name}_{rule}"].to_numpy().reshape(shape) for rule in range(rules)])
            for name in ("accept", "effective")
        ),
    )
