"""Distillation: its prompts, its data, its training and its restart, on a tiny random target."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from test_draft_model import VOCABULARY, tiny_target

from specviz.errors import SpecVizError
from specviz.models.distill import distill, topics
from specviz.models.distill.copying import attention_scores, choose_layers, repeated_spans
from specviz.models.distill.evaluate import Agreement, measure_agreement, read_questions
from specviz.models.distill.generate import label_text, write_texts
from specviz.models.distill.prompts import KINDS, Prompt, generate_prompts
from specviz.models.distill.texts import read_shard, write_shard
from specviz.models.distill.train import (
    Trainer,
    TrainSettings,
    batches_of_epoch,
    choose_head_tokens,
    distillation_loss,
    fit_connector,
    make_draft,
)
from specviz.models.draft_model import DraftModel


class LetterTokenizer:
    """One token per character, enough for a target without a vocabulary of its own."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(character) % (VOCABULARY - 3) for character in text[:20]]}


def texts_of(target, prompts: int = 12, *, greedy: bool = True, seed: int = 0, keep_hidden: bool = True):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(3, VOCABULARY, rng.integers(3, 9)).tolist() for _ in range(prompts)]
    return write_texts(
        target,
        ids,
        max_new_tokens=20,
        temperatures=[0.0 if greedy else 1.0] * prompts,
        kinds=["kind"] * prompts,
        keep_hidden=keep_hidden,
        top_k=8,
        seed=seed,
    )


# Prompts


def test_prompts_are_reproducible_distinct_and_of_every_kind():
    first = list(itertools.islice(generate_prompts(1), 600))
    assert first == list(itertools.islice(generate_prompts(1), 600))
    assert first != list(itertools.islice(generate_prompts(2), 600))
    assert len({prompt.text for prompt in first}) == 600
    assert {prompt.kind for prompt in first} == set(KINDS)


def test_held_out_prompts_share_no_word_list_and_no_text_with_training():
    for train, held_out in (
        (topics.TRAIN_TOPICS, topics.HELD_OUT_TOPICS),
        (topics.TRAIN_NAMES, topics.HELD_OUT_NAMES),
        (topics.TRAIN_THINGS, topics.HELD_OUT_THINGS),
        (topics.TRAIN_PLACES, topics.HELD_OUT_PLACES),
        (topics.TRAIN_ROLES, topics.HELD_OUT_ROLES),
    ):
        assert not set(train) & set(held_out)
    train = {prompt.text for prompt in itertools.islice(generate_prompts(0), 3000)}
    assert not train & {prompt.text for prompt in itertools.islice(generate_prompts(0, held_out=True), 300)}


# Texts


def test_greedy_texts_are_what_generate_writes_whatever_the_padding():
    target = tiny_target()
    for text in texts_of(target):
        prompt = torch.from_numpy(text.ids[: text.prompt_len]).long()[None]
        expected = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=2
        )
        assert text.ids.tolist() == expected[0].tolist()
        assert text.top_ids[:, 0].tolist() == text.output_ids.tolist()


@pytest.mark.parametrize("greedy", [True, False])
def test_labels_kept_while_writing_equal_those_of_a_second_pass(greedy):
    target = tiny_target()
    for text in texts_of(target, greedy=greedy):
        again = label_text(target, text.ids, text.prompt_len, kind=text.kind, mode=text.mode, top_k=8, keep_hidden=True)
        np.testing.assert_allclose(text.top_logp, again.top_logp, atol=2e-3)
        np.testing.assert_allclose(text.hidden, again.hidden, atol=2e-3)
        assert (text.top_ids[:, 0] == again.top_ids[:, 0]).all()


def test_shards_come_back_as_written(tmp_path):
    texts = texts_of(tiny_target(), 5)
    write_shard(tmp_path / "a.npz", texts)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    for text, again in zip(texts, read_shard(tmp_path / "a.npz"), strict=True):
        assert (text.kind, text.mode, text.prompt_len) == (again.kind, again.mode, again.prompt_len)
        np.testing.assert_array_equal(text.ids, again.ids)
        np.testing.assert_array_equal(text.top_ids, again.top_ids)
        np.testing.assert_allclose(text.top_logp, again.top_logp, atol=2e-2)


# Training


def test_learning_rate_warms_up_stays_and_ends_at_zero():
    settings = TrainSettings(steps=100, warmup_steps=10, decay=0.4, learning_rate=1.0)
    rates = [settings.learning_rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[59] == 1.0
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 40)


