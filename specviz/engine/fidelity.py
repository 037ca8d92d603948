"""Is a pair's output the target's own? Everything measured for one report: exactness, distributions, drift, outputs.

Nothing is timed here. `specviz.analysis.fidelity_report` makes a report of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from specviz.engine.acceptance import (
    ACCEPTANCE,
    DRAFT_DRAW,
    OWN_TOKEN,
    POSITION_NOISE,
    judge_by_chance,
)
from specviz.engine.decoding import never
from specviz.engine.drift import TextDrift, distributions_along, text_drift
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.noise import draw, gumbel, states, uniform
from specviz.engine.record_many import Prompt
from specviz.errors import SpecVizError
from specviz.models.loading import encode_prompt
from specviz.models.token_text import TokenText
from specviz.replay import ConfidenceThreshold, Sampling
from specviz.replay.rules import (
    AcceptanceRule,
    Coupled,
    Greedy,
    Lenient,
    Rejection,
    TargetSampleMatch,
    TopK,
    Typical,
)
from specviz.trace import PairInfo, Trace

LOSSLESS_RULES = (Rejection(), Coupled(), TargetSampleMatch())
RULES = (
    *LOSSLESS_RULES,
    *map(Lenient, (1.0, 0.7, 0.5, 0.3, 0.15, 0.05)),
    *map(TopK, (1, 2, 3, 5, 10)),
    *map(Typical, (0.3, 0.09, 0.03, 0.01, 0.003)),
)
TESTED_RULES = (*LOSSLESS_RULES, Lenient(0.5), TopK(3), Typical(0.09))
COMPARED_RULES = (Coupled(), Rejection(), Lenient(0.3), TopK(3), Typical(0.03))
GREEDY_PROMPTS = 4
FIRST_TOKEN_CHOICES = 20  # the first token is drawn with this top-k at most, so that every outcome is drawn often
SAMPLES = 50_000


@dataclass(frozen=True)
class GreedyRun:
    """A greedy speculative output, the plain one, and the target's margins (logits) along the first."""

    output: tuple[int, ...]
    plain: tuple[int, ...]
    margins: list[float]


@dataclass(frozen=True)
class FirstTokens:
    """How often each possible first token came under a rule, (k,), and the target's distribution over them, (k,)."""

    rule: AcceptanceRule
    counts: np.ndarray
    probabilities: np.ndarray


@dataclass(frozen=True)
class RuleOutput:
    """An output of the first prompt; rule None is the target alone."""

    rule: AcceptanceRule | None
    greedy: bool
    output: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MeasuredFidelity:
    """What was measured. `texts` are scored in the order of the prompts; `trace` is the run that wrote the first."""

    pair: PairInfo
    pass_mode: str
    sampling: Sampling
    threshold: float
    max_draft: int
    samples: int
    prompt: str
    rules: tuple[AcceptanceRule, ...]
    prompt_tokens: list[int]
    texts: list[TextDrift]
    trace: Trace
    greedy: list[GreedyRun]
    first_tokens: list[FirstTokens]
    outputs: list[RuleOutput]
    tokens: dict[int, bytes]


