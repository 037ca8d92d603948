"""Clocks: a monotonic one on the CPU, recorded events on CUDA, behind one small interface.

A mark on CUDA is an event put into the stream; it does not wait. Differences are read after the round's own host read
(the verdict of the verification), when the device has finished anyway, so that timing forces no extra waits.
"""

from __future__ import annotations

import time

import torch


class CpuClock:
    """Marks are seconds of a monotonic clock; work on the CPU is finished when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """Marks are CUDA events in the current stream of `device`. Untested on a device so far (see README)."""

    def __init__(self, device: torch.device):
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def clock_for(device: torch.device) -> CpuClock | CudaClock:
    """The clock that measures work on `device`."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
