"""A training step compiled, recorded as a CUDA graph and replayed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("torchcaps")

WARM_UP_STEPS = 3  # before recording: they compile kernels and allocate moments


class RecordedStep:
    """A training step that is replayed without waiting for Python.

    The step takes the indices of its batch (B,) and works in place on weights, moments and totals, so that replaying
    its kernels takes another step.

    Args:
        step: what is recorded; also takes the first steps, and all of them where recording fails.
        plain: the same without compilation, for batches of another size: compiling for one batch an epoch does not pay.
        batch_size: of the recorded step.
        generator: source of the step's random numbers.
    """

    def __init__(
        self,
        step: Callable[[Tensor], None],
        plain: Callable[[Tensor], None],
        batch_size: int,
        generator: torch.Generator,
    ):
        self._step, self._plain, self._generator = step, plain, generator
        self._indices = torch.zeros(batch_size, dtype=torch.long, device=generator.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._taken = 0

    def __call__(self, indices: Tensor) -> None:
        if len(indices) != len(self._indices):
            self._plain(indices)
            return
        if self._taken == WARM_UP_STEPS:
            self._record()
        if self._taken == 0:
            self._try(indices)
        elif self._graph is None:
            self._step(indices)
        else:
            self._indices.copy_(indices)
            self._graph.replay()
        self._taken += 1

    def _try(self, indices: Tensor) -> None:
        """The first step: its backward pass is compiled when it is first called, and may fail only then."""
        broken: tuple[type[Exception], ...] = (*_compiler_errors(), AssertionError)
        try:
            self._step(indices)
        except broken as error:
            log.warning("the training step could not be compiled: %s", _first_line(error))
            self._step = self._plain
            self._step(indices)

    def _record(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph allocates its own memory
        torch.cuda.reset_peak_memory_stats()  # without what benchmarking the convolutions took
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        before = self._generator.clone_state()
        try:
            with torch.cuda.graph(graph):
                self._step(self._indices)
        except RuntimeError as error:
            log.warning("the training step could not be recorded as a CUDA graph: %s", _first_line(error))
            torch.cuda.synchronize()
            self._generator.graphsafe_set_state(before)  # its current state would wait for the graph to finish
        else:
            self._graph = graph


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function; where that fails, log the reason and call it uncompiled.

    Earlier compilations of the same code, for other models, are discarded: after eight of them torch.compile would give
    up, and training would continue slowly.
    """
    torch._dynamo.eval_frame.reset_code(function.__code__)
    chosen = torch.compile(function, dynamic=False)

    def call(*arguments: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*arguments)
        except _compiler_errors() as error:
            log.warning("the training step could not be compiled: %s", _first_line(error))
            chosen = function
            return function(*arguments)

    return call


def _compiler_errors() -> tuple[type[Exception], ...]:
    return torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """If `wanted`, use deterministic algorithms inside the block."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def tuned(device: torch.device, tensor_cores: bool) -> Iterator[None]:
    """On CUDA, inside the block: benchmark convolution algorithms, and allow TF32 in float32 products."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    if device.type == "cuda":
        # The fastest algorithm may differ between runs, and round differently.
        torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
        if tensor_cores:
            torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
