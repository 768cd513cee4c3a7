"""Run time and memory of calls, measured the same way in every benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]
MAX_GRAPH_CALLS, MAX_GRAPH_SECONDS = 10, 0.02  # in one CUDA graph


def median_seconds(calls: dict[str, Call], device: torch.device, rounds: int = 11) -> dict[str, float]:
    """Median run time of each call, measured in alternation so that a slow moment affects all calls equally."""
    for call in calls.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_seconds(call, device))
    return {name: statistics.median(values) for name, values in times.items()}


def device_seconds(calls: dict[str, Call], device: torch.device, rounds: int = 11) -> dict[str, float]:
    """The same, but on CUDA from graphs of several calls, which excludes Python and times short calls accurately."""
    repeats = dict.fromkeys(calls, 1)
    if device.type == "cuda":
        once = median_seconds(calls, device, rounds=1)
        repeats = {
            name: max(1, min(MAX_GRAPH_CALLS, int(MAX_GRAPH_SECONDS / seconds))) for name, seconds in once.items()
        }
        calls = {name: cuda_graph(call, repeats[name]) for name, call in calls.items()}
    return {name: seconds / repeats[name] for name, seconds in median_seconds(calls, device, rounds).items()}


def cuda_graph(call: Call, repeats: int = 1) -> Call:
    """Capture `repeats` calls in one CUDA graph."""
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

    def replay(keep: Call = call) -> None:  # the call owns tensors that the graph uses
        graph.replay()

    return replay


def extra_mib(call: Call, device: torch.device) -> float | None:
    """Peak memory in MiB that a call allocates beyond what was allocated before it; None without CUDA."""
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _seconds(call: Call, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
