"""A GGUF file turned into an ordinary model folder (safetensors, tokenizer files)."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from specviz.models.quiet import gguf_conversion_bar, quiet_loading
from specviz.models.storage import Progress, no_progress


def load_gguf_model(path: Path, dtype: torch.dtype, progress: Progress = no_progress) -> PreTrainedModel:
    """The model in a GGUF file, its weights widened to `dtype`, as if it had never been quantised.

    Transformers marks a model read from GGUF as quantised, and such a model refuses to be saved; so its weights
    are moved, without a copy, into a model made from the same configuration without that mark.
    """
    progress("Reading the GGUF file", None, None)
    with quiet_loading(), gguf_conversion_bar(lambda done, total: progress("Widening the weights", done, total)):
        marked = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    settings = marked.config.to_dict()
    settings.pop("quantization_config", None)
    config = type(marked.config).from_dict(settings)
    config.name_or_path = ""
    with torch.device("meta"):
        model = type(marked)(config)
    model.load_state_dict(marked.state_dict(), assign=True)
    for name, buffer in marked.named_buffers():  # computed ones (rotary frequencies) are not in the state
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner).register_buffer(leaf, buffer, persistent=False)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return model.eval()


def load_gguf_tokenizer(path: Path):
    """The tokenizer in a GGUF file (its conversion takes seconds: save it, and load `tokenizer.json` afterwards)."""
    with quiet_loading():
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def convert_gguf(path: Path, folder: Path, progress: Progress = no_progress) -> None:
    """Write the GGUF file's model and tokenizer into `folder` (made by the caller), the weights in fp32.

    bf16 would halve the file, but a 4-bit GGUF weight is scale x code + minimum with fp16 scales: of the built-in
    target's weights four in five are not representable in bf16, two in five not in fp16. So fp32 is kept, and a
    narrower precision is one rounding at loading, the same as for any other fp32 model.
    """
    model = load_gguf_model(path, torch.float32, progress)
    progress("Saving the converted model", None, None)
    with quiet_loading():
        model.save_pretrained(folder)
    tokenizer = load_gguf_tokenizer(path)
    tokenizer.save_pretrained(folder)
