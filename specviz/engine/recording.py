"""Making a recording: one generation, the draft scored over the finished text, and the draft's branches.

What it costs: one speculative generation of the target; then, in the `fast` way, one draft pass over the whole text and
`max_draft` - 1 draft passes that each carry one more step of all branches at once (a tree attention mask over the
shared prefix). The `exact` way runs every draft step in a pass of the engine's own shape, which in bf16 and below is
what makes replayed confidences equal the engine's to the bit; it costs a draft pass per step of every branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from specviz.engine.decoding import never
from specviz.engine.drafting import distribution_statistics
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.events import Event, Finished, Verified
from specviz.engine.runner import ModelRunner
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold
from specviz.trace.recording import TOP_TOKENS, Recording

METHODS = ("fast", "exact")
DEFAULT_RECORDED_DRAFT = 16
SCORED_ROWS = 64  # rows whose full-vocabulary logits are in memory at once


@dataclass
class _Branch:
    """How the draft goes on after its wrong token at output position `position`."""

    position: int
    needed: int
    tokens: list[int]  # the wrong token, then one per step
    steps: list[list[float]]  # confidence, entropy, margin


def record(
    engine: Engine,
    prompt_ids: list[int],
    *,
    max_new_tokens: int = 128,
    max_draft: int = DEFAULT_RECORDED_DRAFT,
    method: str = "fast",
    prompt: str = "",
    prompt_id: str = "",
    category: str = "",
    observers: tuple[Callable[[Event], None], ...] = (),
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> Recording:
    """Generate after `prompt_ids` and record everything needed to replay draft lengths up to `max_draft`.

    Args:
        method: `fast` or `exact` (module docstring).
        observers: see the events of the generation.
        stopped: True ends the generation early; what is committed by then is recorded as a text of that length.
        progress: called with a stage and the share of it that is done.

    Raises:
        SpecVizError: unusable prompt or settings, or stopped before the first token.
    """
    if method not in METHODS:
        raise SpecVizError(f"There is no way of recording called {method!r}; choose {' or '.join(METHODS)}.")
    if max_draft < 1:
        raise SpecVizError(f"The draft length is {max_draft}; it must be at least 1.")
    target_rows: list[torch.Tensor] = []
    margins: list[float] = []

    def keep_target_rows(event: Event) -> None:
        if isinstance(event, Verified):
            known = event.accepted + (event.target_token is not None)
            target_rows.append(event.hidden[:known])
            margins.extend(event.target_margins[:known])

    settings = Settings(ConfidenceThreshold(0.5), min(max_draft, engine.widest_draft), max_new_tokens)
    finished: Finished = observe_all(
        engine.speculative(prompt_ids, settings, stopped),
        (keep_target_rows, *observers),
    )
    output = list(finished.output_ids)
    if not output:
        raise SpecVizError("The run was stopped before its first token; there is nothing to record.")
    limits = engine.limits(prompt_ids, max_new_tokens)
    finish_reason, asked = finished.reason, max_new_tokens
    if finish_reason == "stopped":
        finish_reason, asked = "length", len(output)
    output_limit = engine.max_context - len(prompt_ids)

    progress("Scoring the text with the draft", 0.0)
    runner = engine.scoring_draft if method == "fast" else engine.draft_runner
    scores = _Scores(runner)
    _score_text(runner, scores, prompt_ids, output)
    draft_token = scores.tokens
    reach = output_limit if finish_reason == "eos" else len(output)
    branches = [
        _Branch(
            position,
            min(max_draft - 1, reach - 2 - position),
            [draft_token[position]],
            [],
        )
        for position in range(len(output))
        if draft_token[position] != output[position]
    ]
    grow = _grow_in_a_tree if runner.takes_trees else _grow_one_by_one
    grow(runner, branches, len(prompt_ids), limits.eos_ids, progress)
    progress("Reading the target's distributions", 0.0)
    target = _target_columns(engine.target_runner, torch.cat(target_rows), draft_token)

    lengths = np.zeros(len(output) + 1, np.int32)
    for branch in branches:
        lengths[branch.position + 1] = len(branch.steps)
    steps = np.array([step for branch in branches for step in branch.steps], np.float32).reshape(-1, 3)
    draft = np.array(scores.statistics, np.float32).reshape(-1, 3)
    return Recording(
        prompt_id=prompt_id,
        category=category,
        prompt=prompt,
        pair=engine.pair_info(),
        settings=engine.fixed_settings() | {"recorded": method},
        seed=0,
        finish_reason=finish_reason,
        max_new_tokens=asked,
        output_limit=output_limit,
        max_draft=max_draft,
        eos_ids=tuple(sorted(limits.eos_ids)),
        prompt_ids=np.array(prompt_ids, np.int32),
        output_ids=np.array(output, np.int32),
        draft_token=np.array(draft_token, np.int32),
        draft_confidence=draft[:, 0].copy(),
        draft_entropy=draft[:, 1].copy(),
        draft_margin=draft[:, 2].copy(),
        draft_prob_of_emitted=np.array(scores.prob_of_next, np.float32),
        target_margin=np.array(margins, np.float32),
        draft_top_ids=np.array(scores.top_ids, np.int32),
        draft_top_probs=np.array(scores.top_probs, np.float32),
        branch_offsets=np.cumsum(lengths, dtype=np.int32),
        branch_token=np.array([token for branch in branches for token in branch.tokens[1:]], np.int32),
        branch_confidence=steps[:, 0].copy(),
        branch_entropy=steps[:, 1].copy(),
        branch_margin=steps[:, 2].copy(),
        **target,
    ).validate()


class _Scores:
    """What the draft says at each output position, collected in order."""

    def __init__(self, runner: ModelRunner):
        self._runner = runner
        self.tokens: list[int] = []
        self.statistics: list[list[float]] = []  # confidence, entropy, margin
        self.prob_of_next: list[float] = []
        self.top_ids: list[list[int]] = []
        self.top_probs: list[list[float]] = []

    @torch.inference_mode()
    def add(self, hidden: torch.Tensor, emitted: list[int]) -> None:
        """Hidden states (n, d) of the positions whose emitted tokens are `emitted`."""
        logits = self._runner.logits(hidden)
        tokens, statistics = _tokens_and_statistics(self._runner, logits)
        self.tokens += tokens
        self.statistics += statistics
        probabilities = logits.softmax(-1)
        rows = [self._runner.head.row_of(token) for token in emitted]
        self.prob_of_next += [0.0 if row is None else probabilities[i, row].item() for i, row in enumerate(rows)]
        ids, probs = _top(probabilities)
        self.top_ids += [[self._runner.head.token_of(row) for row in line] for line in ids]
        self.top_probs += probs


def _tokens_and_statistics(runner: ModelRunner, logits: torch.Tensor) -> tuple[list[int], list[list[float]]]:
    values = distribution_statistics(logits).tolist()
    return [runner.head.token_of(int(row)) for row, *_ in values], [rest for _, *rest in values]


def _top(probabilities: torch.Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """The TOP_TOKENS likeliest rows and their probabilities; -1 and 0 where the vocabulary is smaller."""
    count = min(TOP_TOKENS, probabilities.shape[-1])
    best = probabilities.topk(count, dim=-1)
    missing = TOP_TOKENS - count
    return (
        [line + [-1] * missing for line in best.indices.tolist()],
        [line + [0.0] * missing for line in best.values.tolist()],
    )


def _score_text(runner: ModelRunner, scores: _Scores, prompt_ids: list[int], output: list[int]) -> None:
    """Run the draft over prompt and output, in passes of the runner's own width; the last output token is not fed."""
    runner.begin(len(prompt_ids) + len(output) + DEFAULT_RECORDED_DRAFT)
    runner.prefill(prompt_ids[:-1])
    fed = [prompt_ids[-1], *output[:-1]]
    step = runner.width or SCORED_ROWS
    for first in range(0, len(fed), step):
        hidden = runner.forward(fed[first : first + step])
        scores.add(hidden, output[first : first + step])


