"""Tiny files in the published formats, written by the tests themselves."""

import http.server
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def write_classes():
    """write_classes(root, {"cat": 5, "dog": 7}) writes that many noisy images into a folder for each class."""

    def write(root: Path, counts: dict[str, int], size=(6, 5), mode="RGB", suffix=".png") -> Path:
        rng = np.random.default_rng(0)
        for name, count in counts.items():
            (root / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                noise = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
                noise.convert(mode).save(root / name / f"{i:03d}{suffix}")
        return root

    return write


@pytest.fixture
def serve(monkeypatch):
    """serve({"name": b"bytes"}) answers on a local address; other names get a 404. Returns the address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers = []

    def start(files: dict[str, bytes]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = files.get(self.path.lstrip("/"))
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
