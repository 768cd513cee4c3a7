"""A real server and plain sockets: clients that send nothing, half a request, or far too much."""

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
    """connect() → a socket to a server in this process."""
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


def receive_all(client):
    received = b""
    while more := client.recv(1 << 16):
        received += more
    return received


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_an_idle_connection_is_closed(connect, monkeypatch, sent):
    monkeypatch.setattr(connections, "MAX_IDLE_SECONDS", 1.0)
    with connect() as client:
        client.sendall(sent)
        assert receive_all(client) == b""


def test_a_connection_in_use_stays_open(connect, monkeypatch):
    monkeypatch.setattr(connections, "MAX_IDLE_SECONDS", 3.0)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect() as client:
        for _ in range(4):
            client.sendall(request)
            time.sleep(1.0)
        client.sendall(request + b"GET /heal")  # and an incomplete one
        assert receive_all(client).count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize("megabytes", [3, 8, 12])
def test_a_client_that_sends_too_much_gets_413(connect, megabytes):
    declared = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {megabytes << 20}"
    with connect() as client:
        client.sendall(f"POST /api/predict HTTP/1.1\r\n{declared}\r\n\r\n".encode())
        client.sendall(bytes(megabytes << 20))  # all of it before reading the response
        start, _, body = receive_all(client).partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 413")
    assert json.loads(body) == {"detail": "the body is larger than 2 MiB"}


def test_a_request_whose_client_disconnected_is_dropped():
    class Slow:
        def __init__(self):
            self.handled, self.release = [], threading.Event()

        def predict(self, request):
            self.handled.append(request.top)
            self.release.wait(10)
            raise UserError("enough")

    def request(top):
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
            client.sendall(request(1))
        while len(slow.handled) < 4:  # one for each thread
            time.sleep(0.01)
        with connect() as leaving, connect() as last:
            wait_for(6)
            leaving.sendall(request(2))
            leaving.close()
            wait_for(5)
            last.sendall(request(3))
            slow.release.set()
            for client in (*clients, last):
                assert b"enough" in receive_all(client)
    assert slow.handled == [1, 1, 1, 1, 3]
