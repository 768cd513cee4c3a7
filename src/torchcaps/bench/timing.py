"""Seconds and bytes, measured the same way everywhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]
REPEATS, ENOUGH = 10, 0.02  # calls in one CUDA graph: ten, or as many as take 20 ms


def by_turns(candidates: dict[str, Call], device: torch.device, rounds: int = 11) -> dict[str, float]:
    """Median seconds of each, measured in alternation so that a slow moment hits all of them alike."""
    for call in candidates.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            times[name].append(_seconds(call, device))
    return {name: statistics.median(values) for name, values in times.items()}


def device_seconds(calls: dict[str, Call], device: torch.device, rounds: int = 11) -> dict[str, float]:
    """The same; on CUDA each is recorded, several times over, so that short ones are measured as well as long ones."""
    repeats = dict.fromkeys(calls, 1)
    if device.type == "cuda":
        once = by_turns(calls, device, rounds=1)
        repeats = {name: max(1, min(REPEATS, int(ENOUGH / seconds))) for name, seconds in once.items()}
        calls = {name: recorded(call, repeats[name]) for name, call in calls.items()}
    return {name: seconds / repeats[name] for name, seconds in by_turns(calls, device, rounds).items()}


def recorded(call: Call, repeats: int = 1) -> Call:
    """The same call, `repeats` times, as one CUDA graph: what the device takes, without what Python takes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()

    def replay(keep: Call = call) -> None:  # the graph works on what the call owns
        graph.replay()

    return replay


def extra_memory(call: Call, device: torch.device) -> int | None:
    """The most bytes that a call has allocated at a time beyond what was there before it; None where nobody counts."""
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _seconds(call: Call, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