def _grow_in_a_tree(
    runner: ModelRunner,
    branches: list[_Branch],
    prompt_length: int,
    eos_ids: frozenset[int],
    progress,
) -> None:
    """All branches of one depth in one pass: each row sees the text before its branch, and its own branch."""
    text_length = runner.length
    live = [branch for branch in branches if branch.needed > 0 and branch.tokens[0] not in eos_ids]
    columns: dict[int, list[int]] = {id(branch): [] for branch in live}  # cache entries of each branch
    depth = 0
    while live:
        entries = runner.length + len(live)
        sees = torch.zeros(len(live), entries, dtype=torch.bool)
        for row, branch in enumerate(live):
            own = columns[id(branch)]
            own.append(runner.length + row)
            sees[row, : prompt_length + branch.position] = True
            sees[row, own] = True
        tokens = [branch.tokens[-1] for branch in live]
        positions = [prompt_length + branch.position + depth for branch in live]
        hidden = runner.forward_tree(tokens, positions, sees.to(runner.device))
        _extend(runner, live, hidden)
        depth += 1
        live = [b for b in live if len(b.steps) < b.needed and b.tokens[-1] not in eos_ids]
        progress(
            "Following the draft's branches",
            depth / max(1, max((b.needed for b in branches), default=1)),
        )
    runner.rollback(runner.length - text_length)


