"""The explorer as a process: a port taken, a model loaded, a server that runs until it is told to stop."""

from __future__ import annotations

import socket

from rich.console import Console

from torchcaps.errors import UserError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def serve(name: str, host: str, port: int, console: Console) -> None:
    """Serve a model until interrupted."""
    try:
        import uvicorn

        from torchcaps.serve.app import create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the explorer needs {error.name}: install it with pip install 'torchcaps[serve]'") from None
    from torchcaps.serve.explorer import open_explorer

    listening = _listen(host, port)
    with listening:
        explorer = open_explorer(name)
        local = host in LOOPBACK
        app = create_app(explorer) if local else create_app(explorer, hosts=None)
        place = f"[{host}]" if ":" in host else host
        console.print(
            f"the explorer is at http://{place}:{listening.getsockname()[1]} (Ctrl-C ends it)", highlight=False
        )
        if not local:
            console.print(
                "note: anybody who can reach this machine can use it; leave --host away to keep it to yourself"
            )
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, timeout_keep_alive=30)
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Taken before the model is loaded, so that a port in use is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listening
