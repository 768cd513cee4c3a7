"""Measure the latency of the explorer's API with one client and with many, over real connections.

    .venv/bin/python benchmarks/explorer.py [--seconds 60] [--clients 32]

Prints a table, writes benchmarks/results/explorer.csv, and fails if a request failed or the 95th percentile is above a
second. Each client sends the requests of the page: mostly predictions and reconstructions, sometimes routing or a
transform, rarely a sweep or a curve. Latencies count from the time a request was due, so they include waiting for a
slow request before it.
"""

from __future__ import annotations

import argparse
import base64
import csv
import http.client
import io
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from torchcaps.train.environment import machine

RESULTS = Path(__file__).parent / "results" / "explorer.csv"
RATE = 2.0  # requests a second of each client
LIMIT = 1000.0  # ms, limit for the 95th percentile with many clients
# The requests of a client, repeated: a curve and a sweep when a panel is opened, the others while drawing.
COMMON = ["predict", "reconstruct", "reconstruct", "predict", "routing", "predict", "reconstruct", "transform"]
VISIT = [
    *COMMON * 3,
    *COMMON[:4],
    "transform, with a curve of 25",
    "predict",
    "reconstruct",
    "reconstruct, with the sweep",
]
Row = tuple[str, str]


def drawing() -> dict[str, Any]:
    """A drawn 3, white on black, on a canvas of 280×280, as a PNG."""
    canvas = Image.new("L", (280, 280))
    pen = ImageDraw.Draw(canvas)
    pen.arc((80, 40, 200, 140), 200, 90, fill=255, width=24)
    pen.arc((70, 130, 210, 240), 270, 160, fill=255, width=24)
    buffer = io.BytesIO()
    canvas.save(buffer, "png")
    return {"png": base64.b64encode(buffer.getvalue()).decode(), "centre": True}


class Server:
    """`torchcaps serve` in its own process, on a free port."""

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "torchcaps.cli", "serve", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        self.host, self.port = found[1], int(found[2])
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=30)

    @property
    def megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


def send(connection: http.client.HTTPConnection, request: tuple[str, bytes]) -> dict[str, Any]:
    path, body = request
    connection.request("POST", f"/api/{path}", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {answer}")
    return answer


def request_bodies(server: Server) -> dict[str, tuple[str, bytes]]:
    image = drawing()
    answer = send(server.connect(), ("predict", json.dumps({"image": image}).encode()))
    if answer["winners"] != [3]:
        raise SystemExit(f"the drawn 3 was classified as {answer['winners'][0]}; nothing was timed")
    decoded = answer["decoded"][0]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "predict": ("predict", {"image": image}),
        "reconstruct": ("reconstruct", {"class": decoded["class"], "pose": decoded["pose"]}),
        "reconstruct, with the sweep": ("reconstruct", {"class": 3, "pose": decoded["pose"], "sweep": True}),
        "routing": ("routing", {"image": image}),
        "transform": ("transform", {"image": image, "rotate": 30}),
        "transform, with a curve of 25": ("transform", {"image": image, "along": "rotate"}),
    }
    return {name: (path, json.dumps(body).encode()) for name, (path, body) in bodies.items()}


def one_client(server: Server, requests: dict[str, tuple[str, bytes]], rounds: int = 40) -> list[Row]:
    rows = []
    connection = server.connect()
    for name, request in requests.items():
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            send(connection, request)
            times.append(1000 * (time.perf_counter() - start))
        rows.append((f"{name}: ms, median of {rounds}", f"{statistics.median(times):.1f}"))
        rows.append((f"{name}: ms, 95% are faster than", f"{percentile(times, 0.95):.1f}"))
    return rows


def many_clients(
    server: Server, requests: dict[str, tuple[str, bytes]], clients: int, seconds: float
) -> tuple[list[Row], list[float], list[str]]:
    """Run many clients concurrently; each starts at its own position in VISIT.

    Returns:
        The rows of the table, the latencies in ms, and the failures.
    """
    times: list[float] = []
    failures: list[str] = []
    start = time.perf_counter() + 0.5

    def client(number: int) -> None:
        connection = server.connect()
        for step in range(int(seconds * RATE)):
            due = start + (step + number / clients) / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                send(connection, requests[VISIT[(step + number) % len(VISIT)]])
            except Exception as error:
                failures.append(repr(error))
                connection = server.connect()
            times.append(1000 * (time.perf_counter() - due))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    before = server.megabytes
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    halfway = server.megabytes
    for thread in threads:
        thread.join()
    name = f"{clients} clients, {RATE:g} requests a second each, {seconds:g} s"
    rows = [
        (f"{name}: requests", str(len(times))),
        (f"{name}: failures", str(len(failures))),
        (f"{name}: ms, median", f"{statistics.median(times):.1f}"),
        (f"{name}: ms, 95% are faster than", f"{percentile(times, 0.95):.1f}"),
        (f"{name}: ms, slowest", f"{max(times):.1f}"),
        (f"{name}: MB of memory before, halfway, after", f"{before:.0f}, {halfway:.0f}, {server.megabytes:.0f}"),
        *((f"failure {number}", failure) for number, failure in enumerate(failures[:5])),
    ]
    return rows, times, failures


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args()
    rows: list[Row] = [("machine", machine(torch.device("cpu")))]
    with Server() as server:
        requests = request_bodies(server)
        rows += one_client(server, requests)
        crowd_rows, times, failures = many_clients(server, requests, arguments.clients, arguments.seconds)
    rows += crowd_rows
    for name, value in rows:
        print(f"{name:<75} {value}")
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("measure", "value"), *rows])
    if failures or percentile(times, 0.95) > LIMIT:
        raise SystemExit(
            f"{len(failures)} requests failed, 95% took up to {percentile(times, 0.95):.0f} ms: at most {LIMIT:.0f}"
        )


if __name__ == "__main__":
    main()