def test_every_text_is_in_one_batch_of_an_epoch_and_epochs_differ():
    texts = texts_of(tiny_target(), 40)
    one, two = (batches_of_epoch(texts, 120, 0, epoch) for epoch in (0, 1))
    assert sorted(i for batch in one for i in batch) == list(range(40))
    assert one != two
    assert all(len(batch) * max(len(texts[i].ids) for i in batch) <= 120 for batch in one if len(batch) > 1)


def test_head_holds_the_commonest_tokens_first_and_is_filled_to_size():
    texts = texts_of(tiny_target())
    head = choose_head_tokens(texts, 40, VOCABULARY).tolist()
    assert len(set(head)) == 40
    said = np.concatenate([text.output_ids for text in texts])
    assert (said == head[0]).sum() == np.bincount(said).max()


def test_loss_is_cross_entropy_against_the_teachers_renormalised_top_tokens():
    target = tiny_target()
    text = texts_of(target, 1)[0]
    head = torch.arange(VOCABULARY)[torch.randperm(VOCABULARY)[:60]]
    draft = make_draft(target, (0, 1), head)
    row = torch.full((VOCABULARY,), -1)
    row[head] = torch.arange(60)
    logits = draft(input_ids=torch.from_numpy(text.ids).long()[None]).logits[0, text.prompt_len - 1 : -1]
    logp = logits.log_softmax(-1)
    expected = []
    for position in range(len(text.output_ids)):
        shares = {
            int(t): float(np.exp(p)) for t, p in zip(text.top_ids[position], text.top_logp[position], strict=True)
        }
        shares = {t: p for t, p in shares.items() if row[t] >= 0}
        soft = -sum(p / sum(shares.values()) * logp[position, t].item() for t, p in shares.items())
        best = int(text.top_ids[position, 0])
        hard = -logp[position, best].item() if row[best] >= 0 else 0.0
        expected.append(0.75 * soft + 0.25 * hard)
    loss = distillation_loss(draft, [text], row, TrainSettings(hard_weight=0.25, hidden_weight=0.0))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-3)


def test_closed_form_connector_brings_the_heads_input_nearer_to_the_targets_hidden_state():
    target = tiny_target()
    texts = texts_of(target, 24, greedy=False)
    draft = make_draft(target, (0, 1), torch.arange(VOCABULARY))
    row = torch.arange(VOCABULARY)

    def distance() -> float:
        with_hidden = distillation_loss(draft, texts, row, TrainSettings(hidden_weight=1.0))
        return (with_hidden - distillation_loss(draft, texts, row, TrainSettings(hidden_weight=0.0))).item()

    before = distance()
    fit_connector(draft, texts)
    assert distance() < 0.8 * before


def test_training_leaves_the_shared_embedding_and_the_heads_rows_alone():
    target = tiny_target()
    embedding = target.get_input_embeddings().weight.clone()
    draft = make_draft(target, (0,), torch.arange(50))
    rows = draft.lm_head.rows.weight.clone()
    Trainer(draft, TrainSettings(steps=3, batch_tokens=64)).train(lambda: texts_of(target))
    assert torch.equal(target.get_input_embeddings().weight, embedding)
    assert torch.equal(draft.lm_head.rows.weight, rows)


# Copying


def test_layers_are_the_first_two_those_that_copy_and_then_early_ones():
    induction = [0, 0, 0, 0, 0, 1.9, 1.2, 0.3]
    previous = [0, 0.9, 0.5, 0.2, 0.8, 0.1, 0.95, 0]
    assert choose_layers(induction, previous, 5) == (0, 1, 4, 5, 6)
    assert choose_layers(induction, previous, 6) == (0, 1, 2, 4, 5, 6)
    assert choose_layers(induction, previous, 2) == (0, 1)
    assert choose_layers([0] * 8, previous, 3) == (0, 1, 2)
    assert choose_layers([0, 0, 0.5], [0, 0, 0], 9) == (0, 1, 2)


def test_an_attention_that_looks_back_by_one_scores_as_previous_token():
    target = tiny_target()
    induction, previous = attention_scores(target, length=8)
    assert induction.shape == previous.shape == (4,)
    assert target.config._attn_implementation == "sdpa"

    class LooksBack(torch.nn.Module):
        config = target.config
        device = target.device

        def set_attn_implementation(self, name):
            pass

        def forward(self, input_ids, **_):
            length = input_ids.shape[1]
            back = torch.eye(length).roll(-1, 1)[None, None].expand(4, 1, -1, -1)
            to_follower = torch.eye(length).roll(-7, 1)[None, None].expand(4, 1, -1, -1)
            return type("Output", (), {"attentions": (back, to_follower)})

    induction, previous = attention_scores(LooksBack(), length=8)
    assert (induction.tolist(), previous.tolist()) == ([0.0, 1.0], [1.0, 0.0])


