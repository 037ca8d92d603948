"""`heuristic` and `dynamic` do what `generate(assistant_model=...)` does, seen in its forward calls."""

import copy

import pytest
import tiny_models
import torch
import transformers.generation.candidate_generator as candidate_generator
from engine_helpers import loaded_pair

from specviz.engine.engine import Engine, Settings
from specviz.replay import ConfidenceThreshold
from specviz.replay.policies import DynamicThreshold, Heuristic

NEW_TOKENS, PROMPTS = 40, 20


def prompts():
    source = torch.Generator().manual_seed(0)
    return [torch.randint(3, 270, (3 + number % 9,), generator=source).tolist() for number in range(PROMPTS)]


class Watched:
    """transformers' assisted generation, its rounds told from the forward calls of both models."""

    def __init__(self, pair, **assistant_settings):
        self.target, self.draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
        for model in (self.target, self.draft):
            model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
        for name, value in assistant_settings.items():
            setattr(self.draft.generation_config, name, value)
        self._passes, self._draft_steps = [], 0
        self.target.register_forward_pre_hook(self._on_target, with_kwargs=True)
        self.draft.register_forward_pre_hook(self._on_draft, with_kwargs=True)

    def _on_target(self, _, arguments, keywords):
        ids, cache = keywords["input_ids"], keywords.get("cache")
        seen = cache.get_seq_length() if cache is not None else 0
        self._passes.append((seen + ids.shape[1], seen, self._draft_steps))
        self._draft_steps = 0

    def _on_draft(self, *_):
        self._draft_steps += 1

    def rounds(self, prompt):
        """Output, and per round: draft steps, tokens proposed, tokens committed."""
        self._passes, self._draft_steps = [], 0
        ids = torch.tensor([prompt])
        text = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=self.draft,
            max_new_tokens=NEW_TOKENS,
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


def our_rounds(engine, prompt, policy, max_draft):
    trace = engine.trace(prompt, Settings(policy, max_draft, NEW_TOKENS))
    columns = (trace.rounds[name].tolist() for name in ("draft_steps", "proposed", "emitted"))
    return list(trace.run.output_ids), list(zip(*columns, strict=True))


CASES = {
    "heuristic": (
        {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0},
        lambda installed: Heuristic(5),
        40,
    ),
    "heuristic_transient": (
        {
            "num_assistant_tokens": 5,
            "num_assistant_tokens_schedule": "heuristic_transient",
            "assistant_confidence_threshold": 0,
        },
        lambda installed: Heuristic(5, transient=True),
        40,
    ),
    "dynamic": (
        {"num_assistant_tokens": 8, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4},
        # Without scikit-learn the threshold stays where it is.
        lambda installed: DynamicThreshold(0.4) if installed else ConfidenceThreshold(0.4, "keep"),
        8,
    ),
}


@pytest.mark.parametrize(
    ("name", "sklearn_installed"),
    [("heuristic", True), ("heuristic_transient", False), ("dynamic", True), ("dynamic", False)],
)
def test_rounds_are_those_of_transformers(name, sklearn_installed, monkeypatch):
    monkeypatch.setattr(candidate_generator, "is_sklearn_available", lambda: sklearn_installed)
    settings, make_policy, max_draft = CASES[name]
    pair = tiny_models.tiny_pair("llama", seed=3, ends=True)
    theirs, policy = Watched(pair, **settings), make_policy(sklearn_installed)
    engine = Engine(loaded_pair(pair), pass_mode="fast", widest_draft=max_draft)
    lengths, seen = set(), 0
    for prompt in prompts():
        output, rounds = theirs.rounds(prompt)
        assert our_rounds(engine, prompt, policy, max_draft) == (output, rounds)
        lengths |= {proposed for _, proposed, _ in rounds}
        seen += len(rounds)
    assert seen > 10 * PROMPTS and len(lengths) > 3, "nothing varied, so nothing was compared"


@pytest.mark.parametrize("wrong", [Heuristic(6), DynamicThreshold(0.4), ConfidenceThreshold(0.4, "drop")])
def test_the_comparison_sees_another_policy(wrong):
    pair = tiny_models.tiny_pair("llama", seed=3, ends=True)
    settings, _, max_draft = CASES["heuristic" if wrong.name == "dynamic" else "dynamic"]
    theirs = Watched(pair, **settings)
    engine = Engine(loaded_pair(pair), pass_mode="fast", widest_draft=max_draft)
    assert any(our_rounds(engine, prompt, wrong, max_draft) != theirs.rounds(prompt) for prompt in prompts()[:5])
