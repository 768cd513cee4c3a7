"""Several processes that train one model: who takes which part of a batch, and what they tell each other.

All of them have all images and draw the same random numbers, so each knows the whole batch and takes its own part of
it: together they take the very step that one process would take, but for the order of sums. Gradients are averaged by
DistributedDataParallel, which Fabric sets up, or where weights are in pieces by FSDP (`shards`); only the first process
writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch import Tensor

from torchcaps.errors import LostProcess, UserError

Found = TypeVar("Found")
ASK_EVERY = 16  # steps between two times that the processes ask each other whether to stop


class Part(NamedTuple):
    """What one process takes of a batch.

    values   its part of each tensor
    weight   of its mean loss, so that the mean over processes is that over all examples
    counted  no where there are fewer examples than processes: then some take one that others have, for nothing
    """

    values: tuple[Any, ...]
    weight: float
    counted: bool


class Distributed:
    """The processes of a run; often it is one."""

    def __init__(self, fabric: Fabric):
        self.fabric, self.rank, self.size = fabric, fabric.global_rank, fabric.world_size

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def in_pieces(self) -> bool:
        """Whether each process has a piece of every weight."""
        return isinstance(self.fabric.strategy, ModelParallelStrategy)

    def part(self, batch: tuple[Tensor | None, ...]) -> Part:
        """batch: tensors (B, …), the first of them not None."""
        if self.size == 1:
            return Part(batch, 1.0, True)
        assert batch[0] is not None
        total = len(batch[0])
        start, end = (total * number // self.size for number in (self.rank, self.rank + 1))
        weight = (end - start) * self.size / total
        chosen = slice(start, end) if end > start else slice(0, 1)
        return Part(tuple(None if each is None else each[chosen] for each in batch), weight, end > start)

    def sum(self, values: list[float]) -> list[float]:
        """Each number added up over all processes."""
        if self.size == 1:
            return values
        added = self.fabric.all_reduce(torch.tensor(values, dtype=torch.float64), reduce_op="sum")
        assert isinstance(added, Tensor)
        return added.tolist()

    def agree(self, flag: Tensor) -> None:
        """1 in every process, in place, if it is in one."""
        if self.size > 1:
            worst = self.fabric.all_reduce(flag, reduce_op="max")
            assert isinstance(worst, Tensor)
            flag.copy_(worst)

    def any(self, *wishes: bool, step: int) -> list[bool]:
        """Of each wish, whether a process has it; with several of them they ask each other only now and then."""
        if self.size == 1:
            return list(wishes)
        if step % ASK_EVERY:
            return [False] * len(wishes)
        return [count > 0 for count in self.sum([float(wish) for wish in wishes])]

    def due(self, wish: bool, step: int) -> bool:
        """Whether it is time for what all processes do in the same step: one by its wish, several now and then."""
        return wish if self.size == 1 else step % ASK_EVERY == 0

    def broadcast_from_main(self, function: Callable[[], Found], all_work: bool = False) -> Found:
        """What the first process finds, for all; its mistakes are everybody's.

        all_work  the others work it out, too, because it takes all of them, and believe the first
        """
        if self.size == 1:
            return function()
        found: tuple[Found | None, str | None] = (None, None)
        if self.first or all_work:
            try:
                found = (function(), None)
            except UserError as error:
                found = (None, str(error))
        value, wrong = self.fabric.broadcast(found)
        if wrong is not None:
            raise UserError(wrong)
        return value  # type: ignore[return-value]

    @contextmanager
    def parting(self, stopped: type[Exception]) -> Iterator[None]:
        """Where a run is stopped, nobody goes before all have come so far: the first closes its files until then, and
        would be killed once another has ended."""
        try:
            yield
        except stopped:
            self.fabric.barrier()
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """A process that has lost another says so, and ends."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _about_others(error):
                raise
            words = "another process of this run has ended, so this one ends, too; its output says why"
            raise LostProcess(words) from error


def torchrun_world_size() -> tuple[int, int] | None:
    """Processes on this machine, and machines, if `torchrun` (or a scheduler in its way) started this process."""
    names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    if not all(name in os.environ for name in names):
        return None
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return here, max(1, everywhere // here)


def leave(code: int) -> None:
    """End this process at once if it is one of several; one that is alone ends as it likes.

    While Python takes itself down, a thread of Gloo that still has a tensor to let go of aborts the process, and
    whoever started it ends the others, of which the first may still be writing.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _about_others(error: RuntimeError) -> bool:
    words = str(error)
    known = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out", "Socket", "NCCL")
    return isinstance(error, torch.distributed.DistError) or any(word in words for word in known)
