"""`torchcaps serve` as a user runs it: its output, exit code and responses over a real connection."""

import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image
from rich.console import Console

from torchcaps.models import create_model, save
from torchcaps.serve.run import is_loopback, serve

PAGE = Path(__file__).parents[2] / "docs" / "explorer.md"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
COMMAND = [sys.executable, "-m", "torchcaps.cli", "serve"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model = create_model("capsnet_small", image_shape=(1, 20, 20), num_classes=2, channels=4, types=2)
    return str(save(model, tmp_path_factory.mktemp("models") / "mine"))


def fails(*arguments, before="pass"):
    words = ["torchcaps", "serve", *arguments]
    code = f"import sys; {before}; sys.argv = {words}; import torchcaps.cli; torchcaps.cli.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    return result.stderr


def test_a_model_is_served_until_interrupted(run, tmp_path, monkeypatch):
    process = subprocess.Popen(
        [*COMMAND, run, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background it would be ignored
    )
    try:
        first_line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+) ", first_line)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/api/model")
        response = connection.getresponse()
        assert response.getheader("server") is None
        assert json.loads(response.read())["default"] == "mine"
        connection.request("POST", "/api/predict", "[" * 10_000, {"content-type": "application/json"})
        assert connection.getresponse().status == 400
        connection.close()
        monkeypatch.chdir(tmp_path)
        Image.new("L", (30, 30)).save("three.png")
        shown: dict = {}
        exec(EXAMPLE.replace("8765", str(port)), shown)
        assert len(shown["answer"]["lengths"]) == 2
    finally:
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert "note" not in first_line + rest  # only this machine can connect
    assert errors == ""
    assert process.returncode == 130


def test_a_port_in_use_is_reported(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = fails(run, "--port", str(taken.getsockname()[1]))
    assert "cannot listen on 127.0.0.1" in error
    assert "choose another --port" in error


def test_a_model_that_cannot_be_explored_is_reported():
    assert "segcaps-axons cannot be explored" in fails("segcaps-axons", "--port", "0")


def test_without_the_extra_the_error_names_it(run):
    error = fails(run, before="sys.modules['fastapi'] = None")
    assert "pip install 'torchcaps[serve]'" in error


def test_other_commands_do_not_import_web_packages():
    modules = "torchcaps.cli, torchcaps.predict"
    code = f"import sys, {modules}; print([n for n in ('fastapi', 'starlette', 'uvicorn') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("192.0.2.1", False)],
)
def test_loopback_addresses(address, local):
    assert is_loopback(address) == local


@pytest.mark.parametrize(
    ("host", "noted", "status"),
    [
        ("127.0.0.1", False, 400),
        ("localhost", False, 400),
        ("Localhost", False, 400),
        ("127.1", False, 400),
        ("0.0.0.0", True, 200),
        ("", True, 200),
    ],
)
def test_listening_on_other_addresses_is_reported(run, monkeypatch, host, noted, status):
    """Only then does the server accept Host headers with other names."""
    served = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: served.append(server.config.app))
    said = io.StringIO()
    serve(run, host, 0, Console(file=said, width=200))
    assert f"http://{host or '0.0.0.0'}:" in said.getvalue()
    assert ("anyone who can reach this machine" in said.getvalue()) == noted
    assert TestClient(served[0], base_url="http://other.example").get("/healthz").status_code == status
    for name in ("127.0.0.1", host or "0.0.0.0"):
        assert TestClient(served[0], base_url=f"http://{name}:99").get("/healthz").status_code == 200
