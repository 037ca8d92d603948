"""Small random models for the tests: made in memory from a seed, without network, in a fraction of a second.

A purely random draft never agrees with a random target, and a random target repeats one token for ever. So the
weights are drawn wide enough for attention to matter, the head is scaled until its distributions are peaked, the
target's later layers are damped, and the draft is the target's first layers with a little noise: its greedy token
is then sometimes right and sometimes wrong, with confidences to match.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

EOS, IM_START, IM_END = "<|end|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [EOS, IM_START, IM_END]
VOCAB_SIZE = 280
WINDOW = 16
MAX_CONTEXT = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = ["the cat sat on the mat and the dog sat on the log", "an apple a day keeps the doctor away"]
_OTHER_CORPUS = ["numbers 1234567890 and words like zebra and quartz"]


def _train_tokenizer(corpus: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (256 bytes, three special tokens, a few merges), so every string can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS)


def tiny_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """The tokenizer of the tiny models, with or without a chat template."""
    tokenizer = _train_tokenizer(_CORPUS)
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def other_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with as many tokens as `tiny_tokenizer`, but other merges: the same ids mean other strings."""
    return _train_tokenizer(_OTHER_CORPUS)


def _config(family: str, layers: int, padded_vocab: int):
    """The family's smallest useful configuration, with `layers` layers and `padded_vocab` embedding rows."""
    common = dict(
        vocab_size=padded_vocab,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    match family:
        case "llama":
            return LlamaConfig(**common)
        case "gpt2":
            return GPT2Config(
                vocab_size=padded_vocab,
                n_embd=48,
                n_layer=layers,
                n_head=4,
                n_positions=MAX_CONTEXT,
                tie_word_embeddings=False,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=0,
            )
        case "qwen2":
            return Qwen2Config(**common)
        case "mistral":
            return MistralConfig(**common, sliding_window=WINDOW)
        case "gemma3":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"][:layers]
            return Gemma3TextConfig(**common, sliding_window=WINDOW, layer_types=kinds, query_pre_attn_scalar=12)
    raise ValueError(f"no tiny model family called {family!r}")


_CLASSES = {
    "llama": LlamaForCausalLM,
    "gpt2": GPT2LMHeadModel,
    "qwen2": Qwen2ForCausalLM,
    "mistral": MistralForCausalLM,
    "gemma3": Gemma3ForCausalLM,
}
FAMILIES = tuple(_CLASSES)
# Embedding rows beyond the tokenizer's, as in the Qwen2.5 family: the target and its draft are padded differently.
_ROWS = {"qwen2": (VOCAB_SIZE + 24, VOCAB_SIZE + 8)}


@torch.no_grad()
def _draw_weights(model: PreTrainedModel, seed: int, peak: float, ends: bool) -> None:
    """Fill every matrix with seeded noise of a size that gives varied text and peaked distributions."""
    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings().weight
    embedding = model.get_input_embeddings().weight
    for name, weight in model.named_parameters():
        if weight.dim() != 2:
            continue
        noise = torch.randn(weight.shape, generator=generator)
        if weight is embedding or "wpe" in name:
            weight.copy_(noise)
        elif weight is head:
            weight.copy_(noise * peak / weight.shape[1] ** 0.5)
        else:
            transposed = type(model) is GPT2LMHeadModel  # its Conv1D keeps (inputs, outputs)
            weight.copy_(noise * 2.0 / weight.shape[0 if transposed else 1] ** 0.5)
    if type(model) is Gemma3ForCausalLM:
        embedding.mul_(model.config.hidden_size**-0.5)  # Gemma multiplies embeddings by the square root of the width
    head[VOCAB_SIZE:] = 0  # padding rows are never anybody's best token
    head[0] *= 1.3 if ends else 0


@torch.no_grad()
def _damp_later_layers(model: PreTrainedModel, kept: int, factor: float) -> None:
    """Shrink what the layers from `kept` on add, so that the first layers alone often have the same best token."""
    gemma = type(model) is Gemma3ForCausalLM  # what its layers add is normalised last, with weight 1 + w
    outputs = ("o_proj.weight", "down_proj.weight", "c_proj.weight")
    if gemma:
        outputs = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
    for name, weight in model.named_parameters():
        layer = next((int(part) for part in name.split(".") if part.isdigit()), -1)
        if layer >= kept and name.endswith(outputs):
            weight.copy_(torch.full_like(weight, factor - 1) if gemma else weight * factor)


@dataclass(frozen=True)
class TinyPair:
    """A target, a draft that agrees with it often, and their tokenizer (three plain transformers objects)."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


@lru_cache(maxsize=32)
def tiny_pair(
    family: str = "llama", seed: int = 0, noise: float = 0.05, chat: bool = False, ends: bool = False
) -> TinyPair:
    """A seeded pair of one of `FAMILIES`: fp32, on the CPU, three layers for the target and one or two for the draft.

    noise: size of the noise on the draft's weights relative to their own; 0 leaves only the missing layers.
    ends: whether the end-of-sequence token (id 0) can be generated; without it texts run to their limit.
    The result is shared between callers: copy a model before changing it.
    """
    target_rows, draft_rows = _ROWS.get(family, (VOCAB_SIZE, VOCAB_SIZE))
    draft_layers = 2 if family == "gemma3" else 1  # two, so that the draft mixes window and full layers as well
    target = _CLASSES[family](_config(family, 3, target_rows)).eval()
    _draw_weights(target, seed, peak=5.0, ends=ends)
    _damp_later_layers(target, kept=draft_layers, factor=0.2)
    draft = _CLASSES[family](_config(family, draft_layers, draft_rows)).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    source = target.state_dict()
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            weight.copy_(source[name][: weight.shape[0]])
            if weight.dim() == 2:
                weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    return TinyPair(target, draft, tiny_tokenizer(chat))


def with_dtype(pair: TinyPair, dtype: torch.dtype) -> TinyPair:
    """A copy of the pair whose models compute in `dtype`."""
    return TinyPair(copy.deepcopy(pair.target).to(dtype), copy.deepcopy(pair.draft).to(dtype), pair.tokenizer)


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Write one model and its tokenizer as a model folder (safetensors); returns the folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_pair(folder: Path, family: str = "llama", **options) -> tuple[Path, Path]:
    """Write `tiny_pair(family, **options)` as the folders `target` and `draft` below `folder`; returns both."""
    pair = tiny_pair(family, **options)
    target = save_model(pair.target, pair.tokenizer, folder / "target")
    return target, save_model(pair.draft, pair.tokenizer, folder / "draft")
