"""The explorer as a process: a port taken, models loaded, a server that runs until it is told to stop."""

from __future__ import annotations

import ipaddress
import socket

from rich.console import Console

from torchcaps.errors import UserError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONNECTIONS = 1000  # beyond them, 503: what waits for an answer takes memory


def serve(name: str, host: str, port: int, console: Console) -> None:
    """Serve a model until interrupted."""
    try:
        import uvicorn

        from torchcaps.serve.app import create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the explorer needs {error.name}: install it with pip install 'torchcaps[serve]'") from None
    from torchcaps.serve.exhibits import open_exhibits
    from torchcaps.serve.explorer import Explorer

    local = is_loopback(host)
    with _listen(host, port) as listening:
        app = create_app(
            Explorer(open_exhibits(name)), hosts=[_in_url(each) for each in (*LOOPBACK, host)] if local else None
        )
        place = f"http://{_in_url(host)}:{listening.getsockname()[1]}"
        console.print(f"the explorer is at {place} (Ctrl-C ends it)", soft_wrap=True, highlight=False, markup=False)
        if not local:
            console.print(
                "note: whoever can reach this machine can use it; leave --host away to keep it to yourself",
                soft_wrap=True,
            )
        config = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=3,
        )
        uvicorn.Server(config).run(sockets=[listening])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
