"""transformers' assisted generation beside ours, round by round: `heuristic` and `dynamic` must do what theirs do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from specviz.bench.reporting import Verdicts, console
from specviz.engine.engine import Engine, Settings
from specviz.models.loading import LoadedPair
from specviz.replay import ConfidenceThreshold, Policy
from specviz.replay.policies import DynamicThreshold, Heuristic

Round = tuple[int, int, int]  # draft steps, tokens proposed, tokens committed
LONGEST_HEURISTIC = 40  # what the heuristic's length is held to, beyond what it reaches in a generation


@dataclass(frozen=True)
class Case:
    """One setting of theirs and the policy of ours that must do the same.

    Args:
        assistant: fields of the assistant's generation config.
        sklearn_installed: whether transformers is to find scikit-learn; without it the threshold stays where it is.
    """

    name: str
    assistant: dict
    make_policy: Callable[[], Policy]
    max_draft: int
    sklearn_installed: bool


def _heuristic(schedule: str, sklearn_installed: bool) -> Case:
    assistant = {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": schedule}
    assistant["assistant_confidence_threshold"] = 0
    transient = schedule.endswith("transient")
    return Case(schedule, assistant, lambda: Heuristic(5, transient), LONGEST_HEURISTIC, sklearn_installed)


def _dynamic(sklearn_installed: bool) -> Case:
    assistant = {"num_assistant_tokens": 8, "num_assistant_tokens_schedule": "constant"}
    assistant["assistant_confidence_threshold"] = 0.4
    policy = (lambda: DynamicThreshold(0.4)) if sklearn_installed else (lambda: ConfidenceThreshold(0.4, "keep"))
    return Case("dynamic", assistant, policy, 8, sklearn_installed)


CASES = (_heuristic("heuristic", True), _heuristic("heuristic_transient", False), _dynamic(True), _dynamic(False))


class Watched:
    """transformers' assisted generation, its rounds told from the forward calls of both models.

    Args:
        target, draft: copies of its own, for it sets their generation configs and hooks them.
        eos_ids: token ids that end a text.
    """

    def __init__(self, target: PreTrainedModel, draft: PreTrainedModel, case: Case, eos_ids: Collection[int]) -> None:
        self._target, self._draft, self._sklearn_installed = target, draft, case.sklearn_installed
        for model in (target, draft):
            model.generation_config.eos_token_id = sorted(eos_ids)
            model.generation_config.pad_token_id = min(eos_ids)
        for name, value in case.assistant.items():
            setattr(draft.generation_config, name, value)
        self._passes: list[tuple[int, int, int]] = []
        self._draft_steps = 0

    def _on_target(self, _, arguments, keywords) -> None:
        ids, cache = keywords["input_ids"], keywords.get("cache")
        seen = cache.get_seq_length() if cache is not None else 0
        self._passes.append((seen + ids.shape[1], seen, self._draft_steps))
        self._draft_steps = 0

    def _on_draft(self, *_) -> None:
        self._draft_steps += 1

    @contextmanager
    def _hooked(self):
        self._passes, self._draft_steps = [], 0
        hooks = [
            self._target.register_forward_pre_hook(self._on_target, with_kwargs=True),
            self._draft.register_forward_pre_hook(self._on_draft, with_kwargs=True),
        ]
        installed = "transformers.generation.candidate_generator.is_sklearn_available"
        try:
            with patch(installed, lambda: self._sklearn_installed):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def rounds(self, prompt: Sequence[int], new_tokens: int) -> tuple[list[int], list[Round]]:
        """Output ids and rounds."""
        ids = torch.tensor([prompt], device=self._target.device)
        with self._hooked():
            text = self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                assistant_model=self._draft,
                max_new_tokens=new_tokens,
                do_sample=False,
            )[0].tolist()
        # A pass sees the text and the proposal. All but the newest token of the text are in the cache by then.
        starts = [len(prompt)] + [seen + 1 for _, seen, _ in self._passes[1:]]
        ends = starts[1:] + [len(text)]
        rounds = [
            (steps, until - start, end - start)
            for (until, _, steps), start, end in zip(self._passes, starts, ends, strict=True)
        ]
        return text[len(prompt) :], rounds


def our_rounds(
    engine: Engine, prompt: Sequence[int], policy: Policy, max_draft: int, new_tokens: int
) -> tuple[list[int], list[Round]]:
    """The same of our engine."""
    trace = engine.trace(list(prompt), Settings(policy, max_draft, new_tokens))
    columns = (trace.rounds[name].tolist() for name in ("draft_steps", "proposed", "emitted"))
    return list(trace.run.output_ids), list(zip(*columns, strict=True))


def compare(
    verdicts: Verdicts, theirs: LoadedPair, ours: LoadedPair, prompts: Sequence[list[int]], new_tokens: int
) -> None:
    """Check every case over these prompts, one after the other, with one policy and one assistant throughout.

    Args:
        theirs, ours: the same pair, loaded twice, since an engine repacks the layers of its own.
    """
    engine = Engine(ours, pass_mode="fast")
    for case in CASES:
        watched = Watched(theirs.target.model, theirs.draft.model, case, engine.eos_ids)
        policy, equal, seen = case.make_policy(), 0, 0
        for number, prompt in enumerate(prompts):
            output, rounds = watched.rounds(prompt, new_tokens)
            our_output, mine = our_rounds(engine, prompt, policy, case.max_draft, new_tokens)
            same = (our_output, mine) == (output, rounds)
            equal, seen = equal + same, seen + len(rounds)
            if not same:
                what = "other rounds" if our_output == output else "another text"
                console.print(f"{case.name}, prompt {number}: {what}", markup=False)
        found = "with" if case.sklearn_installed else "without"
        verdicts.check(
            f"{case.name}, {found} scikit-learn: the rounds of transformers",
            equal == len(prompts),
            f"{equal} of {len(prompts)} prompts, {seen} rounds",
        )
