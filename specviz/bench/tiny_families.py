"""A tiny random pair of any causal-language-model family that transformers offers, in memory and without network.

A family's own default configuration is shrunk: every extent by its name, and every list with an entry per layer to one
that names each kind of layer of the default in turn. What that does not settle stands in `SPECIAL`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

LAYERS = 4
VOCABULARY = 120
MAX_CONTEXT = 256
WINDOW = 12
MOST_WEIGHTS = 200_000_000
PEAK = 4.0  # size of the logits, so that the largest two rarely come close

# Extents by the names that configurations give them.
_EXTENTS: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_dim", "attention_hidden_size"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "output_embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_inner", "dff"), 48),
    **dict.fromkeys(("dim_ff", "ffn_hidden_size", "feed_forward_size", "intermediate_size_mlp", "n_inner"), 48),
    **dict.fromkeys(("dense_intermediate_size", "shared_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_experts_intermediate_size"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size",), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_decoder_layers", "num_blocks"), LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), 2),  # other than the decoder's, as some models have it
    **dict.fromkeys(("head_dim", "swa_head_dim", "d_head", "dim_head", "qk_head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("v_head_dim", "attention_head_size", "kv_channels"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "gated_norm_rank", "laurel_rank"), 16),
    **dict.fromkeys(("hc_lowrank", "loop_gate_rank", "adapter_rank", "d_rel"), 16),
    **dict.fromkeys(("index_n_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), MAX_CONTEXT),
    **dict.fromkeys(("max_target_positions", "model_max_length", "rel_extent"), MAX_CONTEXT),
    **dict.fromkeys(("sliding_window", "window_size", "sliding_window_size", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("local_attention", "attention_window_size", "keep_window_size"), WINDOW),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), 1),
    **dict.fromkeys(("moe_layer_end_index",), LAYERS - 1),
    **dict.fromkeys(("hidden_size_per_layer_input", "ple_embed_dim", "router_hidden_size"), 16),
    **dict.fromkeys(("index_topk",), 512),
    **dict.fromkeys(("original_max_position_embeddings",), MAX_CONTEXT),
    **dict.fromkeys(("bos_token_id",), 1),
    **dict.fromkeys(("eos_token_id",), 2),
    **dict.fromkeys(("pad_token_id",), 0),
}
# Where a family's default is None for these, it has no such thing.
_MAY_BE_ABSENT = {
    "sliding_window",
    "attention_chunk_size",
    "q_lora_rank",
    "num_global_key_value_heads",
    "rotary_dim",
    "num_hidden_layers",
}
# What a family needs beyond that, by model type.
SPECIAL: dict[str, dict[str, Any]] = {
    "axk2": dict(num_key_value_heads=4),
    "bamba": dict(attn_layer_indices=[1, 3], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16),
    "cohere_compass_text": dict(
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "sliding_attention": dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2]),
            "full_attention": None,
        },
    ),
    "deepseek_v32": dict(num_key_value_heads=4),
    "glm_moe_dsa": dict(num_key_value_heads=4),
    "dbrx": dict(
        d_model=64,
        attn_config=dict(kv_n_heads=2, clip_qkv=8, rope_theta=10000.0),
        ffn_config=dict(hidden_size=64, ffn_hidden_size=32),
    ),
    "dory": dict(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        n_input_layers=1,
        n_recurrent_layers=2,
        n_output_layers=1,
    ),
    "dots3_note_text": dict(
        num_key_value_heads=4,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=4,
        swa_q_lora_rank=16,
        swa_kv_lora_rank=16,
        swa_head_dim=16,
        swa_qk_nope_head_dim=8,
        swa_v_head_dim=16,
    ),
    "gemma3n_text": dict(num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2),
    "gemma4_text": dict(num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2),
    "granitemoehybrid": dict(
        layer_types=["linear_attention", "full_attention"] * 2, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16
    ),
    "helium": dict(head_dim=8),
    "falcon_h1": dict(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=8),
    "kimi_linear": dict(linear_num_heads=4, linear_head_dim=16),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2),
    "mamba2": dict(num_heads=4, head_dim=16, n_groups=2, state_size=16),
    "nemotron_h": dict(mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=16),
    "qwen4_exp_text": dict(
        indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=64, indexer_compress_ratio=4
    ),
    "reformer": dict(
        axial_pos_shape=[16, 16],
        axial_pos_embds_dim=[16, 16],
        attn_layers=["local", "lsh"] * 2,
        local_attn_chunk_length=16,
        lsh_attn_chunk_length=16,
        num_buckets=4,
    ),
    "xlnet": dict(d_head=8),
    "xmod": dict(default_language="en_XX"),
    "zamba": dict(
        attention_hidden_size=64, attention_head_dim=16, layers_block_type=["linear_attention", "hybrid"] * 2
    ),
    "zamba2": dict(
        attention_hidden_size=64, attention_head_dim=16, layers_block_type=["linear_attention", "hybrid"] * 2
    ),
    "zaya": dict(num_experts_per_tok=1),
}


def tiny_config(config_class: type[PreTrainedConfig], **changes: Any) -> PreTrainedConfig:
    """The smallest useful configuration of a family, with `changes` on top."""
    default = config_class()
    text = default.get_text_config(decoder=True)
    model_class = model_class_of(config_class)
    # of what sees or hears too only the text part is ever loaded
    known = type(text) in MODEL_FOR_CAUSAL_LM_MAPPING or model_class.config_class is type(text)
    if type(text) is not config_class and known:
        return tiny_config(type(text), **changes)
    entries = default.to_dict()
    depth = next((len(v) for k, v in entries.items() if k in ("layer_types", "layers_block_type") and v), None)
    depth = depth or getattr(default, "num_hidden_layers", None)
    values = {
        name: _EXTENTS[name]
        for name, value in entries.items()
        if name in _EXTENTS and (value is not None or name not in _MAY_BE_ABSENT)
    }
    if "qk_rope_head_dim" in values:
        values["head_dim"] = values["qk_rope_head_dim"]
    for name, value in entries.items():
        if isinstance(value, list | tuple) and depth and depth > LAYERS and len(value) == depth:
            values[name] = _shrunk(list(value))
    values |= {"tie_word_embeddings": False, "is_decoder": True, "use_cache": True, "dtype": "float32"}
    return config_class(**(values | SPECIAL.get(config_class.model_type, {}) | changes))


def _shrunk(entries: list) -> list:
    """As many entries as there are layers, with each kind of the given ones in turn."""
    kinds = list(dict.fromkeys(entries))
    if len(kinds) == len(entries):  # numbers of layers
        return kinds[:LAYERS]
    return [kinds[number % len(kinds)] for number in range(LAYERS)]


def model_class_of(config_class: type[PreTrainedConfig]) -> type[PreTrainedModel]:
    """The causal language model of a family, also where the configuration is only its text part."""
    if config_class in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    return next(made for made in MODEL_FOR_CAUSAL_LM_MAPPING.values() if made.config_class is config_class)


def tiny_target(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A random fp32 model whose text varies and whose largest logits are apart.

    Raises:
        ValueError: the configuration is not that of a tiny model.
    """
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in model_class_of(type(config))(config).parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights:,} weights are left, because its parts have configurations of their own")
    torch.manual_seed(seed)
    model = model_class_of(type(config))(config).float().eval().requires_grad_(False)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2 or "conv" in name or "A_log" in name:
                continue
            scale = 1.5 / weight.shape[-1] ** 0.5
            if embedding is not None and weight is getattr(embedding, "weight", None):
                scale = 1.0
            elif head is not None and weight is getattr(head, "weight", None):
                scale = PEAK / weight.shape[-1] ** 0.5
            weight.normal_(0, scale)
    return model


def tiny_draft(target: PreTrainedModel, noise: float = 0.03) -> PreTrainedModel:
    """A copy of the target with a little noise, so that it is sometimes right and sometimes wrong."""
    torch.manual_seed(1)
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.dim() >= 2:
                weight.add_(noise * weight.std() * torch.randn_like(weight))
    return draft
