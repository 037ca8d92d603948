"""A pair of real size with random weights, made on the device: for the times of passes where no weights can be fetched.

What a pass costs depends on shapes and precisions, not on values. What the two models say means nothing, so agreement
between them is not measured but forced: `forced_recordings` are made up, with a draft that is right at a given rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from specviz import limits
from specviz.models.loading import LoadedModel, LoadedPair
from specviz.models.precision import (
    check_precision,
    compute_precision,
    quantisation_config,
    read_precision,
    resolve_device,
    spell_precision,
    torch_dtype,
)
from specviz.trace import PairInfo, Recording, RecordingSet

MAX_CONTEXT = 4096
# hidden, intermediate, layers, heads, key-value heads, vocabulary: of Qwen2.5 7B and 0.5B, and a pair for tests
_SHAPES = {
    "7b": ((3584, 18944, 28, 28, 4, 152064), (896, 4864, 24, 14, 2, 151936)),
    "tiny": ((64, 128, 2, 4, 2, 512), (64, 64, 1, 4, 2, 512)),
}
FORCED_RATES = (0.5, 0.7, 0.9)


def random_pair(size: str, target_precision: str, draft_precision: str, device: str = "auto") -> LoadedPair:
    """A target and a draft of the shapes that `size` names, with small random weights, at these precisions."""
    limits.RANDOM_SIZE.read(size)
    device = resolve_device(device)
    loaded = []
    for role, shape, text in zip(("target", "draft"), _SHAPES[size], (target_precision, draft_precision), strict=True):
        check_precision(text, device)
        precision, options = read_precision(text)
        model = _random_model(_config(shape), precision, device, options)
        loaded.append(
            LoadedModel(
                model=model,
                tokenizer=None,
                name=f"random {size} {role}",
                revision="",
                precision=spell_precision(precision, options),
                device=device,
                memory_bytes=sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers()),
                eos_token_ids=(),
                max_context=MAX_CONTEXT,
                is_chat=False,
                family="qwen2",
            )
        )
    return LoadedPair(*loaded)


def _config(shape: tuple[int, ...]) -> Qwen2Config:
    hidden, intermediate, layers, heads, key_value_heads, vocabulary = shape
    return Qwen2Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        vocab_size=vocabulary,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=False,
    )


@torch.no_grad()
def _random_model(config: Qwen2Config, precision: str, device: str, options) -> PreTrainedModel:
    dtype = torch_dtype(compute_precision(precision, device, options))
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    quantised = quantisation_config(precision, device, options)
    if quantised is not None:
        for parent in list(model.base_model.modules()):  # the head stays as it is
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    setattr(parent, name, _quantised(child, quantised))
    return model


def _quantised(layer: nn.Linear, config) -> nn.Module:
    """A bitsandbytes layer in place of `layer`, quantised on its device."""
    import bitsandbytes as bnb

    shape, device = (layer.in_features, layer.out_features, layer.bias is not None), layer.weight.device
    if config.load_in_8bit:
        made = bnb.nn.Linear8bitLt(
            *shape, has_fp16_weights=False, threshold=config.llm_int8_threshold, device=torch.device("meta")
        )
        made.weight = bnb.nn.Int8Params(layer.weight.data.cpu(), requires_grad=False, has_fp16_weights=False).to(device)
    else:
        made = bnb.nn.Linear4bit(
            *shape,
            compute_dtype=config.bnb_4bit_compute_dtype,
            compress_statistics=config.bnb_4bit_use_double_quant,
            quant_type=config.bnb_4bit_quant_type,
            device=torch.device("meta"),
        )
        made.weight = bnb.nn.Params4bit(
            layer.weight.data,
            requires_grad=False,
            compress_statistics=config.bnb_4bit_use_double_quant,
            quant_type=config.bnb_4bit_quant_type,
            module=made,
        ).to(device)
    made.bias = layer.bias
    return made.eval().requires_grad_(False)


def forced_recordings(
    pair: PairInfo, settings: dict, rate: float, *, tokens: int, max_draft: int, prompts: int = 6
) -> RecordingSet:
    """Made-up recordings whose draft is right at each position with chance `rate`, independently, and always as sure.

    Thresholds therefore mean nothing in them; draft lengths do. `prompt_id` says that they are forced.
    """
    random = np.random.default_rng(0)
    return RecordingSet([_forced(random, pair, settings, rate, tokens, max_draft, n) for n in range(prompts)])


def _forced(random, pair, settings, rate: float, tokens: int, max_draft: int, number: int) -> Recording:
    def same(value: float, *shape: int) -> np.ndarray:
        return np.full(shape, value, np.float32)

    output = random.integers(2, 500, tokens, dtype=np.int32)
    wrong = random.random(tokens) >= rate
    lengths = np.where(wrong, np.clip(tokens - 2 - np.arange(tokens), 0, max_draft - 1), 0)
    steps = int(lengths.sum())
    five: Sequence[int] = (tokens, 5)
    return Recording(
        prompt_id=f"forced-{number}",
        category="forced agreement",
        prompt="",
        pair=pair,
        settings=settings,
        seed=0,
        finish_reason="length",
        max_new_tokens=tokens,
        output_limit=MAX_CONTEXT - 32,
        max_draft=max_draft,
        eos_ids=(),
        prompt_ids=random.integers(2, 500, 32, dtype=np.int32),
        output_ids=output,
        draft_token=np.where(wrong, output + 1, output).astype(np.int32),
        draft_confidence=same(rate, tokens),
        draft_entropy=same(0, tokens),
        draft_margin=same(0, tokens),
        draft_prob_of_emitted=same(rate, tokens),
        target_prob_of_draft_token=same(rate, tokens),
        target_rank_of_draft_token=np.ones(tokens, np.int32),
        target_entropy=same(0, tokens),
        target_prob_of_emitted=same(1, tokens),
        target_margin=same(0, tokens),
        draft_top_ids=np.full(five, -1, np.int32),
        draft_top_probs=same(0, *five),
        target_top_ids=np.full(five, -1, np.int32),
        target_top_probs=same(0, *five),
        branch_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        branch_token=random.integers(2, 500, steps, dtype=np.int32),
        branch_confidence=same(rate, steps),
        branch_entropy=same(0, steps),
        branch_margin=same(0, steps),
    ).validate()
