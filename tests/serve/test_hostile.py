"""Hostile requests get a quick 4xx response with a one-sentence message, and the server keeps running."""

import base64
import io
import json
import struct
import time
import zipfile
import zlib

import pytest
from bodies import as_file, random_pixels
from PIL import Image
from pydantic import ValidationError

from torchcaps.serve import requests

JSON = {"content-type": "application/json"}


def send(client, path, body, headers=JSON):
    start = time.perf_counter()
    response = client.post(path, content=body, headers=headers)
    assert time.perf_counter() - start < 5
    return response


def rejected(response, *statuses):
    assert response.status_code in statuses, response.text[:300]
    body = response.json()
    assert set(body) == {"detail"}
    assert 0 < len(body["detail"]) < 250
    assert body["detail"].isprintable()
    assert "Traceback" not in response.text
    assert "site-packages" not in response.text
    return body["detail"]


def text_of(data):
    return base64.b64encode(data).decode()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side):
    """A PNG of side × side pixels in a few kilobytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    deflate = zlib.compressobj(9)
    lines = b"".join(deflate.compress(bytes(side + 1)) for _ in range(min(side, 3000))) + deflate.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def archive():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("picture.png", b"no picture")
    return buffer.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><rect width="9" height="9"/></svg>'
GIF = base64.b64decode(as_file(Image.new("P", (9, 9)), "gif"))
FILES = {
    "svg": SVG,
    "zip": archive(),
    "html": b"<!doctype html><script>alert(1)</script>",
    "pdf": b"%PDF-1.7\n1 0 obj << >> endobj",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "gif": GIF,
    "svg behind the first bytes of a png": b"\x89PNG\r\n\x1a\n" + SVG,
    "zip behind the first bytes of a jpeg": b"\xff\xd8\xff\xe0" + archive(),
    "gif that calls itself webp": b"RIFF\x00\x00\x00\x00WEBP" + GIF,
    "png of no pixels": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 0, 8, 0, 0, 0, 0)),
    "png of four billion pixels": bomb(65_535),
    "png of 2049×2049": bomb(2049),
    "png with a text of 64 MiB inside": b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 0, 0, 0, 0))
    + chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(64 << 20), 9)),
    "empty": b"",
    "noise": bytes(range(256)) * 64,
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_images(client, name):
    body = json.dumps({"image": {"png": text_of(FILES[name]), "centre": True}})
    rejected(send(client, "/api/predict", body), 422)


def test_bytes_after_an_image_are_ignored(client):
    """A polyglot file, which is also a valid zip archive."""
    plain = base64.b64decode(as_file(Image.new("L", (28, 28))))
    answers = [
        send(client, "/api/predict", json.dumps({"image": {"png": text_of(data)}}))
        for data in (plain, plain + archive())
    ]
    assert answers[0].status_code == answers[1].status_code == 200
    assert answers[0].json() == answers[1].json()


NESTED = b"[" * 100_000
BODIES = {
    "nothing": (b"", 400, 422),
    "no json": (b"{", 400),
    "two values": (b"{} {}", 400),
    "no utf-8": (b'{"image": "\xff\xfe"}', 400),
    "half a surrogate": (rb'{"image": {"png": "\ud800"}}', 400, 422),
    "lists, deep": (NESTED, 400),
    "lists, deep and closed": (NESTED + b"]" * 100_000, 400),
    "objects, deep": (b'{"image":' * 100_000, 400),
    "deep inside a field": (b'{"image": {"pixels": ' + NESTED + b"]" * 100_000 + b"}}", 400),
    "a number of a million digits": (b'{"image": ' + b"9" * 1_000_000 + b"}", 400, 422),
    "NaN": (b'{"image": {"pixels": [[NaN]]}}', 400),
    "Infinity": (b'{"image": {"pixels": [[Infinity]]}}', 400),
    "too large for a float": (b'{"image": {"pixels": [[1e999]]}}', 400, 422),
    "null": (b"null", 422),
    "a list": (b"[]", 422),
    "a number": (b"1", 422),
    "a string": (b'"image"', 422),
    "many short lists": (b'{"image": {"pixels": [' + b"[]," * 500_000 + b"[]]}}", 422),
    "a long row": (b'{"image": {"pixels": [[' + b"0," * 900_000 + b"0]]}}", 422),
    "many fields": (json.dumps({f"{number}": 0 for number in range(150_000)}).encode(), 422),
    "many fields inside": (json.dumps({"image": {f"{number}": 0 for number in range(150_000)}}).encode(), 422),
    "a field with a long name": (b'{"image": {"png": "", "' + b"x" * 1_900_000 + b'": 0}}', 422),
    "a field with an unprintable name": (json.dumps({"image": {"png": ""}, "\x1b[2J\u202e\n" * 9: 0}).encode(), 422),
    "a million numbers out of range": (json.dumps({"image": {"pixels": [[9] * 800] * 800}}).encode(), 422),
}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_bodies(client, name):
    body, *statuses = BODIES[name]
    rejected(send(client, "/api/predict", body), *statuses)


@pytest.mark.parametrize("path", ["reconstruct", "routing", "transform", "shapes"])
def test_every_route_uses_the_strict_parser(client, path):
    for name in ("lists, deep and closed", "NaN", "null", "nothing"):
        body, *statuses = BODIES[name]
        rejected(send(client, f"/api/{path}", body), *statuses)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (requests.PredictRequest, {"image": {"pixels": [[9] * 28] * 28}}),
        (requests.PredictRequest, {"image": random_pixels(), "decode": ["x"] * 1000}),
        (requests.ReconstructRequest, {"class": 0, "pose": [99] * 256}),
        (requests.ShapesRequest, {"parts": [{"type": "disc", "x": 0, "y": 0}] * 24}),
    ],
)
def test_of_a_list_only_the_first_error_is_collected(kind, body):
    with pytest.raises(ValidationError) as found:
        kind(**body)
    assert found.value.error_count() == 1


GOOD = random_pixels()
POSE = [0.0] * 16
PART = {"type": "triangle", "x": 0, "y": 0}
FIELDS = [
    ("predict", {}),
    ("predict", {"image": None}),
    ("predict", {"image": {}}),
    ("predict", {"image": {"png": 5}}),
    ("predict", {"image": {"png": "iVBO", "centre": "yes"}}),
    ("predict", {"image": {**GOOD, "centre": True}}),
    ("predict", {"image": {**GOOD, "png": "iVBO"}}),
    ("predict", {"image": {"pixels": [[-0.1] * 28] * 28}}),
    ("predict", {"image": {"pixels": [[255] * 28] * 28}}),
    ("predict", {"image": {"pixels": [["1"] * 28] * 28}}),
    ("predict", {"image": {"pixels": [[True] * 28] * 28}}),
    ("predict", {"image": {"pixels": [[0] * 28] * 27}}),
    ("predict", {"image": {"pixels": [[0] * 28] * 27 + [[0] * 27]}}),
    ("predict", {"image": {"pixels": [[[0]] * 28] * 28}}),
    ("predict", {"image": {"path": "/etc/passwd"}}),
    ("predict", {"image": {"png": "/etc/passwd"}}),
    ("predict", {"image": {"png": "file:///etc/passwd"}}),
    ("predict", {"image": {"png": "http://localhost/"}}),
    ("predict", {"image": GOOD, "extra": 1}),
    ("predict", {"image": GOOD, "model": "../../etc/passwd"}),
    ("predict", {"image": GOOD, "model": "x" * 10_000}),
    ("predict", {"image": GOOD, "model": ""}),
    ("predict", {"image": GOOD, "top": 0}),
    ("predict", {"image": GOOD, "top": 1.5}),
    ("predict", {"image": GOOD, "top": True}),
    ("predict", {"image": GOOD, "top": 10**30}),
    ("predict", {"image": GOOD, "decode": []}),
    ("predict", {"image": GOOD, "decode": [-1]}),
    ("predict", {"image": GOOD, "decode": [0] * 6}),
    ("predict", {"image": GOOD, "iterations": 0}),
    ("predict", {"image": GOOD, "iterations": 1_000_000}),
    ("reconstruct", {"class": 0}),
    ("reconstruct", {"class": -1, "pose": POSE}),
    ("reconstruct", {"class": 10, "pose": POSE}),
    ("reconstruct", {"class": "0", "pose": POSE}),
    ("reconstruct", {"class_": 0, "pose": POSE}),
    ("reconstruct", {"class": 0, "pose": [0.0] * 15 + [10.5]}),
    ("reconstruct", {"class": 0, "pose": [0.0] * 15 + [1e308]}),
    ("reconstruct", {"class": 0, "pose": [0.0] * 17}),
    ("reconstruct", {"class": 0, "pose": {}}),
    ("reconstruct", {"class": 0, "pose": POSE, "sweep": 1}),
    ("reconstruct", {"class": 0, "pose": POSE, "compare": {"png": "iVBO"}}),
    ("reconstruct", {"class": 0, "pose": POSE, "model": "cnn"}),
    ("routing", {"image": GOOD, "iterations": 11}),
    ("routing", {"image": GOOD, "part": {"type": 0, "row": 0}}),
    ("routing", {"image": GOOD, "part": {"type": 0, "row": -1, "column": 0}}),
    ("routing", {"image": GOOD, "part": {"type": 0, "row": 0, "column": 99}}),
    ("routing", {"image": GOOD, "model": "cnn"}),
    ("transform", {"image": GOOD, "rotate": 181}),
    ("transform", {"image": GOOD, "scale": 0}),
    ("transform", {"image": GOOD, "scale": -1}),
    ("transform", {"image": GOOD, "shift_x": 1e300}),
    ("transform", {"image": GOOD, "along": "time"}),
    ("transform", {"image": GOOD, "along": "rotate", "steps": 62}),
    ("transform", {"image": GOOD, "along": "rotate", "steps": 2}),
    ("shapes", {}),
    ("shapes", {"parts": None}),
    ("shapes", {"parts": [PART] * 25}),
    ("shapes", {"parts": [[0, 0]]}),
    ("shapes", {"parts": [{**PART, "type": "disc"}]}),
    ("shapes", {"parts": [{**PART, "type": 0}]}),
    ("shapes", {"parts": [{**PART, "x": 1e300}]}),
    ("shapes", {"parts": [{**PART, "y": True}]}),
    ("shapes", {"parts": [{**PART, "angle": 361}]}),
    ("shapes", {"parts": [{**PART, "scale": -1}]}),
    ("shapes", {"parts": [{**PART, "presence": 1.1}]}),
    ("shapes", {"parts": [PART], "iterations": 0}),
    ("shapes", {"parts": [PART], "iterations": 11}),
    ("shapes", {"parts": [PART], "model": "capsules"}),
]


@pytest.mark.parametrize(("path", "body"), FIELDS, ids=lambda value: str(value)[:60])
def test_invalid_fields(client, path, body):
    rejected(send(client, f"/api/{path}", json.dumps(body)), 422)


def test_the_same_fields_with_valid_values_are_accepted(client):
    """So the requests above were rejected for their invalid values."""
    for path, body in (
        ("predict", {"image": GOOD, "top": 5, "model": "capsules", "decode": [0] * 5, "iterations": 10}),
        ("reconstruct", {"class": 9, "pose": [10] * 16, "compare": GOOD, "sweep": True}),
        ("routing", {"image": GOOD, "iterations": 10, "part": {"type": 3, "row": 0, "column": 9}}),
        ("transform", {"image": GOOD, "rotate": -180, "scale": 4, "shift_x": -14, "along": "shear", "steps": 3}),
        ("shapes", {"parts": [{**PART, "angle": 360, "scale": 20, "presence": 1}] * 24, "iterations": 10}),
    ):
        assert send(client, f"/api/{path}", json.dumps(body)).status_code == 200


def test_the_bytes_of_a_body_are_counted(client):
    def chunks():  # no Content-Length
        yield from [b" " * (1 << 20)] * 3

    rejected(client.post("/api/predict", content=b" " * (3 << 20), headers=JSON), 413)
    rejected(client.post("/api/predict", content=chunks(), headers=JSON), 413)


def test_a_wrong_content_length_is_handled(client):
    rejected(send(client, "/api/predict", b"{}", {**JSON, "content-length": "99999999999999999999"}), 413)
    rejected(send(client, "/api/predict", b" " * (3 << 20), {**JSON, "content-length": "2"}), 413)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_only_json_is_accepted(client, content_type):
    body = json.dumps({"image": GOOD})
    rejected(send(client, "/api/predict", body, {"content-type": content_type}), 415)
    assert send(client, "/api/predict", body, {"content-type": "application/json; charset=utf-8"}).status_code == 200


def test_the_server_still_runs(client):
    assert client.get("/healthz").json()["status"] == "ok"
