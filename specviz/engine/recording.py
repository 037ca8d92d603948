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

from specviz.engine.acceptance import GreedyRule
from specviz.engine.decoding import never
from specviz.engine.endings import Endings
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.events import Event, Finished, Verified
from specviz.engine.runner import ModelRunner
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, Policy
from specviz.replay.generation import LogitRequests
from specviz.replay.rules import LOSSY, AcceptanceRule
from specviz.replay.sampling import Sampling
from specviz.trace.recording import TEXT_ENDS, TOP_TOKENS, Recording

METHODS = ("fast", "exact")
DEFAULT_RECORDED_DRAFT = 16
GREEDY_SAMPLING = Sampling()
SCORED_ROWS = 64  # rows whose full-vocabulary logits are in memory at once


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """A finished output of N tokens, with what the target said along it.

    hidden: (N, d), the states of its last layer from which each output token was chosen; margins: N, top-1 minus top-2
    logit; finish_reason: as in a trace; max_new_tokens: asked for.
    """

    output_ids: list[int]
    hidden: torch.Tensor
    margins: list[float]
    finish_reason: str
    max_new_tokens: int


@dataclass
class _Branch:
    """How the draft goes on after its wrong token at output position `position`."""

    position: int
    needed: int
    tokens: list[int]  # the wrong token, then one per step
    steps: list[list[float]]  # confidence, entropy, margin


def write_output(
    engine: Engine,
    prompt_ids: list[int],
    settings: Settings,
    *,
    observers: tuple[Callable[[Event], None], ...] = (),
    stopped: Callable[[], bool] = never,
) -> TargetOutput:
    """Generate after `prompt_ids`, keeping what a recording needs of the target.

    Raises:
        SpecVizError: unusable prompt or settings, or stopped before the first token, or before the last where the
            generation config forces the end of the text.
    """
    rows: list[torch.Tensor] = []
    margins: list[float] = []

    def keep_target_rows(event: Event) -> None:
        if isinstance(event, Verified):
            known = event.accepted + (event.target_token is not None)
            rows.append(event.hidden[:known])
            margins.extend(event.target_margins[:known])

    finished: Finished = observe_all(
        engine.speculative(prompt_ids, settings, stopped),
        (keep_target_rows, *observers),
    )
    output = list(finished.output_ids)
    if not output:
        raise SpecVizError("The run was stopped before its first token; there is nothing to record.")
    if finished.reason == "stopped" and engine.settled(settings).requests.forced_eos_token_id:
        raise SpecVizError(
            "The run was stopped, and with forced_eos_token_id a shorter text would have ended otherwise; ask for "
            "fewer tokens instead."
        )
    if finished.reason == "stopped":  # by then it is a text of that length
        return TargetOutput(output, torch.cat(rows), margins, "length", len(output))
    return TargetOutput(output, torch.cat(rows), margins, finished.reason, settings.max_new_tokens)


