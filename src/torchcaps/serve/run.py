"""`torchcaps serve`: opens the port, loads the models and runs the server until it is interrupted."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from rich.console import Console

from torchcaps.errors import UserError

MAX_CONNECTIONS = 1000  # open at a time; further ones get 503


def serve(name: str, host: str, port: int, console: Console) -> None:
    """Serve a model until interrupted."""
    try:
        import uvicorn

        from torchcaps.serve.app import LOOPBACK, create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the explorer needs {error.name}; run pip install 'torchcaps[serve]'") from None
    from torchcaps.serve.explorer import Explorer
    from torchcaps.serve.served_models import load_models

    with _listen(host, port) as listening:
        address, port = listening.getsockname()[:2]
        local = is_loopback(address)
        names = (*LOOPBACK, _in_url(address), _in_url(host.lower()))
        models = load_models(name)
        app = create_app(Explorer(models), hosts=names if local else None)
        url = f"http://{_in_url(host or address)}:{port}"
        console.print(f"the explorer runs at {url} (Ctrl-C to stop)", soft_wrap=True, highlight=False, markup=False)
        if reason := models[0].examples.reason:
            console.print(f"note: the page has no examples: {reason}", soft_wrap=True, highlight=False, markup=False)
        if not local:
            console.print(
                "note: anyone who can reach this machine can use the explorer; omit --host to allow only this machine",
                soft_wrap=True,
            )
        uvicorn.Server(uvicorn.Config(app, **settings())).run(sockets=[listening])


def settings() -> dict[str, Any]:
    """Settings for uvicorn."""
    from torchcaps.serve.connections import Connection

    return {
        "http": Connection,
        "ws": "none",
        "log_level": "warning",
        "server_header": False,
        "limit_concurrency": MAX_CONNECTIONS,
        "timeout_graceful_shutdown": 3,
    }


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an IP address. Names do not count: they may resolve to any address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    """Open the port before any model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is given; otherwise responses are delayed by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listening
