"""A report on fidelity: three tests with verdicts, drift of rules along texts, outputs, and how tokens were judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from specviz.analysis.cost_model import CostModel
from specviz.analysis.fidelity import (
    AcceptancePicture,
    DistributionTest,
    DriftedText,
    RuleDrift,
    TradeOff,
    first_divergence,
    greedy_exactness,
    test_distribution,
    trade_offs,
)
from specviz.errors import SpecVizError
from specviz.replay import Sampling
from specviz.replay.rules import LOSSLESS, AcceptanceRule
from specviz.trace import PairInfo, Trace


@dataclass(frozen=True)
class ToldTest:
    """One test and its verdict in plain words. expected: whether it has to pass for the rule's claim to hold."""

    title: str
    claim: str
    passed: bool
    expected: bool
    verdict: str


@dataclass(frozen=True)
class Output:
    """One output: how it was made, and its tokens. rule: as text, None for the target alone."""

    title: str
    claim: str
    rule: str | None
    greedy: bool
    output: tuple[int, ...]


@dataclass(frozen=True)
class TraceToken:
    """One token of the run that wrote the shown text: what became of it, and the output position it stood at."""

    token: int
    status: str
    position: int


@dataclass(frozen=True, eq=False)
class Pictures:
    """How a drafted token is judged at each of N positions, over K tokens, the last of them all others together.

    ids: (N, K), -1 for all others; p, q, overlap, residual: (N, K); accept, effective: (R, N, K) for each rule.
    """

    ids: np.ndarray
    p: np.ndarray
    q: np.ndarray
    overlap: np.ndarray
    residual: np.ndarray
    accept: np.ndarray
    effective: np.ndarray


@dataclass(frozen=True, eq=False)
class FidelityReport:
    """Everything about one pair. `trace` and `pictures` belong to the first text of `drift`, `outputs` to its prompt.

    threshold, max_draft: of the real runs. greedy, first_three, first_token: the three tests.
    """

    pair: PairInfo
    sampling: Sampling
    cost: CostModel
    pass_mode: str
    threshold: float
    max_draft: int
    samples: int
    drift: RuleDrift
    greedy: tuple[ToldTest, ...]
    first_three: tuple[ToldTest, ...]
    first_token: tuple[ToldTest, ...]
    prompt: str
    outputs: tuple[Output, ...]
    trace: tuple[TraceToken, ...]
    pictures: Pictures
    tokens: Mapping[int, bytes]

    @property
    def sound(self) -> bool:
        """Whether every test that has to pass does."""
        tests = (*self.greedy, *self.first_three, *self.first_token)
        return all(test.passed for test in tests if test.expected)

    def trade_offs(self, threshold: float, max_draft: int) -> list[TradeOff]:
        """Every rule at one setting."""
        return trade_offs(self.drift, self.cost, threshold, max_draft, pass_mode=self.pass_mode)

    def picture(self, rule: AcceptanceRule, position: int) -> tuple[np.ndarray, AcceptancePicture]:
        """How a token drafted at `position` is judged: token ids, likeliest to the target first and -1 (all others) at
        the end, and the picture over them. Its rate and its drift are those of the full distributions.
        """
        pictures, row = self.pictures, self.drift.rules.index(rule)
        order = np.append(np.argsort(-pictures.p[position][:-1], kind="stable"), pictures.p.shape[1] - 1)
        text = self.drift.texts[0]
        along = {name: getattr(pictures, name)[position][order] for name in ("p", "q", "overlap", "residual")}
        return pictures.ids[position][order], AcceptancePicture(
            **along,
            accept=pictures.accept[row, position][order],
            effective=pictures.effective[row, position][order],
            acceptance_rate=float(text.accept[row, position]),
            total_variation=float(text.total_variation[row, position]),
            kl=float(text.kl[row, position]),
        )


class MeasuredFidelity(Protocol):
    """What `specviz.engine.fidelity` hands over; see there."""

    pair: PairInfo
    pass_mode: str
    sampling: Sampling
    threshold: float
    max_draft: int
    samples: int
    prompt: str
    rules: Sequence[AcceptanceRule]
    prompt_tokens: Sequence[int]
    texts: Sequence
    trace: Trace
    greedy: Sequence
    first_tokens: Sequence
    outputs: Sequence
    tokens: Mapping[int, bytes]


def check_prices(pair: PairInfo, cost: CostModel) -> None:
    """Refuse pass times of another pair or of other precisions; another device is named wherever they are shown."""
    for name in ("target", "draft", "target_precision", "draft_precision"):
        if getattr(cost.pair, name) != getattr(pair, name):
            raise SpecVizError(
                f"The pass times were measured with the {name.replace('_', ' ')} {getattr(cost.pair, name)!r}, the "
                f"runs are made with {getattr(pair, name)!r}; take both of the same pair."
            )


