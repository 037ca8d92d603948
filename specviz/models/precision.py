"""Precisions: what each costs in memory, which a device can run, and how transformers is asked for one.

Importing this module is cheap: torch and bitsandbytes are imported only by the functions that need them.

Sources: int8 is LLM.int8 (Dettmers et al. 2022); nf4, fp4 and double quantisation are QLoRA's (Dettmers et al. 2023).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from specviz.errors import SpecVizError
from specviz.models.messages import first_line

if TYPE_CHECKING:
    import torch

FLOAT_PRECISIONS = ("fp32", "bf16", "fp16")
QUANTISED_PRECISIONS = ("int8", "nf4", "fp4")
PRECISIONS = FLOAT_PRECISIONS + QUANTISED_PRECISIONS
_BYTES_PER_WEIGHT = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class QuantisationOptions:
    """How int8, nf4 and fp4 quantise; the float precisions ignore it.

    double_quant: nf4 and fp4 only: quantise the scales of the blocks as well (saves 0.4 bits per weight).
    compute_dtype: a float precision for everything that is not quantised and for the results of the layers that are;
        None takes bf16 for nf4 and fp4; for int8 fp16 on CUDA (what its kernels take) and fp32 on the CPU.
    int8_threshold: activations above it are outliers and their columns stay in 16 bits (LLM.int8). Which columns
        those are depends on all rows of a pass, so rows depend on their neighbours; 0 keeps no outliers and makes
        rows independent.
    quantise_head: quantise the output head too, which is otherwise left alone, as the embedding always is.
    """

    double_quant: bool = False
    compute_dtype: str | None = None
    int8_threshold: float = 6.0
    quantise_head: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "int8_threshold", float(self.int8_threshold))
        if self.compute_dtype is not None and self.compute_dtype not in FLOAT_PRECISIONS:
            raise SpecVizError(f"Unknown compute dtype {self.compute_dtype!r}: choose one of fp32, bf16, fp16.")
        if not 0 <= self.int8_threshold < float("inf"):
            raise SpecVizError(f"The int8 outlier threshold is {self.int8_threshold}, but it must be 0 or more.")


def require_known_precision(precision: str) -> None:
    """Raise SpecVizError unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise SpecVizError(f"Unknown precision {precision!r}: choose one of {', '.join(PRECISIONS)}.")


def read_precision(text: str) -> tuple[str, QuantisationOptions]:
    """A precision with its options from one text, such as `nf4`, `nf4+double`, `int8+t0` or `fp4+fp32+head`.

    `double` quantises the scales too, `fp32`, `bf16` and `fp16` name the compute dtype, `t` and a number the outlier
    threshold of int8, `head` quantises the output head as well. `spell_precision` inverts it.

    Raises:
        SpecVizError: an unknown precision, an unknown option, or one that this precision does not have.
    """
    precision, *flags = text.split("+")
    require_known_precision(precision)
    chosen: dict[str, Any] = {}
    for flag in flags:
        if flag == "double" and precision in ("nf4", "fp4"):
            chosen["double_quant"] = True
        elif flag == "head" and precision in QUANTISED_PRECISIONS:
            chosen["quantise_head"] = True
        elif flag in FLOAT_PRECISIONS and precision in QUANTISED_PRECISIONS:
            chosen["compute_dtype"] = flag
        elif precision == "int8" and (number := re.fullmatch(r"t(\d+(?:\.\d+)?)", flag)):
            chosen["int8_threshold"] = float(number[1])
        else:
            raise SpecVizError(
                f"The precision {text!r} has the option {flag!r}, which {precision} does not have: int8 takes t0 or "
                "another outlier threshold, nf4 and fp4 take double, all three take head and fp32, bf16 or fp16."
            )
    return precision, QuantisationOptions(**chosen)


def spell_precision(precision: str, options: QuantisationOptions) -> str:
    """The text that `read_precision` reads as this; options that the precision does not have are left out."""
    if precision in FLOAT_PRECISIONS:
        return precision
    flags = [precision]
    if precision == "int8" and options.int8_threshold != QuantisationOptions().int8_threshold:
        flags.append(f"t{options.int8_threshold:f}".rstrip("0").rstrip("."))
    if precision != "int8" and options.double_quant:
        flags.append("double")
    if options.compute_dtype:
        flags.append(options.compute_dtype)
    if options.quantise_head:
        flags.append("head")
    return "+".join(flags)


@dataclass(frozen=True)
class Combination:
    """Precisions of target and draft, each a text for `read_precision`."""

    target: str
    draft: str

    @classmethod
    def parse(cls, text: str) -> Combination:
        """From `nf4:bf16`.

        Raises:
            SpecVizError: it is no two precisions.
        """
        target, colon, draft = text.strip().partition(":")
        if not colon:
            raise SpecVizError(f"The combination {text.strip()!r} is not TARGET:DRAFT, such as nf4:bf16.")
        read_precision(target), read_precision(draft)
        return cls(target, draft)

    def __str__(self) -> str:
        return f"{self.target}:{self.draft}"


def rows_are_independent(text: str) -> bool:
    """Whether, at this precision, a row of a pass is the same whatever other rows the pass has.

    LLM.int8 decides over all rows of a pass which columns are outliers, so a row depends on its neighbours there.
    """
    precision, options = read_precision(text)
    return precision != "int8" or options.int8_threshold == 0


