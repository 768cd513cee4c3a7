"""One training step as something to call: as it is, or compiled, recorded once as a CUDA graph and replayed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("torchcaps")

WARM_UP = 3  # steps taken as they are before recording: kernels are compiled and moments allocated in them


class RecordedStep:
    """A step that the GPU runs without waiting for Python.

    The step takes the indices of its batch (B,) and works in place on weights, moments and totals, so replaying its
    kernels takes it again.

    step   what is recorded; also runs the first steps, and all of them where recording fails
    plain  the same without compilation, for batches of another size: compiling for one batch an epoch does not pay
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
        if self._taken == WARM_UP:
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
        """The first step. Its backward pass is compiled only when it is called, so it may fail only then."""
        broken: tuple[type[Exception], ...] = (*_compiler_errors(), AssertionError)
        try:
            self._step(indices)
        except broken as error:
            log.warning("the training step could not be compiled: %s", _first_line(error))
            self._step = self._plain
            self._step(indices)

    def _record(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has memory of its own
        torch.cuda.reset_peak_memory_stats()  # what trying out convolutions took is not what training takes
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        before = self._generator.clone_state()
        try:
            with torch.cuda.graph(graph):
                self._step(self._indices)
        except RuntimeError as error:
            log.warning("the training step could not be recorded as a CUDA graph: %s", _first_line(error))
            torch.cuda.synchronize()
            self._generator.graphsafe_set_state(before)  # its own would wait for the graph to be finished
        else:
            self._graph = graph


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function through torch.compile; where that fails, as it is, with the reason logged.

    What was compiled of the same code before, for another model, is forgotten: after eight of them torch.compile would
    give up, and training would go on slowly.
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
def repeatable(asked: bool) -> Iterator[None]:
    """If asked for, for as long as the block runs: operations whose sums do not depend on which thread is first."""
    if not asked:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS looks at it when it is first used
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def tuned(device: torch.device, tensor_cores: bool) -> Iterator[None]:
    """On CUDA, for as long as the block runs: try out convolution algorithms, and let float32 products use TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    if device.type == "cuda":
        # The quickest algorithm may be another one in the next run, and round otherwise.
        torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
        if tensor_cores:
            torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
