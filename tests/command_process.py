"""Commands in processes of their own that start at once: forked from one that has imported everything."""

import multiprocessing
import os
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "command_process",
        "specviz.analysis.calibrated",
        "specviz.analysis.prompts",
        "specviz.engine.record_many",
        "specviz.measure.costs",
        "specviz.models.token_text",
        "transformers.models.llama.modeling_llama",
    ]
)


def _command(words: list[str], output: str) -> None:
    import torch

    from specviz.cli import main

    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)  # several processes share few cores
    sys.exit(main(words))


def begin(words: list[str], output: Path):
    """Start a command of the command line; what it prints goes to the file `output`."""
    process = context.Process(target=_command, args=([str(word) for word in words], str(output)), daemon=True)
    # A new process would run the main module again, which is the app itself after a test with `AppTest`.
    with mock.patch.dict(sys.modules, __main__=ModuleType("__main__")):
        process.start()
    return process
