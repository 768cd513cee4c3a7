"""Response headers, Host checks, static files, and the completeness of the OpenAPI schema."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

import torchcaps
from torchcaps.serve import files, middleware
from torchcaps.serve.app import create_app

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("GET", "/docs", 200),
        ("GET", "/docs/swagger-ui-bundle.js", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/nothing", 404),
        ("GET", "/static/nothing", 404),
        ("GET", "/api/predict", 405),
        ("POST", "/api/predict", 415),
        ("DELETE", "/healthz", 405),
    ],
)
def test_every_response_has_the_security_headers(client, method, path, status):
    response = client.request(method, path)
    assert response.status_code == status
    assert response.headers["content-security-policy"] == POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in response.headers["permissions-policy"]
    assert "access-control-allow-origin" not in response.headers
    if status >= 400:
        assert set(response.json()) == {"detail"}


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:80", "[::1]:8765", "[::1]", "LOCALHOST"])
def test_loopback_hosts_are_accepted(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.nip.io", "", "localhost:1:2", "::1"],
)
def test_other_hosts_are_rejected(client, host):
    response = client.get("/api/model", headers={"host": host})
    assert response.status_code == 400
    assert "localhost" in response.json()["detail"]


def test_a_public_server_accepts_any_host(explorer):
    public = TestClient(create_app(explorer, hosts=None), base_url="http://explorer.example")
    assert public.get("/healthz").json() == {"status": "ok", "version": torchcaps.__version__}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/%2e%2e%2f%2e%2e%2fcli.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\app.py",
        "/static/index.html%00.png",
        "/static/",
        "/docs/..%2fapp.py",
        "/docs/../run.py",
        "/docs/__init__.py",
        "/../pyproject.toml",
    ],
)
def test_paths_cannot_leave_the_static_folders(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert "import" not in response.text


def test_every_static_file_has_its_content_type(client):
    kinds = {".html": "text/html", ".js": "javascript", ".css": "text/css", ".svg": "image/svg", ".png": "image/png"}
    listed = files._listed(files.HERE / "static")
    assert "index.html" in listed
    for name, path in listed.items():
        response = client.get(f"/static/{name}")
        assert response.content == path.read_bytes()
        assert kinds.get(path.suffix, "") in response.headers["content-type"]


def test_the_api_viewer_has_no_external_or_inline_scripts(client):
    page = client.get("/docs").text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert all(source.startswith("/") and not source.startswith("//") for source in sources)
    assert all(client.get(source).status_code == 200 for source in sources)
    assert not re.search(r"<script(?![^>]*src=)|<style| on\w+=| style=", page)


def test_the_schema_is_complete(client):
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/healthz",
        "/api/model",
        *(f"/api/{name}" for name in ("predict", "reconstruct", "routing", "lattice", "transform", "shapes")),
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            for answer in operation["responses"].values():
                assert "$ref" in answer["content"]["application/json"]["schema"], path
            if method == "post":
                assert set(operation["responses"]) == {"200", "400", "408", "413", "415", "422", "503"}
                name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
                (example,) = schema["components"]["schemas"][name]["examples"]
                if path == "/api/lattice":
                    example = {**example, "model": "poses"}  # the default model is of another kind
                answer = client.post(path, json=example)
                assert answer.status_code == 200, answer.text
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_the_first_invalid_field_is_named_with_its_path(client):
    detail = client.post("/api/reconstruct", json={"class": 0, "pose": [0.0] * 15 + [11]}).json()["detail"]
    assert detail == "pose.15: Input should be less than or equal to 10"
    detail = client.post("/api/predict", json={"image": {"png": 5}}).json()["detail"]
    assert detail == "image.png: Input should be a valid string"


def test_internal_errors_do_not_show_a_traceback(served_models):
    class Broken:
        def models(self):
            raise RuntimeError("secret")

    app = create_app(Broken())
    response = TestClient(app, base_url="http://localhost", raise_server_exceptions=False).get("/api/model")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert set(response.json()) == {"detail"}
    assert response.headers["content-security-policy"] == POLICY


def through_middleware(receive):
    """Send what `receive` yields; returns the start message of the response and its body, or nothing."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/predict", "headers": headers}
    with ThreadPoolExecutor(1) as thread:  # without the event loop of the browser tests
        thread.submit(asyncio.run, middleware.SecurityMiddleware(None, ["localhost"])(scope, receive, send)).result()
    return [*sent[:1], b"".join(message["body"] for message in sent[1:])] if sent else []


def test_an_endless_body_is_cut_off():
    read = []

    async def receive():
        read.append(1 << 20)
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    start, body = through_middleware(receive)
    assert start["status"] == 413
    assert b"larger than 2 MiB" in body
    assert sum(read) == 3 + 16 << 20  # part of the rejected body is read, so that the client reads the response


def test_a_body_that_never_arrives_times_out(monkeypatch):
    monkeypatch.setattr(middleware, "MAX_BODY_SECONDS", 0.05)
    monkeypatch.setattr(middleware, "MAX_DISCARD_SECONDS", 0.05)

    async def receive():
        await asyncio.sleep(10)

    start, body = through_middleware(receive)
    assert start["status"] == 408
    assert b"did not arrive" in body


def test_a_client_that_disconnects_gets_no_response():
    async def receive():
        return {"type": "http.disconnect"}

    assert through_middleware(receive) == []
