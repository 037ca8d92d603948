"""Keeps transformers and bitsandbytes from writing warnings and progress bars over ours, while they load."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

_settings_lock = threading.RLock()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Transformers' loading bars and advice off for the duration, and back as they were afterwards."""
    with _settings_lock:
        verbosity = transformers_logging.get_verbosity()
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()


def drop_bitsandbytes_warnings() -> None:
    """Keep bitsandbytes from logging what its user can do nothing about.

    That int8 casts its inputs to fp16, at every layer of every pass; and, on a CPU with bf16 instructions, that an
    optional package with one more 4-bit kernel is not there (its own kernel is used then). Call before it is imported.
    """
    logging.getLogger("bitsandbytes.autograd._functions").addFilter(_is_worth_reading)
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_worth_reading)


def _is_worth_reading(record: logging.LogRecord) -> bool:
    return not any(words in str(record.msg) for words in ("inputs will be cast from", "from kernels-community"))


@contextmanager
def gguf_conversion_bar(report: Callable[[int, int], None]) -> Iterator[None]:
    """Replace the bar that transformers draws while it widens a GGUF file's tensors by calls of `report`.

    report: called with the bytes of the file's tensors done so far and in all.
    """

    def reporting(tensors: Iterable, **_: object) -> Iterator:
        tensors = list(tensors)
        total = sum(int(tensor.n_bytes) for tensor in tensors)
        done = 0
        for tensor in tensors:
            report(done, total)
            yield tensor
            done += int(tensor.n_bytes)
        report(done, total)

    original = getattr(modeling_gguf_pytorch_utils, "tqdm", None)
    with _settings_lock if original is not None else nullcontext():
        if original is not None:
            modeling_gguf_pytorch_utils.tqdm = reporting
        try:
            yield
        finally:
            if original is not None:
                modeling_gguf_pytorch_utils.tqdm = original
