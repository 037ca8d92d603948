"""The draft model: its two heads agree, it works inside transformers, and it stores neither embedding nor head."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from specviz.errors import SpecVizError
from specviz.models.distill.train import make_draft
from specviz.models.draft_model import DraftModel

VOCABULARY = 96


def tiny_target(seed: int = 0, **changes) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


HEAD = torch.tensor([7, 2, 90, 11, 30, 31, 32, 33])


@pytest.fixture
def pair() -> tuple[LlamaForCausalLM, DraftModel]:
    target = tiny_target()
    return target, make_draft(target, (0, 3), HEAD).eval()


def test_full_logits_are_the_reduced_ones_and_minus_infinity_elsewhere(pair):
    _, draft = pair
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        full = draft(input_ids=ids).logits
        reduced = draft.reduced_logits(draft.model(input_ids=ids).last_hidden_state)
    assert full.shape == (1, 10, VOCABULARY)
    assert torch.equal(full[..., HEAD], reduced)
    elsewhere = torch.ones(VOCABULARY, dtype=torch.bool)
    elsewhere[HEAD] = False
    assert torch.isneginf(full[..., elsewhere]).all()


def test_layers_start_as_copies_of_the_chosen_ones(pair):
    target, draft = pair
    for own, taken in ((0, 0), (1, 3)):
        for a, b in zip(draft.model.layers[own].parameters(), target.model.layers[taken].parameters(), strict=True):
            assert torch.equal(a, b)


def test_with_all_layers_and_all_tokens_it_is_the_target():
    target = tiny_target()
    draft = make_draft(target, range(4), torch.randperm(VOCABULARY)).eval()
    ids = torch.arange(2, 22)[None]
    with torch.no_grad():
        torch.testing.assert_close(draft(input_ids=ids).logits, target(input_ids=ids).logits)


def test_assisted_generation_of_transformers_accepts_it(pair):
    target, draft = pair
    prompt = torch.tensor([[1, 40, 41, 42]])
    options = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    plain = target.generate(prompt, **options)
    assert torch.equal(target.generate(prompt, assistant_model=draft, **options), plain)


def test_saved_draft_holds_neither_embedding_nor_head_rows_and_loads_the_same(pair, tmp_path):
    target, draft = pair
    draft.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert not any("embed_tokens" in name or "rows" in name for name in stored)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert isinstance(loaded, DraftModel)
    loaded.attach_embedding(target)
    assert loaded.model.embed_tokens.weight.data_ptr() == target.model.embed_tokens.weight.data_ptr()
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, draft(input_ids=ids).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_runs_at_half_precision(pair, tmp_path, dtype):
    target, draft = pair
    draft.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).attach_embedding(target.to(dtype))
    logits = loaded(input_ids=torch.arange(2, 12)[None]).logits
    assert logits.dtype == dtype
    assert torch.isfinite(logits[..., HEAD]).all()


def test_another_targets_embedding_is_refused_in_a_sentence(pair):
    _, draft = pair
    with pytest.raises(SpecVizError, match="96 x 32.*80 x 32"):
        draft.attach_embedding(tiny_target(vocab_size=80))