def test_repeated_spans_label_only_what_the_prompt_holds_already():
    texts = texts_of(tiny_target())
    made = repeated_spans(texts, list(range(3, 60)), 30, seed=1)
    assert made
    for text in made:
        before, rest = text.ids[: text.prompt_len].tolist(), text.output_ids.tolist()
        span = before[-2:] + rest
        assert any(before[i : i + len(span)] == span for i in range(len(before) - len(span) + 1))
        assert text.top_ids[:, 0].tolist() == rest
    again = repeated_spans(texts, list(range(3, 60)), 30, seed=1)
    assert [a.ids.tolist() for a in made] == [b.ids.tolist() for b in again]


# Evaluation


def test_agreement_of_the_whole_target_with_itself_is_one():
    target = tiny_target()
    draft = make_draft(target, range(4), torch.arange(VOCABULARY))
    agreement = measure_agreement(draft, texts_of(target))
    assert agreement.rate() == agreement.coverage() == 1.0


def test_rates_are_shares_of_the_positions_they_name():
    agreement = Agreement(
        kind=np.array(["a", "a", "a", "b"]),
        agrees=np.array([True, False, True, False]),
        confidence=np.array([0.9, 0.6, 0.4, 0.5]),
        covered=np.array([True, True, True, False]),
    )
    assert agreement.rate() == 0.5
    assert agreement.rate("a") == pytest.approx(2 / 3)
    assert agreement.acceptance(0.5) == 0.5
    assert agreement.proposed(0.5) == 0.5
    assert agreement.coverage("b") == 0.0
    assert np.isnan(agreement.acceptance(0.5, "b"))


def test_questions_are_read_and_a_broken_line_is_named(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "why?"]}) + "\n", encoding="utf-8")
    assert read_questions(path) == [Prompt("math", "1 + 1?")]
    path.write_text('{"category": "math"}\n', encoding="utf-8")
    with pytest.raises(SpecVizError, match="Line 1"):
        read_questions(path)
    with pytest.raises(SpecVizError, match="no prompts file"):
        read_questions(tmp_path / "none.jsonl")


# All of it

SMALL = {
    "tokenizer": LetterTokenizer(),
    "layers": (0, 3),
    "head_size": 80,
    "texts": 24,
    "held_out_texts": 8,
    "max_new_tokens": 16,
    "batch": 8,
    "settings": TrainSettings(steps=40, batch_tokens=256, learning_rate=2e-3, warmup_steps=4),
}


def test_distillation_improves_held_out_agreement_and_resumes_to_the_same_weights(tmp_path):
    target = tiny_target()
    whole = distill(target, tmp_path / "whole", **SMALL)
    head = whole.draft.head_token_ids
    untrained = make_draft(target, (0, 3), head)
    held_out = [text for path in sorted((tmp_path / "whole/work/held-out").iterdir()) for text in read_shard(path)]
    assert whole.agreement.rate() > measure_agreement(untrained, held_out).rate() + 0.02

    # Stopped twice, once while texts are written and once while training, each time after a few calls.
    for stage, calls in (("texts", 20), ("training", 17)):
        left = calls

        def stop(progress, stage=stage):
            nonlocal left
            left -= progress.stage == stage
            return left <= 0

        assert distill(target, tmp_path / "parts", **SMALL, progress=stop) is None
    parts = distill(target, tmp_path / "parts", **SMALL)
    for (name, a), b in zip(whole.draft.state_dict().items(), parts.draft.state_dict().values(), strict=True):
        assert torch.equal(a, b), name

    folder = tmp_path / "whole"
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors", "work"}
    loaded = DraftModel.from_pretrained(folder, dtype=torch.float32).attach_embedding(target)
    assert measure_agreement(loaded, held_out).rate() == pytest.approx(whole.agreement.rate(), abs=0.05)


def test_wrong_requests_are_refused_in_a_sentence(tmp_path):
    target = tiny_target()
    with pytest.raises(SpecVizError, match="layers 0 to 3"):
        distill(target, tmp_path / "a", **{**SMALL, "layers": (0, 9)})
    with pytest.raises(SpecVizError, match="at least 1"):
        distill(target, tmp_path / "a", **{**SMALL, "texts": 0})
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(SpecVizError, match="not empty"):
        distill(target, tmp_path / "full", **SMALL)
    with pytest.raises(SpecVizError, match="no model folder"):
        distill(tmp_path / "nowhere", tmp_path / "b")
