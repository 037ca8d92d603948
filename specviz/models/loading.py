"""Models into memory at a precision, and text into the ids a model is prompted with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from specviz.errors import SpecVizError
from specviz.models.draft_model import DraftConfig
from specviz.models.gguf_conversion import convert_gguf, load_gguf_model
from specviz.models.messages import first_line
from specviz.models.pair_check import check_draft_fits, check_pair, check_shared_embedding
from specviz.models.precision import (
    FLOAT_PRECISIONS,
    QuantisationOptions,
    check_precision,
    compute_precision,
    quantisation_config,
    read_precision,
    resolve_device,
    spell_precision,
    torch_dtype,
    weight_bytes,
)
from specviz.models.quiet import quiet_loading
from specviz.models.sources import LANGUAGE_MODEL, ModelSource, count_weights, find_model, weight_files
from specviz.models.storage import Progress, no_progress, temporary_folder, writable_cache


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, in evaluation mode, with all that the engine and a trace need to know of it.

    name, revision: as a trace states them; source: what the user named it by; family: transformers' `model_type`.
    precision: with its options, as `read_precision` takes it.
    memory_bytes: of its weights, quantisation scales included, shared weights once.
    eos_token_ids: every id that ends a text, ascending; max_context: most tokens of prompt and output together.
    is_chat: whether the tokenizer brings a chat template.
    """

    model: PreTrainedModel
    tokenizer: Any
    name: str
    revision: str
    precision: str
    device: str
    memory_bytes: int
    eos_token_ids: tuple[int, ...]
    max_context: int
    is_chat: bool
    family: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A target and its draft, checked to fit; warnings: sentences worth showing beside it."""

    target: LoadedModel
    draft: LoadedModel
    warnings: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> Any:
        """The target's: it alone turns text into ids and back."""
        return self.target.tokenizer

    @property
    def name(self) -> str:
        return f"{self.target.name} + {self.draft.name}"

    @property
    def is_chat(self) -> bool:
        return self.target.is_chat

    @property
    def max_context(self) -> int:
        return min(self.target.max_context, self.draft.max_context)

    @property
    def memory_bytes(self) -> int:
        """Of both models' weights, what they share counted once."""
        return _memory_of(self.target.model, self.draft.model)


def load_model(
    source: str,
    precision: str = "bf16",
    device: str = "auto",
    options: QuantisationOptions | None = None,
    progress: Progress = no_progress,
) -> LoadedModel:
    """Load one model; see `find_model` for what `source` may be and `read_precision` for `precision`.

    `options`, where given, stand in place of those in the text of the precision.
    Everything that can be known beforehand (unknown names, what the device lacks, too little memory) is a SpecVizError
    before any weights are read. A draft made by distillation cannot be loaded alone: see `load_pair`.
    """
    device = resolve_device(device)
    precision, spelt = read_precision(precision)
    options = options or spelt
    check_precision(spell_precision(precision, options), device)
    found = find_model(source, progress)
    if isinstance(found.config, DraftConfig):
        raise SpecVizError(f"{found.name} is a draft that shares its target's embedding: load it together with it.")
    return _load(found, precision, device, options, progress)


def load_pair(
    target: str,
    draft: str,
    target_precision: str = "bf16",
    draft_precision: str = "bf16",
    device: str = "auto",
    target_options: QuantisationOptions | None = None,
    draft_options: QuantisationOptions | None = None,
    progress: Progress = no_progress,
    max_draft: int = 1,
) -> LoadedPair:
    """Load a target and a draft, each at its own precision, after checking that they fit (`check_pair`).

    max_draft: the longest draft length that will be asked for; one that the pair's context cannot hold is refused
    before any weights are read.
    """
    device = resolve_device(device)
    target_precision, target_spelt = read_precision(target_precision)
    draft_precision, draft_spelt = read_precision(draft_precision)
    target_options, draft_options = target_options or target_spelt, draft_options or draft_spelt
    check_precision(spell_precision(target_precision, target_options), device)
    check_precision(spell_precision(draft_precision, draft_options), device)
    target_found, draft_found = find_model(target, progress), find_model(draft, progress)
    if isinstance(target_found.config, DraftConfig):
        raise SpecVizError(f"{target_found.name} is a draft and cannot be a target: choose the model it was made for.")
    if isinstance(draft_found.config, DraftConfig):
        check_shared_embedding(target_found, draft_found)
        if target_options.quantise_head and target_precision not in FLOAT_PRECISIONS:
            raise SpecVizError(
                f"{draft_found.name} shares the target's output head, which must not be quantised then: "
                "switch off quantise_head for the target."
            )
        warnings = ()
    else:
        warnings = check_pair(target_found, draft_found)
    contexts = (_max_context(found.config.get_text_config()) for found in (target_found, draft_found))
    check_draft_fits(max_draft, min(contexts), f"{target_found.name} + {draft_found.name}")
    loaded_target = _load(target_found, target_precision, device, target_options, progress)
    loaded_draft = _load(draft_found, draft_precision, device, draft_options, progress, loaded_target)
    return LoadedPair(loaded_target, loaded_draft, warnings)


