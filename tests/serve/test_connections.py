"""A real server and plain sockets: clients that say nothing, half of something, or far too much."""

import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn

from torchcaps.errors import UserError
from torchcaps.serve import connections
from torchcaps.serve.app import create_app
from torchcaps.serve.run import settings


@pytest.fixture
def connect(explorer):
    """connect() → a socket to a server of this process."""
    with listening_for(explorer) as (_, connected):
        yield connected


@contextmanager
def listening_for(explorer):
    server = uvicorn.Server(uvicorn.Config(create_app(explorer), **settings()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()

        @contextmanager
        def connected():
            with socket.create_connection(listening.getsockname(), timeout=20) as client:
                yield client

        try:
            yield server, connected
        finally:
            server.should_exit = True
            thread.join(20)


def everything(client):
    told = b""
    while more := client.recv(1 << 16):
        told += more
    return told


@pytest.mark.parametrize("said", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_who_asks_nothing_is_not_waited_for(connect, monkeypatch, said):
    monkeypatch.setattr(connections, "SILENT_SECONDS", 1.0)
    with connect() as client:
        client.sendall(said)
        assert everything(client) == b""


def test_a_connection_lasts_while_it_is_used(connect, monkeypatch):
    monkeypatch.setattr(connections, "SILENT_SECONDS", 3.0)
    question = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect() as client:
        for _ in range(4):
            client.sendall(question)
            time.sleep(1.0)
        client.sendall(question + b"GET /heal")  # and the next one only begun
        assert everything(client).count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize("megabytes", [3, 8, 12])
def test_who_sends_far_too_much_is_told_so(connect, megabytes):
    declared = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {megabytes << 20}"
    with connect() as client:
        client.sendall(f"POST /api/predict HTTP/1.1\r\n{declared}\r\n\r\n".encode())
        client.sendall(bytes(megabytes << 20))  # all of it before anything is read
        start, _, body = everything(client).partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 413")
    assert json.loads(body) == {"detail": "the body is larger than 2 MiB"}


def test_who_hangs_up_before_the_turn_comes_is_not_thought_about():
    class Slow:
        def __init__(self):
            self.asked, self.release = [], threading.Event()

        def predict(self, question):
            self.asked.append(question.top)
            self.release.wait(10)
            raise UserError("enough")

    def question(top):
        body = json.dumps({"image": {"png": ""}, "top": top})
        declared = (
            f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
        )
        return f"POST /api/predict HTTP/1.1\r\n{declared}\r\n\r\n{body}".encode()

    def wait_for(connections):
        while len(server.server_state.connections) != connections:
            time.sleep(0.01)

    slow = Slow()
    with listening_for(slow) as (server, connect), ExitStack() as stack:
        clients = [stack.enter_context(connect()) for _ in range(4)]
        for client in clients:
            client.sendall(question(1))
        while len(slow.asked) < 4:  # one for each thread
            time.sleep(0.01)
        with connect() as leaving, connect() as last:
            wait_for(6)
            leaving.sendall(question(2))
            leaving.close()
            wait_for(5)
            last.sendall(question(3))
            slow.release.set()
            for client in (*clients, last):
                assert b"enough" in everything(client)
    assert slow.asked == [1, 1, 1, 1, 3]
