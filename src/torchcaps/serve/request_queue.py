"""Whose question is answered next: a few threads think, a bounded number of questions waits, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from starlette.exceptions import HTTPException

Q = TypeVar("Q")
A = TypeVar("A")


class Client(Protocol):
    async def is_disconnected(self) -> bool: ...


class RequestQueue:
    """A few questions are thought about at a time, a bounded number waits, first come first served.

    threads  that decode and think: each may hold a picture of 2048×2048, and the model is asked by one at a time
    waiting  questions beyond them; a page has a few on their way, so this is a crowd that would wait for seconds
    """

    def __init__(self, threads: int = 4, waiting: int = 64):
        self._threads = ThreadPoolExecutor(threads, "explorer")
        self._free = asyncio.Semaphore(threads)
        self._places = threads + waiting

    async def ask(self, client: Client, answer: Callable[[Q], A], question: Q) -> A:
        if self._places == 0:
            raise HTTPException(
                503, "too many questions wait for an answer: ask again in a moment", {"retry-after": "1"}
            )
        self._places -= 1
        try:
            async with self._free:
                if await client.is_disconnected():  # which may have been long ago; nobody will read this
                    raise HTTPException(503, "the client has gone")
                return await asyncio.get_running_loop().run_in_executor(self._threads, answer, question)
        finally:
            self._places += 1