def encode_prompt(loaded: LoadedModel | LoadedPair, text: str, chat: bool | None = None) -> list[int]:
    """Token ids to prompt with: `text` as a user's message in the chat template, or as it stands.

    chat: None applies the template if the model has one; True insists on it; False takes the raw text.
    Raises SpecVizError for an empty prompt, one that leaves no room for a token, and a template that is missing.
    """
    if not text.strip():
        raise SpecVizError("The prompt is empty: write what the model is to answer or continue.")
    if chat and not loaded.is_chat:
        raise SpecVizError(f"{loaded.name} has no chat template: prompt it with raw text instead.")
    try:
        if loaded.is_chat if chat is None else chat:
            message = [{"role": "user", "content": text}]
            ids = loaded.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        else:
            ids = loaded.tokenizer(text, verbose=False)["input_ids"]
    except Exception as error:  # templates are programs from a model's files, and text may hold lone surrogates
        raise SpecVizError(
            f"The tokenizer of {loaded.name} cannot encode this prompt ({type(error).__name__}): try raw text, "
            "or another prompt."
        ) from error
    if not ids:
        raise SpecVizError("The prompt holds no token: write what the model is to answer or continue.")
    if len(ids) >= loaded.max_context:
        raise SpecVizError(
            f"The prompt has {len(ids):,} tokens, but {loaded.name} has room for {loaded.max_context - 1:,}: "
            "shorten it."
        )
    return list(ids)


def _load(
    found: ModelSource,
    precision: str,
    device: str,
    options: QuantisationOptions,
    progress: Progress,
    target: LoadedModel | None = None,
) -> LoadedModel:
    """Read a found model's weights; `target` is the loaded one for a draft that shares its embedding."""
    if options.quantise_head and precision not in FLOAT_PRECISIONS and found.config.tie_word_embeddings:
        raise SpecVizError(
            f"{found.name} uses one matrix as embedding and head, so its head cannot be quantised alone: "
            "switch off quantise_head."
        )
    if found.is_gguf:
        model = _read_gguf(found, precision, device, options, progress)
    else:
        files = weight_files(found, progress)
        _check_memory(found, files, precision, device, options)
        progress(f"Loading {found.name} at {precision}", None, None)
        model = _read_folder(found.path, found, precision, device, options)
    model.eval().requires_grad_(False)
    text_config = found.config.get_text_config()
    if isinstance(found.config, DraftConfig):  # ids and ends of texts are its target's
        model.attach_embedding(target.model)
        tokenizer, eos_token_ids = target.tokenizer, target.eos_token_ids
    else:
        tokenizer = found.tokenizer
        eos_token_ids = _end_of_sequence(model.generation_config, tokenizer, text_config.vocab_size)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=found.name,
        revision=found.revision,
        precision=spell_precision(precision, options),
        device=device,
        memory_bytes=_memory_of(model),
        eos_token_ids=eos_token_ids,
        max_context=_max_context(text_config),
        is_chat=bool(tokenizer.chat_template),
        family=text_config.model_type,
        source=found.source,
    )


