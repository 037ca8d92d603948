"""`bench draft` prints one line per category, judges against its bars, and reuses the answers it kept."""

from __future__ import annotations

import json

import pytest
import torch
from test_distill import LetterTokenizer
from test_draft_model import VOCABULARY, tiny_target

from specviz.bench import draft as bench_draft
from specviz.errors import SpecVizError
from specviz.models.distill.train import make_draft
from specviz.models.loading import LoadedModel, LoadedPair


def pair_of(target, draft) -> LoadedPair:
    def loaded(model, name):
        return LoadedModel(model, LetterTokenizer(), name, "", "fp32", "cpu", 0, (2,), 128, False, "llama")

    return LoadedPair(loaded(target, "target"), loaded(draft, "draft"))


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"category": c, "turns": [f"{c} question {i}?"]} for i in range(3) for c in ("math", "story")]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_draft_that_is_its_target_meets_both_bars_in_every_category(questions):
    target = tiny_target()
    lines: list[str] = []
    draft = make_draft(target, range(4), torch.arange(VOCABULARY))
    assert bench_draft.run(questions, pair=pair_of(target, draft), max_new_tokens=12, say=lines.append)
    table = "\n".join(lines).splitlines()
    for category in ("math", "story", "all"):
        row = next(line for line in table if line.split()[:1] == [category])
        assert row.split()[2:4] == ["1.000", "1.000"]
    assert sum("met" in line for line in table) == 2


def test_a_draft_without_the_targets_tokens_misses_the_bar_and_answers_are_reused(questions, tmp_path, monkeypatch):
    target = tiny_target()
    draft = make_draft(target, range(4), torch.arange(VOCABULARY))
    kept = tmp_path / "answers"
    options = {"max_new_tokens": 12, "texts_folder": kept, "say": lambda line: None}
    assert bench_draft.run(questions, pair=pair_of(target, draft), **options)
    monkeypatch.setattr(bench_draft, "write_texts", lambda *_, **__: pytest.fail("answers were kept"))
    with torch.no_grad():
        draft.lm_head.rows.weight.zero_()
    assert not bench_draft.run(questions, pair=pair_of(target, draft), **options)


def test_a_draft_that_was_not_distilled_is_refused(questions):
    target = tiny_target()
    with pytest.raises(SpecVizError, match="not distilled"):
        bench_draft.run(questions, pair=pair_of(target, tiny_target(1)))