def _grow_one_by_one(
    runner: ModelRunner,
    branches: list[_Branch],
    prompt_length: int,
    eos_ids: frozenset[int],
    progress,
) -> None:
    """Each branch step in a pass of its own, from the last branch to the first, so that the cache only shrinks."""
    for done, branch in enumerate(reversed(branches)):
        runner.rollback(runner.length - (prompt_length + branch.position))
        while len(branch.steps) < branch.needed and branch.tokens[-1] not in eos_ids:
            _extend(runner, [branch], runner.forward([branch.tokens[-1]]))
        progress("Following the draft's branches", (done + 1) / len(branches))


@torch.inference_mode()
def _extend(runner: ModelRunner, branches: list[_Branch], hidden: torch.Tensor) -> None:
    """Append to each branch the step that its row of `hidden` (branches, d) says."""
    tokens, statistics = _tokens_and_statistics(runner, runner.logits(hidden))
    for branch, token, values in zip(branches, tokens, statistics, strict=True):
        branch.tokens.append(token)
        branch.steps.append(values)


@torch.inference_mode()
def _target_columns(runner: ModelRunner, hidden: torch.Tensor, draft_token: list[int]) -> dict[str, np.ndarray]:
    """The target's columns of a recording from its hidden states (N, d) at every output position."""
    columns: dict[str, list] = {
        "prob": [],
        "rank": [],
        "entropy": [],
        "ids": [],
        "probs": [],
    }
    step = runner.width or SCORED_ROWS
    for first in range(0, hidden.shape[0], step):
        logits = runner.logits(hidden[first : first + step])
        tokens = torch.tensor(draft_token[first : first + step], device=logits.device)[:, None]
        own = logits.gather(1, tokens)
        probabilities = logits.softmax(-1)
        columns["prob"] += probabilities.gather(1, tokens)[:, 0].tolist()
        columns["rank"] += ((logits > own).sum(-1) + 1).tolist()
        columns["entropy"] += torch.special.entr(probabilities).sum(-1).tolist()
        ids, probs = _top(probabilities)
        columns["ids"] += ids
        columns["probs"] += probs
    return {
        "target_prob_of_draft_token": np.array(columns["prob"], np.float32),
        "target_rank_of_draft_token": np.array(columns["rank"], np.int32),
        "target_entropy": np.array(columns["entropy"], np.float32),
        "target_top_ids": np.array(columns["ids"], np.int32),
        "target_top_probs": np.array(columns["probs"], np.float32),
    }
