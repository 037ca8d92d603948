"""The catalogue's sizes against those published, and its promise to import without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specviz.errors import SpecVizError
from specviz.models.catalogue import PAIRS, find_pair
from specviz.models.loading import load_model
from specviz.models.precision import PRECISIONS
from specviz.models.sources import count_weights, find_model, weight_files

# Numbers of weights as the hub states them on the models' pages (of Gemma 3 4B: its language model's).
PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "google/gemma-3-270m-it": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-4b-it": 3_880_263_168,
}


def test_sizes_are_the_published_ones():
    models = {model.source: model for pair in PAIRS[1:] for model in (pair.target, pair.draft)}
    assert {source: model.parameters for source, model in models.items()} == PUBLISHED
    assert all(model.gated == model.source.startswith(("meta-llama/", "google/")) for model in models.values())


def test_narrower_precisions_need_less_memory_and_the_target_more_than_the_draft():
    for pair in PAIRS:
        wide, half, four_bit = (pair.memory_bytes(p, p) for p in ("fp32", "bf16", "nf4"))
        assert wide == 2 * half > 2 * four_bit
        assert all(pair.target.memory_bytes(p) > pair.draft.memory_bytes(p) for p in PRECISIONS)


def test_an_unknown_pair_is_a_sentence_with_the_names_there_are():
    assert find_pair("builtin") is PAIRS[0]
    with pytest.raises(SpecVizError, match="no pair 'other': choose one of builtin, .*\\.$"):
        find_pair("other")


def test_the_catalogue_imports_without_torch():
    code = "import sys, specviz.models.catalogue; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_built_in_drafts_size_is_that_of_its_file_and_its_shared_rows():
    found = find_model("builtin-draft")
    head_size, hidden = found.config.draft_vocab_size, found.config.hidden_size
    stored = sum(count_weights(found, weight_files(found))) - head_size  # less the list of token ids
    assert PAIRS[0].draft.parameters == stored + head_size * hidden


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_built_in_targets_memory_is_as_foretold(precision):
    measured = load_model("builtin-target", precision, "cpu").memory_bytes
    assert PAIRS[0].target.memory_bytes(precision) == pytest.approx(measured, rel=0.01)
