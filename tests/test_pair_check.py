"""Which drafts fit which targets, decided before any weights load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import VOCAB_SIZE, other_tokenizer, save_model, save_pair, tiny_pair, tiny_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from specviz.errors import SpecVizError
from specviz.models import loading
from specviz.models.draft_model import DraftConfig, DraftModel
from specviz.models.loading import load_pair
from specviz.models.pair_check import TEST_STRINGS, check_pair
from specviz.models.sources import find_model


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return save_pair(tmp_path_factory.mktemp("pair"), "llama", chat=True)[0]


def with_tokenizer(target: Path, folder: Path, tokenizer) -> Path:
    """A model folder like `target`, with another tokenizer and without weights: checks must not need any."""
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors", "token*", "chat*"))
    tokenizer.save_pretrained(folder)
    return folder


def changed(change) -> PreTrainedTokenizerFast:
    """The tiny tokenizer after `change` was made to its JSON."""
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    change(content)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), eos_token="<|end|>", pad_token="<|end|>"
    )


def swap_two_ids(content):
    vocab = content["model"]["vocab"]
    vocab["¾"], vocab["¿"] = vocab["¿"], vocab["¾"]  # bytes that no test string holds


def split_digits(content):
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False},
            content["pre_tokenizer"] | {"use_regex": False},
        ],
    }


def without_merges(content):
    for merge in content["model"]["merges"]:
        content["model"]["vocab"].pop("".join(merge))
    content["model"]["merges"] = []


def check(target: Path, draft: Path) -> tuple[str, ...]:
    return check_pair(find_model(str(target)), find_model(str(draft)))


def refusal(target: Path, draft: Path) -> str:
    with pytest.raises(SpecVizError) as error:
        check(target, draft)
    message = str(error.value)
    assert "\n" not in message and message.endswith(".") and "choose a draft" in message
    return message


def test_a_pair_of_one_family_fits(target, tmp_path):
    assert check(target, target) == ()


def test_other_merges_are_refused_with_a_string_that_differs(target, tmp_path):
    assert "tokenizers differ, such as at" in refusal(target, with_tokenizer(target, tmp_path / "d", other_tokenizer()))


def test_ids_that_mean_other_tokens_are_refused_even_if_all_test_strings_agree(target, tmp_path):
    tokenizer = changed(swap_two_ids)
    same = [tokenizer(text)["input_ids"] == tiny_tokenizer()(text)["input_ids"] for text in TEST_STRINGS]
    assert all(same), "the test must reach the comparison of ids"
    message = refusal(target, with_tokenizer(target, tmp_path / "d", tokenizer))
    assert f"2 of {VOCAB_SIZE} token ids differ" in message and "'¾'" in message and "'¿'" in message


def test_the_same_vocabulary_split_differently_is_refused(target, tmp_path):
    assert "tokenizers differ" in refusal(target, with_tokenizer(target, tmp_path / "d", changed(split_digits)))


def test_a_draft_without_many_of_the_tokens_is_refused(target, tmp_path):
    refusal(target, with_tokenizer(target, tmp_path / "d", changed(without_merges)))


def test_embeddings_padded_to_different_sizes_fit(tmp_path):
    pair = tiny_pair("qwen2")
    rows = [model.get_input_embeddings().weight.shape[0] for model in (pair.target, pair.draft)]
    assert rows[0] > rows[1] > VOCAB_SIZE
    assert check(*save_pair(tmp_path, "qwen2")) == ()


def test_a_token_that_only_the_target_knows_is_a_warning(target, tmp_path):
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    larger = with_tokenizer(target, tmp_path / "t", tokenizer)
    (warning,) = check(larger, target)
    assert "<|image|>" in warning and warning.endswith(".")
    assert check(target, larger)[:1] != (warning,)


def test_a_tokenizer_larger_than_the_embedding_is_refused(target, tmp_path):
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    folder = with_tokenizer(target, tmp_path / "both", tokenizer)
    with pytest.raises(SpecVizError, match="do not belong together"):
        check(folder, folder)


def test_differences_in_chat_and_end_are_explained(target, tmp_path):
    plain = with_tokenizer(target, tmp_path / "plain", tiny_tokenizer())
    assert "Only the target has a chat template" in check(target, plain)[0]
    assert "Only the draft has a chat template" in check(plain, target)[0]
    other = tiny_tokenizer(chat=True)
    other.eos_token = "<|im_end|>"
    other.chat_template = "{{ messages }}"
    warnings = check(target, with_tokenizer(target, tmp_path / "other", other))
    assert len(warnings) == 2 and "'<|end|>'" in warnings[0] and "chat templates differ" in warnings[1]


def test_a_mismatched_pair_is_refused_before_weights_are_read(target, tmp_path, monkeypatch):
    draft = with_tokenizer(target, tmp_path / "d", other_tokenizer())
    monkeypatch.setattr(loading, "_load", lambda *_: pytest.fail("read weights of a pair that does not fit"))
    with pytest.raises(SpecVizError, match="cannot draft for"):
        load_pair(str(target), str(draft), "fp32", "fp32", "cpu")


def distilled(folder: Path, hidden_size: int) -> Path:
    config = DraftConfig(
        draft_vocab_size=64,
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=256,
    )
    DraftModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("precision", ["fp32", "bf16", "nf4", "int8"])
def test_a_distilled_draft_shares_its_targets_tokenizer_and_embedding(target, tmp_path, precision):
    pair = load_pair(str(target), str(distilled(tmp_path / "d", 48)), precision, precision, "cpu")
    assert pair.draft.tokenizer is pair.target.tokenizer and pair.draft.eos_token_ids == (0,)
    weights = [loaded.model.get_input_embeddings().weight for loaded in (pair.target, pair.draft)]
    assert weights[0].data_ptr() == weights[1].data_ptr()
    shared = weights[0].nbytes
    assert pair.memory_bytes == pair.target.memory_bytes + pair.draft.memory_bytes - shared


def test_a_distilled_draft_of_another_target_is_refused(target, tmp_path):
    with pytest.raises(SpecVizError, match="choose the target named in the draft's card"):
        load_pair(str(target), str(distilled(tmp_path / "d", 24)), "fp32", "fp32", "cpu")
    with pytest.raises(SpecVizError, match="cannot be a target"):
        load_pair(str(tmp_path / "d"), str(target), "fp32", "fp32", "cpu")
    with pytest.raises(SpecVizError, match="load it together"):
        loading.load_model(str(tmp_path / "d"), "fp32", "cpu")


def test_pairs_are_loaded_with_their_own_precisions(target, tmp_path):
    pair = tiny_pair("llama", chat=True)
    draft = save_model(pair.draft, pair.tokenizer, tmp_path / "draft")
    loaded = load_pair(str(target), str(draft), "fp32", "bf16", "cpu")
    assert (loaded.target.precision, loaded.draft.precision) == ("fp32", "bf16")
    assert loaded.memory_bytes == loaded.target.memory_bytes + loaded.draft.memory_bytes
    assert loaded.max_context == 256 and loaded.is_chat and loaded.tokenizer is loaded.target.tokenizer
