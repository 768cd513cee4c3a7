"""Concurrent requests: the queue is bounded, and requests of clients that disconnected are dropped."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from starlette.exceptions import HTTPException

from torchcaps.serve.request_queue import RequestQueue, single_core


class Client:
    def __init__(self, disconnected=False):
        self.disconnected = disconnected

    async def is_disconnected(self):
        return self.disconnected


def run(coroutine):
    """Run in a thread without the event loop of the browser tests."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


@pytest.fixture
def busy():
    """A handler that blocks until `release` is set, and an event for its start."""
    begun, release = threading.Event(), threading.Event()

    def handler(request):
        begun.set()
        release.wait(10)
        return request

    yield handler, begun, release
    release.set()


async def begin(queue, busy):
    handler, begun, _ = busy
    first = asyncio.create_task(queue.run(Client(), handler, "first"))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    return first


def test_a_full_queue_rejects_at_once(busy):
    async def visit():
        queue = RequestQueue(threads=1, waiting=2)
        first = await begin(queue, busy)
        others = [asyncio.create_task(queue.run(Client(), str.upper, word)) for word in ("a", "b", "c")]
        await asyncio.sleep(0.01)
        assert [other.done() for other in others] == [False, False, True]
        with pytest.raises(HTTPException) as rejection:
            await others[2]
        busy[2].set()
        answers = await asyncio.gather(first, *others[:2])
        return rejection.value, answers, await queue.run(Client(), str.upper, "d")

    rejection, answers, later = run(visit())
    assert rejection.status_code == 503
    assert rejection.headers == {"retry-after": "1"}
    assert (answers, later) == (["first", "A", "B"], "D")


def test_requests_of_disconnected_clients_are_dropped(busy):
    handled = []

    async def visit():
        queue = RequestQueue(threads=1, waiting=9)
        first = await begin(queue, busy)
        clients = [Client(disconnected=number % 2 == 0) for number in range(6)]
        others = [asyncio.create_task(queue.run(client, handled.append, n)) for n, client in enumerate(clients)]
        await asyncio.sleep(0.01)
        clients[1].disconnected = True  # while it waits
        busy[2].set()
        await asyncio.gather(first, *others, return_exceptions=True)

    run(visit())
    assert handled == [3, 5]


def test_an_error_frees_its_slot():
    async def visit():
        queue = RequestQueue(threads=1, waiting=1)
        for _ in range(5):
            with pytest.raises(ValueError, match="invalid literal"):
                await queue.run(Client(), int, "no number")
        return await queue.run(Client(), int, "7")

    assert run(visit()) == 7


def test_small_work_uses_one_core_and_leaves_the_others_to_models():
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with single_core() as small, ThreadPoolExecutor(1) as later:
            assert small.submit(torch.get_num_threads).result() == 1
            assert later.submit(torch.get_num_threads).result() == 2
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)
