"""Pairs known to fit: the built-in one, and presets from the model hub with their sizes and licences.

Importing this module is cheap (no torch), so a page can list the catalogue. Sizes follow from each model's published
shape, which is written here; nothing is fetched. Any two hub ids, folders or GGUF files make a pair as well: the
catalogue is a convenience, not a limit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from specviz.errors import SpecVizError
from specviz.models.builtin import DRAFT_FOLDER
from specviz.models.precision import QuantisationOptions, weight_bytes

BUILTIN_TARGET = "builtin-target"
BUILTIN_TARGET_NAME = "SmolLM2-135M-Instruct"  # what recordings of the built-in pair call its target
BUILTIN_DRAFT = "builtin-draft"


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model of the catalogue.

    source: what `find_model` takes; linear, other: number of weights in the layers that quantisation replaces, and of
    all others (embedding, head if it has its own, norms); gated: whether the hub asks for a login and a consent.
    """

    source: str
    title: str
    linear: int
    other: int
    licence: str
    gated: bool = False

    @property
    def parameters(self) -> int:
        return self.linear + self.other

    def memory_bytes(self, precision: str, device: str = "cpu", options: QuantisationOptions | None = None) -> int:
        """Bytes of the weights at a precision; the cache and what a pass needs come on top."""
        return weight_bytes(self.linear, self.other, precision, device, options)


@dataclass(frozen=True, slots=True)
class CataloguePair:
    """A target and a draft that share a tokenizer; note: one sentence for whoever chooses."""

    name: str
    title: str
    target: CatalogueModel
    draft: CatalogueModel
    note: str = ""

    def memory_bytes(self, target_precision: str, draft_precision: str, device: str = "cpu") -> int:
        """Bytes of both models' weights."""
        return self.target.memory_bytes(target_precision, device) + self.draft.memory_bytes(draft_precision, device)

    @property
    def needs_login(self) -> bool:
        return self.target.gated or self.draft.gated


def _transformer(
    source: str,
    title: str,
    licence: str,
    *,
    vocab: int,
    hidden: int,
    layers: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    tied: bool,
    qkv_bias: bool = False,
    norms_per_layer: int = 2,
    head_norms: bool = False,
    gated: bool = False,
) -> CatalogueModel:
    """A decoder of the Llama kind, its weights counted from its shape.

    qkv_bias: biases on the query, key and value projections (Qwen2.5); norms_per_layer: of hidden size (Gemma 3 has
    four); head_norms: norms of head size on queries and keys (Qwen3, Gemma 3); tied: no head beside the embedding.
    """
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    linear = layers * (attention + 3 * hidden * intermediate)
    small = norms_per_layer * hidden + (2 * head_dim if head_norms else 0)
    small += head_dim * (heads + 2 * kv_heads) if qkv_bias else 0
    other = vocab * hidden * (1 if tied else 2) + layers * small + hidden
    return CatalogueModel(source, title, linear, other, licence, gated)


def _builtin_draft() -> CatalogueModel:
    """The draft that comes with SpecViz, counted from its own configuration; its embedding is the target's."""
    shape = json.loads((DRAFT_FOLDER / "config.json").read_text(encoding="utf-8"))
    hidden = shape["hidden_size"]
    body = _transformer(
        BUILTIN_DRAFT,
        "SpecViz built-in draft",
        "Apache-2.0",
        vocab=0,
        hidden=hidden,
        layers=shape["num_hidden_layers"],
        intermediate=shape["intermediate_size"],
        heads=shape["num_attention_heads"],
        kv_heads=shape["num_key_value_heads"],
        head_dim=shape["head_dim"],
        tied=True,
    )
    head = hidden * (hidden + 1) + shape["draft_vocab_size"] * hidden
    return replace(body, other=body.other + head)


