"""Several processes that train one model: devices, ranks, and what the ranks tell each other.

Every rank draws the same random numbers for the whole batch and takes its own part of it. It holds all images, or reads
only those of its part where they are in a cache or streamed.
Together the ranks take the step that one process would take, except for the order of sums. DistributedDataParallel
averages the gradients, or FSDP where weights are sharded (fsdp.py). Only rank 0 writes files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import ModelParallelStrategy
from torch import Tensor

from torchcaps.devices import choose_accelerator
from torchcaps.errors import LostProcess, UserError

Found = TypeVar("Found")
COMMUNICATION_ERRORS = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out", "Socket", "NCCL"),
    *("DistError", "DistBackendError", "DistNetworkError", "DistStoreError"),
)
SYNC_EVERY = 16  # steps between two times that the ranks ask each other whether to stop


class BatchShard(NamedTuple):
    """What one rank takes of a batch.

    Attributes:
        values: this rank's part of each tensor.
        weight: factor of its mean loss; with it the mean over ranks is the mean over all examples.
        counted: False on a rank without examples of its own, which then repeats one that is not counted.
    """

    values: tuple[Any, ...]
    weight: float
    counted: bool


class Distributed:
    """The ranks of a run; often there is one."""

    def __init__(self, fabric: Fabric):
        self.fabric, self.rank, self.size = fabric, fabric.global_rank, fabric.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes."""
        return self.rank == 0

    @property
    def size_on_this_machine(self) -> int:
        """The ranks that share this machine's memory."""
        return max(1, self.size // max(1, getattr(self.fabric.strategy, "num_nodes", 1)))

    @property
    def sharded(self) -> bool:
        """Whether each rank has a shard of every weight."""
        return isinstance(self.fabric.strategy, ModelParallelStrategy)

    def shard_batch(self, batch: tuple[Tensor | None, ...]) -> BatchShard:
        """This rank's part of a batch of tensors (B, …), the first of which is not None."""
        if self.size == 1:
            return BatchShard(batch, 1.0, True)
        assert batch[0] is not None
        total = len(batch[0])
        start, end = self._bounds(total)
        weight = (end - start) * self.size / total
        chosen = slice(*self.share(total))
        return BatchShard(tuple(None if each is None else each[chosen] for each in batch), weight, end > start)

    def share(self, total: int) -> tuple[int, int]:
        """The half-open range of a batch of `total` examples that this rank computes; at least one, counted or not."""
        start, end = self._bounds(total)
        return (start, end) if end > start else (0, 1)

    def _bounds(self, total: int) -> tuple[int, int]:
        return total * self.rank // self.size, total * (self.rank + 1) // self.size

    def sum(self, values: list[float]) -> list[float]:
        """Each number summed over all ranks."""
        if self.size == 1:
            return values
        added = self.fabric.all_reduce(torch.tensor(values, dtype=torch.float64), reduce_op="sum")
        return cast(Tensor, added).tolist()

    def max_(self, flag: Tensor) -> None:
        """Replace a tensor by its maximum over all ranks, in place."""
        if self.size > 1:
            flag.copy_(cast(Tensor, self.fabric.all_reduce(flag, reduce_op="max")))

    def any_rank(self, *flags: bool, step: int) -> list[bool]:
        """Whether each flag is set on any rank. With several ranks this is asked every SYNC_EVERY steps only."""
        if self.size == 1:
            return list(flags)
        if step % SYNC_EVERY:
            return [False] * len(flags)
        return [count > 0 for count in self.sum([float(flag) for flag in flags])]

    def due(self, wanted: bool, step: int) -> bool:
        """Whether to do what all ranks must do in the same step: one rank decides for itself, several by the step."""
        return wanted if self.size == 1 else step % SYNC_EVERY == 0

    def broadcast_from_main(self, function: Callable[[], Found], all_compute: bool = False) -> Found:
        """Call a function on rank 0 and give its result, or its UserError, to every rank.

        Args:
            function: what rank 0 calls.
            all_compute: the other ranks call it as well, because it needs collectives, and take rank 0's result.
        """
        if self.size == 1:
            return function()
        found: tuple[Found | None, str | None] = (None, None)
        if self.is_main or all_compute:
            try:
                found = (function(), None)
            except UserError as error:
                found = (None, str(error))
        value, wrong = self.fabric.broadcast(found)
        if wrong is not None:
            raise UserError(wrong)
        return value  # type: ignore[return-value]

    @contextmanager
    def barrier_on(self, stopped: type[Exception]) -> Iterator[None]:
        """Barrier before this exception leaves the block: a launcher kills rank 0 once another rank has ended, and
        rank 0 must finish writing first."""
        try:
            yield
        except stopped:
            self.fabric.barrier()
            raise

    @contextmanager
    def report_lost_rank(self) -> Iterator[None]:
        """Turn the communication error of a rank whose peer has ended into a clear message."""
        try:
            yield
        except RuntimeError as error:  # torch.distributed.DistError is one
            text = f"{type(error).__name__}: {error}"
            if self.size == 1 or not any(words in text for words in COMMUNICATION_ERRORS):
                raise
            message = "another process of this run has ended, so this one ends too; the other's output says why"
            raise LostProcess(message) from error


def make_fabric(device: str, precision: str, devices: int = 1, nodes: int = 1, shard: bool = False) -> Fabric:
    """Make the Fabric of a run.

    Args:
        device: auto, cpu, cuda or mps.
        precision: auto (bf16 convolutions on CUDA, fp32 elsewhere), fp32 or bf16.
        devices: processes on each machine, one for each device.
        nodes: machines.
        shard: whether each rank keeps a shard of every weight.
    """
    accelerator = choose_accelerator(device)
    mixed = precision == "bf16" or (precision == "auto" and accelerator == "cuda")
    launched = torchrun_world_size()
    if launched is not None and devices == nodes == 1:
        devices, nodes = launched
    if accelerator == "mps" and devices * nodes > 1:
        raise UserError("--devices: only one MPS device exists; omit --devices")
    if accelerator == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"--devices {devices}: this machine has {torch.cuda.device_count()}")
    strategy: Any = "ddp" if devices * nodes > 1 else "auto"
    if shard:
        if devices * nodes == 1:
            raise UserError("--shard splits the weights among several processes; give --devices, two or more")
        strategy = ModelParallelStrategy(lambda model, mesh: model, devices * nodes, tensor_parallel_size=1)
    single = launched is None and devices * nodes == 1  # even inside a SLURM job of several tasks
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision="bf16-mixed" if mixed else "32-true",
        plugins=[LightningEnvironment()] if single else None,
    )


def torchrun_world_size() -> tuple[int, int] | None:
    """Processes on this machine, and machines, if `torchrun` or a scheduler started this process; else None."""
    names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    if not all(name in os.environ for name in names):
        return None
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return local, max(1, world // local)


def exit_without_teardown(code: int) -> None:
    """End this process at once if it is one rank of several; otherwise return.

    During Python's teardown a Gloo thread that still holds a tensor aborts the process. The launcher then kills the
    other ranks, and rank 0 may still be writing.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