def _read_folder(
    folder: Path, found: ModelSource, precision: str, device: str, options: QuantisationOptions
) -> PreTrainedModel:
    """Read the safetensors in `folder`, which is the found model's own or, for a GGUF file, its converted copy."""
    arguments = {"dtype": torch_dtype(compute_precision(precision, device, options)), "device_map": {"": device}}
    if (quantised := quantisation_config(precision, device, options)) is not None:
        arguments["quantization_config"] = quantised
    if found.is_text_part:
        arguments |= {"config": found.config, "key_mapping": {LANGUAGE_MODEL.pattern: "model."}}
    name = found.name
    try:
        with quiet_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True, **arguments
            )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise SpecVizError(_memory_sentence(name, precision, device)) from error
    except Exception as error:  # whatever transformers meets in damaged or foreign files
        raise SpecVizError(f"The weights of {name} cannot be loaded at {precision} ({first_line(error)}).") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise SpecVizError(
            f"The weights of {name} are incomplete ({len(missing)} missing, first {missing[0]}): fetch the model again."
        )
    if precision in ("nf4", "fp4") and device == "cpu":
        _choose_four_bit_kernels(model)
    return model


def _choose_four_bit_kernels(model: PreTrainedModel) -> None:
    """Keep bitsandbytes' AVX-512 kernel from layers that it cannot do, or not at the compute dtype asked for.

    It computes in bf16 whatever is asked, and stops with an assertion where the layer's width is no multiple of 32
    outputs or of a block of inputs; the portable kernel does all of them.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            fits = layer.out_features % 32 == 0 and layer.in_features % layer.weight.quant_state.blocksize == 0
            if not fits or layer.compute_dtype == torch.float32:
                layer.support_avx512bf16_for_cpu = False


def _read_gguf(
    found: ModelSource, precision: str, device: str, options: QuantisationOptions, progress: Progress
) -> PreTrainedModel:
    """A GGUF file at a float precision directly; at a quantised one through a temporary folder of safetensors."""
    try:
        if precision in FLOAT_PRECISIONS:
            return load_gguf_model(found.path, torch_dtype(precision), progress).to(device)
        with writable_cache(4 * found.path.stat().st_size) as cache, temporary_folder(cache) as folder:
            convert_gguf(found.path, folder, progress)
            return _read_folder(folder, found, precision, device, options)
    except SpecVizError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise SpecVizError(_memory_sentence(found.name, precision, device)) from error
    except Exception as error:  # the gguf reader fails on damaged and unknown tensors in many ways
        raise SpecVizError(f"The weights in {found.path} cannot be loaded ({first_line(error)}).") from error


def _check_memory(
    found: ModelSource, files: list[Path], precision: str, device: str, options: QuantisationOptions
) -> None:
    """Refuse beforehand what cannot fit: the weights alone need more than is free."""
    needed = weight_bytes(*count_weights(found, files), precision, device, options)
    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else psutil.virtual_memory().available
    if needed > free:
        raise SpecVizError(_memory_sentence(found.name, precision, device, needed, free))


def _memory_sentence(name: str, precision: str, device: str, needed: int = 0, free: int = 0) -> str:
    amounts = f" needs {needed / 1e9:.1f} GB at {precision}, but {device} has {free / 1e9:.1f} GB free"
    return (
        f"{name}{amounts if needed else f' does not fit into the memory of {device} at {precision}'}: "
        "choose a narrower precision or a smaller model, or free some memory."
    )


def _memory_of(*models: PreTrainedModel) -> int:
    """Bytes of weights, buffers and quantisation scales; a tensor that several modules share counts once."""
    tensors: dict[tuple, int] = {}

    def count(tensor: torch.Tensor | None) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
            tensors[tensor.device, tensor.data_ptr()] = tensor.nbytes

    for model in models:
        for buffer in model.buffers():
            count(buffer)
        for weight in model.parameters():
            count(weight.data)
            count(getattr(weight, "SCB", None))
            state = getattr(weight, "quant_state", None)
            while state is not None:
                count(state.absmax)
                state = state.state2
    return sum(tensors.values())


def _end_of_sequence(generation: GenerationConfig | None, tokenizer: Any, vocab_size: int) -> tuple[int, ...]:
    """Every end-of-sequence id that the model's files name, of those the model can produce."""
    named = getattr(generation, "eos_token_id", None)
    ids = set(named if isinstance(named, list | tuple) else [named]) | {tokenizer.eos_token_id}
    return tuple(sorted(int(i) for i in ids if i is not None and 0 <= i < vocab_size))


# What families call the most positions they know; where it bounds nothing it is missing, None or negative.
_POSITIONS = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")


def _max_context(text_config: Any) -> int:
    named = [getattr(text_config, name, None) for name in _POSITIONS]
    return min((number for number in named if isinstance(number, int) and number > 0), default=1 << 20)
