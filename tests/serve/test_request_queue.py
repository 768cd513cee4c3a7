"""Many questions at once: so many wait and no more, and nobody thinks for a client that has gone."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.exceptions import HTTPException

from torchcaps.serve.request_queue import RequestQueue


class Client:
    def __init__(self, gone=False):
        self.gone = gone

    async def is_disconnected(self):
        return self.gone


def run(coroutine):
    """In a thread where no browser's event loop is running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


@pytest.fixture
def busy():
    """A question that takes until `release` is set, and whether it has begun."""
    begun, release = threading.Event(), threading.Event()

    def think(question):
        begun.set()
        release.wait(10)
        return question

    yield think, begun, release
    release.set()


async def begin(turns, busy):
    think, begun, _ = busy
    first = asyncio.create_task(turns.ask(Client(), think, "first"))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    return first


def test_beyond_the_limit_a_question_is_refused_at_once(busy):
    async def visit():
        turns = RequestQueue(threads=1, waiting=2)
        first = await begin(turns, busy)
        others = [asyncio.create_task(turns.ask(Client(), str.upper, word)) for word in ("a", "b", "c")]
        await asyncio.sleep(0.01)
        assert [other.done() for other in others] == [False, False, True]
        with pytest.raises(HTTPException) as refusal:
            await others[2]
        busy[2].set()
        answers = await asyncio.gather(first, *others[:2])
        return refusal.value, answers, await turns.ask(Client(), str.upper, "d")

    refusal, answers, later = run(visit())
    assert refusal.status_code == 503
    assert refusal.headers == {"retry-after": "1"}
    assert (answers, later) == (["first", "A", "B"], "D")


def test_what_nobody_waits_for_is_not_thought_about(busy):
    asked = []

    async def visit():
        turns = RequestQueue(threads=1, waiting=9)
        first = await begin(turns, busy)
        clients = [Client(gone=number % 2 == 0) for number in range(6)]
        others = [asyncio.create_task(turns.ask(client, asked.append, n)) for n, client in enumerate(clients)]
        await asyncio.sleep(0.01)
        clients[1].gone = True  # while it waits
        busy[2].set()
        await asyncio.gather(first, *others, return_exceptions=True)

    run(visit())
    assert asked == [3, 5]


def test_an_error_frees_its_place():
    async def visit():
        turns = RequestQueue(threads=1, waiting=1)
        for _ in range(5):
            with pytest.raises(ValueError, match="invalid literal"):
                await turns.ask(Client(), int, "no number")
        return await turns.ask(Client(), int, "7")

    assert run(visit()) == 7
