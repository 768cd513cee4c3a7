"""A bounded queue for requests that run a model: a few threads work on them, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from starlette.exceptions import HTTPException

T = TypeVar("T")
R = TypeVar("R")


class Client(Protocol):
    async def is_disconnected(self) -> bool: ...


class RequestQueue:
    """Run handlers in a thread pool and reject requests once too many are waiting.

    Args:
        threads: Worker threads. Each may hold an image of 2048×2048; only one at a time runs a model.
        waiting: Requests that may wait for a thread.
        pool: The threads, if they are not to be new ones.
    """

    def __init__(self, threads: int = 4, waiting: int = 64, pool: Executor | None = None):
        self._threads = pool or ThreadPoolExecutor(threads, "explorer")
        self._idle_threads = asyncio.Semaphore(threads)
        self._free_slots = threads + waiting

    async def run(self, client: Client, handler: Callable[[T], R], request: T) -> R:
        """Return `handler(request)`; raise 503 if the queue is full or the client has disconnected meanwhile."""
        if self._free_slots == 0:
            raise HTTPException(503, "too many requests are waiting; try again in a moment", {"retry-after": "1"})
        self._free_slots -= 1
        try:
            async with self._idle_threads:
                if await client.is_disconnected():
                    raise HTTPException(503, "the client disconnected")
                return await asyncio.get_running_loop().run_in_executor(self._threads, handler, request)
        finally:
            self._free_slots += 1


def single_core() -> ThreadPoolExecutor:
    """A thread in which PyTorch uses one core: for tensors so small that several cores mostly wait for each other."""
    usual = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, "single-core")
    # A thread takes over the usual number when it first asks for it, and keeps one that is set after that.
    pool.submit(torch.get_num_threads).result()
    pool.submit(torch.set_num_threads, 1).result()
    torch.set_num_threads(usual)  # the last number that was set is also that of threads that start later
    return pool