def weight_bytes(
    linear: int, other: int, precision: str, device: str = "cpu", options: QuantisationOptions | None = None
) -> int:
    """Bytes that a model's weights take at a precision.

    linear: number of weights in the linear layers that quantisation replaces; other: all others (embedding, head,
    norms). 4-bit weights come in blocks of 64 with an fp32 scale each, which double quantisation stores in 8 bits.
    """
    require_known_precision(precision)
    options = options or QuantisationOptions()
    if precision in FLOAT_PRECISIONS:
        return round((linear + other) * _BYTES_PER_WEIGHT[precision])
    four_bits = 0.5 + (1 / 64 + 4 / (64 * 256) if options.double_quant else 4 / 64)
    per_linear = 1.0 if precision == "int8" else four_bits
    return round(linear * per_linear + other * _BYTES_PER_WEIGHT[compute_precision(precision, device, options)])


def compute_precision(precision: str, device: str, options: QuantisationOptions) -> str:
    """The float precision in which a model of this precision computes on this device."""
    if precision in FLOAT_PRECISIONS:
        return precision
    if options.compute_dtype is not None:
        return options.compute_dtype
    if precision == "int8":
        return "fp16" if device.startswith("cuda") else "fp32"
    return "bf16"


def resolve_device(device: str) -> str:
    """`cpu` or `cuda:N` from `auto`, `cpu`, `cuda` or `cuda:N`; a device that is not there is a SpecVizError."""
    import torch

    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda:0" if available else "cpu"
    if device == "cpu":
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index.isdecimal() or (not index and device == "cuda")):
        raise SpecVizError(f"Unknown device {device!r}: choose auto, cpu, cuda or cuda:0.")
    if not available:
        raise SpecVizError("No CUDA device can be used here: choose the device cpu, or install a CUDA build of torch.")
    if int(index or 0) >= available:
        raise SpecVizError(
            f"There is no device {device!r}: this machine has {available} CUDA device(s), from cuda:0 on."
        )
    return f"cuda:{index or 0}"


def natural_precision(device: str) -> str:
    """The float precision this device computes in without emulating it: bf16 if it can, else fp32.

    A CPU without bf16 instructions widens every product, which makes a wide pass cost many times a narrow one.
    """
    import torch

    device = resolve_device(device)
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"


def chosen_precision(precision: str, device: str) -> str:
    """`precision` itself, or the one that the device computes in by nature where it is "auto"."""
    return natural_precision(device) if precision == "auto" else precision


def precision_problem(precision: str, device: str) -> str | None:
    """Why this device cannot run this precision (a text for `read_precision`), in one sentence; None if it can.

    Decided by doing it: one small product at that precision on that device, once per process.
    """
    precision, options = read_precision(precision)
    device = resolve_device(device)
    if precision in QUANTISED_PRECISIONS:
        from specviz.models.quiet import drop_bitsandbytes_warnings

        drop_bitsandbytes_warnings()
        try:
            import bitsandbytes  # noqa: F401
        except Exception as error:  # a broken installation raises whatever its loader meets
            missing = isinstance(error, ModuleNotFoundError)
            why = "is not installed" if missing else f"does not work here ({first_line(error)})"
            return (
                f"The precision {precision} needs the package bitsandbytes, which {why}: "
                "run `pip install bitsandbytes`, or choose fp32 or bf16."
            )
    return _try_out(precision, device) or _try_out(compute_precision(precision, device, options), device)


def check_precision(precision: str, device: str) -> None:
    """Raise SpecVizError with the sentence of `precision_problem`, if there is one."""
    if problem := precision_problem(precision, device):
        raise SpecVizError(problem)


@cache
def _try_out(precision: str, device: str) -> str | None:
    import torch

    try:
        if precision in FLOAT_PRECISIONS:
            ones = torch.ones(64, 64, dtype=torch_dtype(precision), device=device)
            result = torch.nn.functional.linear(ones, ones)
        elif precision == "int8":
            import bitsandbytes.functional as functional

            ones = torch.ones(64, 64, dtype=torch.float16, device=device)
            rows, scales, _ = functional.int8_vectorwise_quant(ones)
            result = functional.int8_mm_dequant(functional.int8_linear_matmul(rows, rows), scales, scales)
        else:
            import bitsandbytes.functional as functional

            ones = torch.ones(64, 64, dtype=torch.bfloat16, device=device)
            packed, state = functional.quantize_4bit(ones, quant_type=precision)
            result = torch.nn.functional.linear(ones, functional.dequantize_4bit(packed, state))
        if torch.allclose(result.float().cpu(), torch.full((64, 64), 64.0), rtol=0.05):
            return None
        reason = "a trial product comes out wrong"
    except Exception as error:  # each library says "unsupported" with another exception
        reason = first_line(error)
    return f"The device {device} cannot compute at the precision {precision} here ({reason}): choose fp32 or bf16."


def torch_dtype(precision: str) -> torch.dtype:
    """The torch dtype of a float precision."""
    import torch

    return getattr(torch, _TORCH_NAMES[precision])


def quantisation_config(precision: str, device: str, options: QuantisationOptions) -> Any | None:
    """The `BitsAndBytesConfig` for a quantised precision; None for a float precision."""
    if precision in FLOAT_PRECISIONS:
        return None
    from transformers import BitsAndBytesConfig

    # None lets transformers keep the head (whatever the architecture calls it) out; an empty list keeps nothing out.
    kept = [] if options.quantise_head else None
    if precision == "int8":
        return BitsAndBytesConfig(
            load_in_8bit=True, llm_int8_threshold=options.int8_threshold, llm_int8_skip_modules=kept
        )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=precision,
        bnb_4bit_use_double_quant=options.double_quant,
        bnb_4bit_compute_dtype=torch_dtype(compute_precision(precision, device, options)),
        llm_int8_skip_modules=kept,
    )