_SMOLLM2_135M = _transformer(
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "SmolLM2 135M",
    "Apache-2.0",
    vocab=49152,
    hidden=576,
    layers=30,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    tied=True,
)
_SMOLLM2_360M = _transformer(
    "HuggingFaceTB/SmolLM2-360M-Instruct",
    "SmolLM2 360M",
    "Apache-2.0",
    vocab=49152,
    hidden=960,
    layers=32,
    intermediate=2560,
    heads=15,
    kv_heads=5,
    head_dim=64,
    tied=True,
)
_SMOLLM2_1_7B = _transformer(
    "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "SmolLM2 1.7B",
    "Apache-2.0",
    vocab=49152,
    hidden=2048,
    layers=24,
    intermediate=8192,
    heads=32,
    kv_heads=32,
    head_dim=64,
    tied=True,
)
_QWEN25_0_5B = _transformer(
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen2.5 0.5B",
    "Apache-2.0",
    vocab=151936,
    hidden=896,
    layers=24,
    intermediate=4864,
    heads=14,
    kv_heads=2,
    head_dim=64,
    tied=True,
    qkv_bias=True,
)
_QWEN25_7B = _transformer(
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen2.5 7B",
    "Apache-2.0",
    vocab=152064,
    hidden=3584,
    layers=28,
    intermediate=18944,
    heads=28,
    kv_heads=4,
    head_dim=128,
    tied=False,
    qkv_bias=True,
)
_QWEN3_0_6B = _transformer(
    "Qwen/Qwen3-0.6B",
    "Qwen3 0.6B",
    "Apache-2.0",
    vocab=151936,
    hidden=1024,
    layers=28,
    intermediate=3072,
    heads=16,
    kv_heads=8,
    head_dim=128,
    tied=True,
    head_norms=True,
)
_QWEN3_8B = _transformer(
    "Qwen/Qwen3-8B",
    "Qwen3 8B",
    "Apache-2.0",
    vocab=151936,
    hidden=4096,
    layers=36,
    intermediate=12288,
    heads=32,
    kv_heads=8,
    head_dim=128,
    tied=False,
    head_norms=True,
)
_LLAMA32_1B = _transformer(
    "meta-llama/Llama-3.2-1B-Instruct",
    "Llama 3.2 1B",
    "Llama 3.2 Community Licence",
    vocab=128256,
    hidden=2048,
    layers=16,
    intermediate=8192,
    heads=32,
    kv_heads=8,
    head_dim=64,
    tied=True,
    gated=True,
)
_LLAMA32_3B = _transformer(
    "meta-llama/Llama-3.2-3B-Instruct",
    "Llama 3.2 3B",
    "Llama 3.2 Community Licence",
    vocab=128256,
    hidden=3072,
    layers=28,
    intermediate=8192,
    heads=24,
    kv_heads=8,
    head_dim=128,
    tied=True,
    gated=True,
)
_LLAMA31_8B = _transformer(
    "meta-llama/Llama-3.1-8B-Instruct",
    "Llama 3.1 8B",
    "Llama 3.1 Community Licence",
    vocab=128256,
    hidden=4096,
    layers=32,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    tied=False,
    gated=True,
)
_GEMMA3_270M = _transformer(
    "google/gemma-3-270m-it",
    "Gemma 3 270M",
    "Gemma Terms of Use",
    vocab=262144,
    hidden=640,
    layers=18,
    intermediate=2048,
    heads=4,
    kv_heads=1,
    head_dim=256,
    tied=True,
    norms_per_layer=4,
    head_norms=True,
    gated=True,
)
_GEMMA3_1B = _transformer(
    "google/gemma-3-1b-it",
    "Gemma 3 1B",
    "Gemma Terms of Use",
    vocab=262144,
    hidden=1152,
    layers=26,
    intermediate=6912,
    heads=4,
    kv_heads=1,
    head_dim=256,
    tied=True,
    norms_per_layer=4,
    head_norms=True,
    gated=True,
)
_GEMMA3_4B = _transformer(
    "google/gemma-3-4b-it",
    "Gemma 3 4B",
    "Gemma Terms of Use",
    vocab=262208,
    hidden=2560,
    layers=34,
    intermediate=10240,
    heads=8,
    kv_heads=4,
    head_dim=256,
    tied=True,
    norms_per_layer=4,
    head_norms=True,
    gated=True,
)

PAIRS = (
    CataloguePair(
        "builtin",
        "Built-in pair",
        replace(_SMOLLM2_135M, source=BUILTIN_TARGET, title="SmolLM2 135M (from 4-bit GGUF)"),
        _builtin_draft(),
        "Fetched once (93 MB), runs on any computer; the target's weights come from a 4-bit file, widened.",
    ),
    CataloguePair("smollm2-360m", "SmolLM2 360M / 135M", _SMOLLM2_360M, _SMOLLM2_135M, "Small enough for a laptop."),
    CataloguePair("smollm2-1.7b", "SmolLM2 1.7B / 135M", _SMOLLM2_1_7B, _SMOLLM2_135M),
    CataloguePair(
        "qwen2.5-7b",
        "Qwen2.5 7B / 0.5B",
        _QWEN25_7B,
        _QWEN25_0_5B,
        "Embeddings padded to 152,064 and 151,936 rows, the same tokens.",
    ),
    CataloguePair("qwen3-8b", "Qwen3 8B / 0.6B", _QWEN3_8B, _QWEN3_0_6B, "Both think before they answer."),
    CataloguePair("llama3.2-3b", "Llama 3.2 3B / 1B", _LLAMA32_3B, _LLAMA32_1B),
    CataloguePair("llama3.1-8b", "Llama 3.1 8B / Llama 3.2 1B", _LLAMA31_8B, _LLAMA32_1B),
    CataloguePair("gemma3-1b", "Gemma 3 1B / 270M", _GEMMA3_1B, _GEMMA3_270M, "Window and full attention mixed."),
    CataloguePair(
        "gemma3-4b",
        "Gemma 3 4B / 270M",
        _GEMMA3_4B,
        _GEMMA3_270M,
        "Window and full attention mixed; only the text part of the 4B model is run and counted.",
    ),
)


def find_pair(name: str) -> CataloguePair:
    """The catalogue's pair of this name; an unknown name is a SpecVizError that lists those there are."""
    for pair in PAIRS:
        if pair.name == name:
            return pair
    raise SpecVizError(f"The catalogue has no pair {name!r}: choose one of {', '.join(pair.name for pair in PAIRS)}.")
