"""The explorer as a process: a port taken, models loaded, a server that runs until it is told to stop."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from rich.console import Console

from torchcaps.errors import UserError

CONNECTIONS = 1000  # beyond them, 503: what waits for an answer takes memory


def serve(name: str, host: str, port: int, console: Console) -> None:
    """Serve a model until interrupted."""
    try:
        import uvicorn

        from torchcaps.serve.app import LOOPBACK, create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the explorer needs {error.name}: install it with pip install 'torchcaps[serve]'") from None
    from torchcaps.serve.explorer import Explorer
    from torchcaps.serve.served_models import open_models

    with _listen(host, port) as listening:
        address, port = listening.getsockname()[:2]
        local = is_loopback(address)
        names = (*LOOPBACK, _in_url(address), _in_url(host.lower()))
        app = create_app(Explorer(open_models(name)), hosts=names if local else None)
        place = f"http://{_in_url(host or address)}:{port}"
        console.print(f"the explorer is at {place} (Ctrl-C ends it)", soft_wrap=True, highlight=False, markup=False)
        if not local:
            console.print(
                "note: whoever can reach this machine can use it; leave --host away to keep it to yourself",
                soft_wrap=True,
            )
        uvicorn.Server(uvicorn.Config(app, **settings())).run(sockets=[listening])


def settings() -> dict[str, Any]:
    """Of uvicorn."""
    from torchcaps.serve.connections import Connection

    return {
        "http": Connection,
        "ws": "none",
        "log_level": "warning",
        "server_header": False,
        "limit_concurrency": CONNECTIONS,
        "timeout_graceful_shutdown": 3,
    }


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it: an address that was listened on, since names may lead anywhere."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    """Before any model is loaded, so that a port in use is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off only where it is; on, an answer waits for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listening
