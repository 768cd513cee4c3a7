"""One training step as something to call: as it is, or recorded once as a CUDA graph and replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

log = logging.getLogger("torchcaps")

WARM_UP = 3  # steps taken as they are before recording: kernels are compiled and moments allocated in them


class Recorded:
    """A step that the GPU runs without waiting for Python.

    The step takes the indices of its batch (B,) and works in place on weights, moments and totals, so replaying its
    kernels takes it again. Batches of another size, and everything where recording fails, run as they are.
    """

    def __init__(self, step: Callable[[Tensor], None], batch_size: int, generator: torch.Generator):
        self._step, self._generator = step, generator
        self._indices = torch.zeros(batch_size, dtype=torch.long, device=generator.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._taken = 0

    def __call__(self, indices: Tensor) -> None:
        if self._taken >= WARM_UP and len(indices) == len(self._indices):
            if self._taken == WARM_UP:
                self._record()
            if self._graph is not None:
                self._indices.copy_(indices)
                self._graph.replay()
                self._taken += 1
                return
        self._step(indices)
        self._taken += len(indices) == len(self._indices)

    def _record(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has memory of its own
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        try:
            with torch.cuda.graph(graph):
                self._step(self._indices)
        except RuntimeError as error:
            log.warning("the training step could not be recorded as a CUDA graph: %s", str(error).splitlines()[0])
            torch.cuda.synchronize()
        else:
            self._graph = graph


@contextmanager
def tensor_cores(device: torch.device, allowed: bool) -> Iterator[None]:
    """Let float32 matrix products use TF32 on CUDA for as long as the block runs."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and allowed:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
