"""How fast the explorer answers, alone and with many visitors: a real server, a real connection for each of them.

    .venv/bin/python benchmarks/explorer.py [--seconds 60] [--clients 32]

Prints a table, writes benchmarks/results/explorer.csv, and fails if a request failed or one in twenty took more than a
second. A visitor asks what a page asks: after each stroke for the answer, while a slider moves for pictures, now and
then for the routing or for the picture turned, rarely for a sweep or a curve. Latencies count from the moment a request
was due, so that one that waits for a slow one before it is slow, too.
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
LIMIT = 1000.0  # ms, in which 95% of the crowd's requests are to be answered
# What a visitor asks, over and over: a curve and a sweep each time a panel is opened, the others while the hand moves.
SOME = ["predict", "reconstruct", "reconstruct", "predict", "routing", "predict", "reconstruct", "transform"]
VISIT = [
    *SOME * 3,
    *SOME[:4],
    "transform, with a curve of 25",
    "predict",
    "reconstruct",
    "reconstruct, with the sweep",
]
Row = tuple[str, str]


def drawing() -> dict[str, Any]:
    """A 3 as somebody draws it: white on black, on a canvas of 280×280, sent as a PNG."""
    canvas = Image.new("L", (280, 280))
    pen = ImageDraw.Draw(canvas)
    pen.arc((80, 40, 200, 140), 200, 90, fill=255, width=24)
    pen.arc((70, 130, 210, 240), 270, 160, fill=255, width=24)
    buffer = io.BytesIO()
    canvas.save(buffer, "png")
    return {"png": base64.b64encode(buffer.getvalue()).decode(), "centre": True}


class Server:
    """`torchcaps serve` as a process of its own, on a port that is free."""

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "torchcaps.cli", "serve", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)", said)
        if found is None:
            raise SystemExit(f"the server did not start: {said}")
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


def ask(connection: http.client.HTTPConnection, question: tuple[str, bytes]) -> dict[str, Any]:
    path, body = question
    connection.request("POST", f"/api/{path}", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {answer}")
    return answer


def questions(server: Server) -> dict[str, tuple[str, bytes]]:
    image = drawing()
    answer = ask(server.connect(), ("predict", json.dumps({"image": image}).encode()))
    if answer["winners"] != [3]:
        raise SystemExit(f"the drawn 3 was taken for a {answer['winners'][0]}: times of wrong answers mean nothing")
    told = answer["decoded"][0]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "predict": ("predict", {"image": image}),
        "reconstruct": ("reconstruct", {"class": told["class"], "pose": told["pose"]}),
        "reconstruct, with the sweep": ("reconstruct", {"class": 3, "pose": told["pose"], "sweep": True}),
        "routing": ("routing", {"image": image}),
        "transform": ("transform", {"image": image, "rotate": 30}),
        "transform, with a curve of 25": ("transform", {"image": image, "along": "rotate"}),
    }
    return {name: (path, json.dumps(body).encode()) for name, (path, body) in bodies.items()}


def alone(server: Server, asked: dict[str, tuple[str, bytes]], rounds: int = 40) -> list[Row]:
    rows = []
    connection = server.connect()
    for name, question in asked.items():
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            ask(connection, question)
            times.append(1000 * (time.perf_counter() - start))
        rows.append((f"{name}: ms, median of {rounds}", f"{statistics.median(times):.1f}"))
        rows.append((f"{name}: ms, 95% are faster than", f"{percentile(times, 0.95):.1f}"))
    return rows


def crowd(
    server: Server, asked: dict[str, tuple[str, bytes]], clients: int, seconds: float
) -> tuple[list[Row], list[float], list[str]]:
    """Every client has its own clock and place in the visit; they start spread over one period.

    returns  rows of the table, the times in ms, what failed
    """
    times: list[float] = []
    failures: list[str] = []
    start = time.perf_counter() + 0.5

    def client(number: int) -> None:
        connection = server.connect()
        for turn in range(int(seconds * RATE)):
            due = start + (turn + number / clients) / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                ask(connection, asked[VISIT[(turn + number) % len(VISIT)]])
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
        asked = questions(server)
        rows += alone(server, asked)
        told, times, failures = crowd(server, asked, arguments.clients, arguments.seconds)
    rows += told
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
