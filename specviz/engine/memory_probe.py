"""What a model takes to load and to decode with, measured in a process of its own.

In a process that has held other models the allocator keeps memory back, and a second load finds everything warm. So
`probe` starts `python -m specviz.engine.memory_probe`, which loads one model, decodes a few tokens and prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass

from specviz.errors import SpecVizError

PROMPT = "List five things that one can do on a rainy day."
SAMPLE_SECONDS = 0.002


@dataclass(frozen=True)
class Footprint:
    """load_seconds: from files that the system has in memory; peak_bytes: most memory beyond that before loading while
    decoding: of the process on a CPU, allocated on the device on CUDA."""

    load_seconds: float
    peak_bytes: int


def probe(source: str, precision: str, device: str, tokens: int = 8) -> Footprint:
    """Measure one model.

    Raises:
        SpecVizError: it cannot be loaded.
    """
    command = [sys.executable, "-m", __name__, source, precision, device, str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return Footprint(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        why = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise SpecVizError(f"The memory of {source} at {precision} could not be measured: {why[:200]}.") from error


class _Watcher:
    """Looks at this process's memory again and again, also while torch computes."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self.peak = self.now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def now(self) -> int:
        return self._process.memory_info().rss

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure(source: str, precision: str, device: str, tokens: int) -> Footprint:
    """Load and decode in this process."""
    import torch

    from specviz.engine.decoding import decode
    from specviz.engine.endings import Endings, Limits
    from specviz.engine.family_check import make_runner
    from specviz.models.loading import encode_prompt, load_model
    from specviz.models.precision import check_precision, resolve_device

    device = resolve_device(device)
    check_precision(precision, device)  # imports and starts what loading needs
    on_cuda = device.startswith("cuda")
    watcher = _Watcher()
    before = watcher.now()
    began = time.perf_counter()
    loaded = load_model(source, precision, device)
    if on_cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    runner = make_runner(loaded, width=None)
    prompt = encode_prompt(loaded, PROMPT)
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    with watcher:
        for _ in decode(runner, prompt, Limits(tokens, Endings(frozenset(loaded.eos_token_ids)))):
            pass
    peak = torch.cuda.max_memory_allocated(device) if on_cuda else watcher.peak - before
    return Footprint(seconds, peak)


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(measure(*sys.argv[1:4], int(sys.argv[4])))))
    except SpecVizError as error:
        sys.exit(str(error))