def fidelity_report(
    measured: MeasuredFidelity, cost: CostModel, first_three: Sequence[tuple[AcceptanceRule, DistributionTest]]
) -> FidelityReport:
    """Judge what the engine measured.

    Args:
        cost: prices the rounds.
        first_three: tests of the first three tokens on a small pair of known distribution.

    Raises:
        SpecVizError: the prices are of another pair.
    """
    check_prices(measured.pair, cost)
    runs = measured.greedy
    exact = greedy_exactness(
        [run.output for run in runs], [run.plain for run in runs], [run.margins for run in runs], measured.pair
    )
    first = measured.texts[0]
    along = ("confidence", "entropy", "accept", "kl", "total_variation", "surprise")
    return FidelityReport(
        pair=measured.pair,
        sampling=measured.sampling,
        cost=cost,
        pass_mode=measured.pass_mode,
        threshold=measured.threshold,
        max_draft=measured.max_draft,
        samples=measured.samples,
        drift=RuleDrift(
            tuple(measured.rules),
            tuple(
                DriftedText(prompt_tokens, *(getattr(text, name) for name in along))
                for prompt_tokens, text in zip(measured.prompt_tokens, measured.texts, strict=True)
            ),
        ),
        greedy=(ToldTest("greedy", LOSSLESS, exact.passed, True, exact.verdict),),
        first_three=tuple(_told(rule, test) for rule, test in first_three),
        first_token=tuple(
            _told(each.rule, test_distribution(each.counts, each.probabilities)) for each in measured.first_tokens
        ),
        prompt=measured.prompt,
        outputs=tuple(_output(each, measured.sampling) for each in measured.outputs),
        trace=tuple(_along_text(measured.trace)),
        pictures=Pictures(
            first.ids, first.p, first.q, first.overlap, first.residual, first.token_accept, first.token_effective
        ),
        tokens=measured.tokens,
    )


def _along_text(trace: Trace) -> Iterator[TraceToken]:
    """The steps that stood at a place of the text: all but those that the draft took after a rejection."""
    columns = (trace.steps[name].tolist() for name in ("round", "source", "token", "status", "position"))
    left = None  # the round whose draft has left the text
    for number, source, token, status, position in zip(*columns, strict=True):
        if source == "target" or left != number:
            yield TraceToken(token, status, position)
        if status == "rejected":
            left = number


def _told(rule: AcceptanceRule, test: DistributionTest) -> ToldTest:
    return ToldTest(str(rule), rule.claim, test.passed, rule.claim == LOSSLESS, test.verdict)


def _output(each, sampling: Sampling) -> Output:
    how = "greedy" if each.greedy else f"temperature {sampling.temperature:g}"
    claim = LOSSLESS if each.rule is None else each.rule.claim
    who = "The target alone" if each.rule is None else f"{each.rule} ({claim})"
    rule = None if each.rule is None else str(each.rule)
    return Output(f"{who}, {how}", claim, rule, each.greedy, tuple(map(int, each.output)))


def why_they_part(one: Output, other: Output) -> str:
    """Why two outputs that differ may do so, in plain words."""
    if one.greedy != other.greedy:
        return "One takes the likeliest token, the other draws."
    if one.greedy or {one.rule, other.rule} <= {None, "coupled"}:
        return "Both should be equal: they part where two tokens nearly tie and rounding decides."
    return (
        "Two draws from one distribution part as well, so a difference alone proves nothing: that is what the tests "
        "of distributions are for."
    )


def trade_off_table(points: Sequence[TradeOff]) -> pd.DataFrame:
    """One row per rule. Columns: rule, claim and the numbers of `TradeOff`."""
    rows = [{**asdict(point), "rule": str(point.rule)} for point in points]
    table = pd.DataFrame(rows)
    table.insert(1, "claim", [point.rule.claim for point in points])
    return table


def describe_fidelity(report: FidelityReport) -> str:
    """The tests, the rules at the report's own setting, and where outputs part, for a terminal."""
    pair = report.pair
    lines = [
        f"{pair.target} ({pair.target_precision}) with {pair.draft} ({pair.draft_precision}) on {pair.device}; "
        f"temperature {report.sampling.temperature:g}, {len(report.drift.texts)} texts of the target.",
        "",
    ]
    for title, tests in (
        ("Greedy decoding against plain decoding:", report.greedy),
        ("First three tokens on a small pair of known distribution:", report.first_three),
        ("First token on this pair:", report.first_token),
    ):
        lines.append(title)
        lines += [f"  {'✓' if test.passed else '✕'} {test.title} ({test.claim}): {test.verdict}" for test in tests]
    table = trade_off_table(report.trade_offs(report.threshold, report.max_draft))
    lines += [
        "",
        f"Speedup and drift per token at τ = {report.threshold:g}, γ = {report.max_draft} (expected along the texts; "
        f"times modelled from passes measured on {report.cost.pair.device}; KL in nats):",
        table.to_string(index=False, float_format="{:.4f}".format),
        "",
        f"Outputs of {report.prompt[:80]!r}, beside the target alone:",
    ]
    alone = {output.greedy: output for output in report.outputs if output.rule is None}
    for output in report.outputs:
        if output.rule is not None:
            first = first_divergence(alone[output.greedy].output, output.output)
            where = "equal" if first is None else f"parts at token {first + 1}"
            lines.append(f"  {output.title}: {where} of {len(output.output)}")
    return "\n".join(lines)
