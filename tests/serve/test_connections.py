"""A real server and plain sockets: clients that say nothing, half of something, or far too much."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from torchcaps.serve import connections
from torchcaps.serve.app import create_app
from torchcaps.serve.run import settings


@pytest.fixture
def connect(explorer):
    """connect() → a socket to a server of this process."""
    server = uvicorn.Server(uvicorn.Config(create_app(explorer), **settings()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()

        @contextmanager
        def connected():
            with socket.create_connection(listening.getsockname(), timeout=20) as client:
                yield client

        yield connected
        server.should_exit = True
        thread.join(20)


def everything(client):
    told = b""
    while more := client.recv(1 << 16):
        told += more
    return told


@pytest.mark.parametrize("said", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_who_asks_nothing_is_not_waited_for(connect, monkeypatch, said):
    monkeypatch.setattr(connections, "SILENT_SECONDS", 0.2)
    with connect() as client:
        client.sendall(said)
        assert everything(client) == b""


def test_a_connection_lasts_while_it_is_used(connect, monkeypatch):
    monkeypatch.setattr(connections, "SILENT_SECONDS", 1.0)
    question = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect() as client:
        for _ in range(4):
            client.sendall(question)
            time.sleep(0.4)
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