def record(
    engine: Engine,
    prompt_ids: list[int],
    *,
    max_new_tokens: int = 128,
    max_draft: int = DEFAULT_RECORDED_DRAFT,
    method: str = "fast",
    sampling: Sampling = GREEDY_SAMPLING,
    rule: AcceptanceRule | None = None,
    seed: int = 0,
    requests: LogitRequests | None = None,
    stop: tuple[str, ...] | None = None,
    policy: Policy | None = None,
    prompt: str = "",
    prompt_id: str = "",
    category: str = "",
    written: TargetOutput | None = None,
    observers: tuple[Callable[[Event], None], ...] = (),
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> Recording:
    """Generate after `prompt_ids` and record everything needed to replay draft lengths up to `max_draft`.

    Args:
        method: `fast` or `exact` (module docstring).
        sampling, rule, seed, requests, stop: as in `Settings`. Under `rejection` the recording is not replayed but
            gives expectations (`specviz.replay.replay_expected`); lossy rules cannot be recorded, for their text
            depends on the drafts.
        policy: when the draft stops in this generation; the recording is the same for all, up to that.
        written: the output, where the same target has written it already with these settings (`write_output`).
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
    policy = policy or ConfidenceThreshold(0.5)
    drafted = min(max_draft, engine.widest_draft)
    settings = Settings(policy, drafted, max_new_tokens, sampling, rule, seed, requests, stop)
    check_recordable(settings.rule)
    if written is None:
        written = write_output(engine, prompt_ids, settings, observers=observers, stopped=stopped)
    output = written.output_ids
    endings = engine.limits(prompt_ids, settings).endings
    output_limit = engine.max_context - len(prompt_ids)

    progress("Scoring the text with the draft", 0.0)
    runner = engine.scoring_draft if method == "fast" else engine.draft_runner
    chooser = engine.rule_at_work(settings, prompt_ids)
    target = _TargetText(engine.target_runner, chooser, prompt_ids, output, written.hidden)
    scores = _Scores(runner, chooser, target)
    _score_text(runner, scores, prompt_ids, output)
    draft_token = scores.tokens
    reach = output_limit if written.finish_reason in TEXT_ENDS else len(output)
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
    grow(_BranchDraft(runner, chooser, prompt_ids, output, endings), branches, progress)
    progress("Reading the target's distributions", 0.0)
    target_columns = target.columns(draft_token)

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
        settings=engine.fixed_settings(settings) | {"recorded": method},
        seed=seed,
        finish_reason=written.finish_reason,
        max_new_tokens=written.max_new_tokens,
        output_limit=output_limit,
        max_draft=max_draft,
        eos_ids=tuple(sorted(endings.eos_ids)),
        prompt_ids=np.array(prompt_ids, np.int32),
        output_ids=np.array(output, np.int32),
        draft_token=np.array(draft_token, np.int32),
        draft_confidence=draft[:, 0].copy(),
        draft_entropy=draft[:, 1].copy(),
        draft_margin=draft[:, 2].copy(),
        draft_prob_of_emitted=np.array(scores.prob_of_next, np.float32),
        target_margin=np.array(written.margins, np.float32),
        draft_top_ids=np.array(scores.top_ids, np.int32),
        draft_top_probs=np.array(scores.top_probs, np.float32),
        branch_offsets=np.cumsum(lengths, dtype=np.int32),
        branch_token=np.array([token for branch in branches for token in branch.tokens[1:]], np.int32),
        branch_confidence=steps[:, 0].copy(),
        branch_entropy=steps[:, 1].copy(),
        branch_margin=steps[:, 2].copy(),
        **target_columns,
    ).validate()


def check_recordable(rule: AcceptanceRule) -> None:
    """Refuse lossy rules."""
    if rule.claim == LOSSY:
        raise SpecVizError(
            f"Under {rule} the text depends on threshold and draft length, so a recording could not tell what another "
            "setting would have done; run it, or record under a lossless rule."
        )


class _TargetText:
    """What the target says along the finished text: hidden states (N, d) at every output position."""

    def __init__(
        self, runner: ModelRunner, rule: GreedyRule, prompt_ids: list[int], output: list[int], hidden: torch.Tensor
    ):
        self._runner, self._rule, self._hidden = runner, rule, hidden
        self._text, self._prompt_length, self._output = [*prompt_ids, *output], len(prompt_ids), output

    def contexts(self, first: int, last: int) -> list[list[int]]:
        """The texts that output positions first .. last - 1 continue."""
        return [self._text[: self._prompt_length + position] for position in range(first, last)]

    def logits(self, first: int, last: int) -> torch.Tensor:
        """Of output positions first .. last - 1, computed at the width of the passes."""
        step = self._runner.width or SCORED_ROWS
        starts = range(first, last, step)
        return torch.cat([self._runner.logits(self._hidden[at : min(at + step, last)]) for at in starts])

    @torch.inference_mode()
    def columns(self, draft_token: list[int]) -> dict[str, np.ndarray]:
        """The target's columns of a recording."""
        columns: dict[str, list] = {name: [] for name in ("prob", "rank", "entropy", "emitted", "ids", "probs")}
        step = self._runner.width or SCORED_ROWS
        for first in range(0, len(self._output), step):
            last = min(first + step, len(self._output))
            logits = self._rule.target_distributions(self.logits(first, last), self.contexts(first, last))
            tokens = torch.tensor(draft_token[first:last], device=logits.device)[:, None]
            emitted = torch.tensor(self._output[first:last], device=logits.device)[:, None]
            own = logits.gather(1, tokens)
            probabilities = logits.softmax(-1)
            columns["prob"] += probabilities.gather(1, tokens)[:, 0].tolist()
            columns["rank"] += ((logits > own).sum(-1) + 1).tolist()
            columns["entropy"] += torch.special.entr(probabilities).sum(-1).tolist()
            columns["emitted"] += probabilities.gather(1, emitted)[:, 0].tolist()
            ids, probs = _top(probabilities)
            columns["ids"] += ids
            columns["probs"] += probs
        return {
            "target_prob_of_draft_token": np.array(columns["prob"], np.float32),
            "target_rank_of_draft_token": np.array(columns["rank"], np.int32),
            "target_entropy": np.array(columns["entropy"], np.float32),
            "target_prob_of_emitted": np.array(columns["emitted"], np.float32),
            "target_top_ids": np.array(columns["ids"], np.int32),
            "target_top_probs": np.array(columns["probs"], np.float32),
        }


class _Scores:
    """What the draft says at each output position, collected in order."""

    def __init__(self, runner: ModelRunner, rule: GreedyRule, target: _TargetText):
        self._runner, self._rule, self._target = runner, rule, target
        self.tokens: list[int] = []
        self.statistics: list[list[float]] = []  # confidence, entropy, margin
        self.prob_of_next: list[float] = []
        self.top_ids: list[list[int]] = []
        self.top_probs: list[list[float]] = []

    @torch.inference_mode()
    def add(self, hidden: torch.Tensor, emitted: list[int]) -> None:
        """Hidden states (n, d) of the positions whose emitted tokens are `emitted`."""
        logits = self._runner.logits(hidden)
        first = len(self.tokens)
        last = first + len(emitted)
        contexts = self._target.contexts(first, last)
        values = self._rule.along(logits, contexts, lambda: self._target.logits(first, last), emitted)
        tokens, statistics = _tokens_and_statistics(self._runner, values)
        self.tokens += tokens
        self.statistics += statistics
        probabilities = self._rule.draft_distributions(logits, contexts).softmax(-1)
        rows = [self._runner.head.row_of(token) for token in emitted]
        self.prob_of_next += [
            probabilities[i, row].item() if row is not None and row < probabilities.shape[-1] else 0.0
            for i, row in enumerate(rows)
        ]
        ids, probs = _top(probabilities)
        self.top_ids += [[self._runner.head.token_of(row) for row in line] for line in ids]
        self.top_probs += probs


def _tokens_and_statistics(runner: ModelRunner, values: torch.Tensor) -> tuple[list[int], list[list[float]]]:
    values = values.tolist()
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


class _BranchDraft:
    """The draft on its branches."""

    def __init__(
        self, runner: ModelRunner, rule: GreedyRule, prompt_ids: list[int], output: list[int], endings: Endings
    ):
        self.runner, self._rule, self._endings = runner, rule, endings
        self.prompt_length, self._text = len(prompt_ids), [*prompt_ids, *output]

    @torch.inference_mode()
    def extend(self, branches: list[_Branch], hidden: torch.Tensor) -> None:
        """Append to each branch the step that its row of `hidden` (branches, d) says."""
        starts = [self.prompt_length + branch.position for branch in branches]
        contexts = [self._context(branch) for branch in branches]
        values = self._rule.branch(self.runner.logits(hidden), contexts, starts)
        for branch, token, step in zip(branches, *_tokens_and_statistics(self.runner, values), strict=True):
            branch.tokens.append(token)
            branch.steps.append(step)

    def lacks_steps(self, branch: _Branch) -> bool:
        """Whether a draft phase could go on where the branch ends."""
        if len(branch.steps) >= branch.needed:
            return False
        return self._endings.of(self._context(branch), self.prompt_length) is None

    def _context(self, branch: _Branch) -> list[int]:
        return self._text[: self.prompt_length + branch.position] + branch.tokens


def _grow_in_a_tree(draft: _BranchDraft, branches: list[_Branch], progress) -> None:
    """All branches of one depth in one pass: each row sees the text before its branch, and its own branch."""
    runner, prompt_length = draft.runner, draft.prompt_length
    text_length = runner.length
    live = [branch for branch in branches if draft.lacks_steps(branch)]
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
        draft.extend(live, hidden)
        depth += 1
        live = [branch for branch in live if draft.lacks_steps(branch)]
        progress(
            "Following the draft's branches",
            depth / max(1, max((b.needed for b in branches), default=1)),
        )
    runner.rollback(runner.length - text_length)


def _grow_one_by_one(draft: _BranchDraft, branches: list[_Branch], progress) -> None:
    """Each branch step in a pass of its own, from the last branch to the first, so that the cache only shrinks."""
    runner, prompt_length = draft.runner, draft.prompt_length
    for done, branch in enumerate(reversed(branches)):
        runner.rollback(runner.length - (prompt_length + branch.position))
        while draft.lacks_steps(branch):
            draft.extend([branch], runner.forward([branch.tokens[-1]]))
        progress("Following the draft's branches", (done + 1) / len(branches))
