"""Loaded pairs for the engine's tests, made from the tiny models without files."""

from __future__ import annotations

import copy

import tiny_models
from transformers import PreTrainedModel

from specviz.models.loading import LoadedModel, LoadedPair


def loaded_model(model: PreTrainedModel, tokenizer, name: str) -> LoadedModel:
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        revision="",
        precision="bf16" if "16" in str(model.dtype) else "fp32",
        device="cpu",
        memory_bytes=0,
        eos_token_ids=(0,),
        max_context=tiny_models.MAX_CONTEXT,
        is_chat=False,
        family=model.config.model_type,
    )


def loaded_pair(pair: tiny_models.TinyPair) -> LoadedPair:
    """Copies, since an engine repacks the layers of its models in place and tiny pairs are shared."""
    return LoadedPair(
        loaded_model(copy.deepcopy(pair.target), pair.tokenizer, "tiny target"),
        loaded_model(copy.deepcopy(pair.draft), pair.tokenizer, "tiny draft"),
    )