def measure_fidelity(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    sampling: Sampling,
    seed: int = 0,
    threshold: float = 0.2,
    max_draft: int = 4,
    max_new_tokens: int = 48,
    samples: int = SAMPLES,
    chat: bool | None = None,
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> MeasuredFidelity | None:
    """Measure all of it; None if stopped.

    Args:
        prompts: texts of all are scored; outputs and the first token are of the first.
        sampling: what everything but the greedy runs draws with.
        threshold, max_draft: of every run.
        samples: seeds of the first token.

    Raises:
        SpecVizError: unusable prompts or settings.
    """
    if not prompts:
        raise SpecVizError("There is no prompt; give at least one.")
    if sampling.greedy:
        raise SpecVizError("At temperature 0 nothing is drawn, so rules cannot differ; give a temperature above 0.")
    if samples < 1:
        raise SpecVizError(f"{samples} samples were asked for; ask for at least 1.")
    encoded = [encode_prompt(engine.pair, prompt.text, chat) for prompt in prompts]

    def settings(used: Sampling, rule: AcceptanceRule | None, own_seed: int) -> Settings:
        return Settings(ConfidenceThreshold(threshold), max_draft, max_new_tokens, used, rule, own_seed)

    texts, traces = [], []
    for number, ids in enumerate(encoded):
        progress(f"Text {number + 1} of {len(encoded)}", number / len(encoded))
        traces.append(engine.trace(ids, settings(sampling, Rejection(), seed + number), stopped=stopped))
        if stopped():
            return None
        texts.append(text_drift(engine, ids, traces[-1].run.output_ids, sampling, RULES))

    certain = replace(sampling, temperature=0.0)
    greedy: list[GreedyRun] = []
    for number, ids in enumerate(encoded[:GREEDY_PROMPTS]):
        progress("Greedy outputs beside plain ones", number / len(encoded[:GREEDY_PROMPTS]))
        trace = engine.trace(ids, settings(certain, Greedy(), seed), stopped=stopped)
        plain = observe_all(engine.plain(ids, max_new_tokens, stopped, sampling=certain), ())
        if stopped():
            return None
        emitted = (trace.steps["status"] == "accepted") | (trace.steps["source"] == "target")
        greedy.append(GreedyRun(trace.run.output_ids, plain.output_ids, trace.steps["target_margin"][emitted].tolist()))

    progress("First tokens", 0.0)
    p, q, possible = first_token_distributions(engine, encoded[0], sampling)
    first_tokens = []
    for rule in TESTED_RULES:
        drawn = draw_first_tokens(rule, p, q, possible, len(encoded[0]), torch.arange(seed, seed + samples))
        counts = torch.bincount(drawn, minlength=len(possible)).numpy()
        first_tokens.append(FirstTokens(rule, counts, p.double().numpy()))

    outputs = []
    compared = [(rule, certain) for rule in (None, Greedy())]
    compared += [(rule, sampling) for rule in (None, *COMPARED_RULES)]
    for number, (rule, used) in enumerate(compared):
        progress("Outputs under each rule", number / len(compared))
        if rule is None:
            events = engine.plain(encoded[0], max_new_tokens, stopped, sampling=used, seed=seed)
        else:
            events = engine.speculative(encoded[0], settings(used, rule, seed), stopped)
        output = observe_all(events, ()).output_ids
        if stopped():
            return None
        outputs.append(RuleOutput(rule, used.greedy, output))

    used_ids = {token for each in outputs for token in each.output} | set(texts[0].ids.ravel().tolist())
    used_ids |= set(traces[0].steps["token"].tolist())
    text_of = TokenText(engine.pair.tokenizer)
    return MeasuredFidelity(
        pair=engine.pair_info(),
        pass_mode=engine.pass_mode,
        sampling=sampling,
        threshold=threshold,
        max_draft=max_draft,
        samples=samples,
        prompt=prompts[0].text,
        rules=RULES,
        prompt_tokens=[len(ids) for ids in encoded],
        texts=texts,
        trace=traces[0],
        greedy=greedy,
        first_tokens=first_tokens,
        outputs=outputs,
        tokens={token: text_of.bytes_of(token) for token in sorted(used_ids - {-1})},
    )


def first_token_distributions(
    engine: Engine, prompt_ids: list[int], sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Target's and draft's distribution of the first token, (k,) each, over the k tokens that can come, and their ids.

    Drawn with top-k of at most `FIRST_TOKEN_CHOICES`.
    """
    narrow = replace(sampling, top_k=min(sampling.top_k or FIRST_TOKEN_CHOICES, FIRST_TOKEN_CHOICES))
    # one position is scored; which token stands there does not matter to what comes before it
    p, q = (rows[0].cpu() for rows in next(distributions_along(engine, prompt_ids, [0], narrow)))
    possible = ((p > 0) | (q > 0)).nonzero()[:, 0]
    return p[possible], q[possible], possible


def draw_first_tokens(
    rule: AcceptanceRule,
    p: torch.Tensor,
    q: torch.Tensor,
    possible: torch.Tensor,
    prompt_length: int,
    seeds: torch.Tensor,
) -> torch.Tensor:
    """The first token of a run of each seed (B,) whose first round drafts it: places (B,) in `possible`.

    The draws and decisions are those that the engine makes with that seed (tested), all seeds at once.
    """
    number = len(seeds)
    if rule.fixed_output:  # the target's token is drawn by its own noise, whatever is proposed
        noise = gumbel(states(seeds, POSITION_NOISE, prompt_length), possible)
        return (p.log() + noise).argmax(-1)
    drafted = draw(q.expand(number, -1), uniform(seeds, DRAFT_DRAW, 0, 0))
    numbers = torch.stack((uniform(seeds, ACCEPTANCE, 0, 0), uniform(seeds, OWN_TOKEN, 0, 0)), 1)
    accepted, own = judge_by_chance(
        rule,
        p.expand(number, 2, -1),
        q.expand(number, 1, -1),
        drafted[:, None],
        torch.ones(number, dtype=torch.int64),
        numbers,
    )
    return torch.where(accepted > 0, drafted, own)
