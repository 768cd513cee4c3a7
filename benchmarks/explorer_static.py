"""Measure the explorer without a server in a browser: its size, first paint, first answer, and what follows an input.

    .venv/bin/python benchmarks/explorer_static.py [MODEL]

Writes the folder of a model to a temporary place and serves it as a static host does, below a path. Starts a Chromium,
prints a table, writes benchmarks/results/explorer-static.csv (with MODEL explorer-static-MODEL.csv), and fails if a
limit is exceeded. Times are measured inside the page. Other processes on the machine slow all of this down, so the
table has the load that they made.
"""

from __future__ import annotations

import csv
import gzip
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from explorer_page import PAINT, open_page, strokes
from explorer_shapes import MAX_PARTS, drags, late, moves, scene

from torchcaps.site.folder import write_site
from torchcaps.train.environment import machine

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "serve" / "browser"))
from driver import browsing, hosting  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
DEFAULT = "capsnet-mnist"
LOADS, PANELS, STROKES = 10, 10, 15
ANSWERED = """() => new Promise((resolve) => {
  const shown = () => document.getElementById("draw-redrawn").src.startsWith("data:");
  const look = () => (shown() ? resolve(performance.now()) : setTimeout(look, 5));
  look();
})"""
ASK = """async ([path, body]) => {
  const { send } = await import("./static/transport.js");
  const begun = performance.now();
  await send(path, body);
  return performance.now() - begun;
}"""


def main(name: str = DEFAULT) -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "explorer"
        write_site(name, folder, announce=print)
        rows = sizes(folder)
        with hosting(folder) as address, browsing() as browser:
            measured = measure(browser, address)
    rows.append(("load of the machine before", "", f"{load:.1f}", "", ""))
    for what, (values, limit) in measured.items():
        rows.append((what, len(values), f"{statistics.median(values):.0f}", f"{late(values):.0f}", limit))
    write(rows, RESULTS / ("explorer-static.csv" if name == DEFAULT else f"explorer-static-{name}.csv"))
    above = [what for what, (values, limit) in measured.items() if limit and late(values) > limit]
    if above:
        raise SystemExit("above the limit: " + "; ".join(above))


def sizes(folder: Path) -> list[tuple[Any, ...]]:
    """What is downloaded for the first paint, and in all, in MB as stored and compressed by gzip."""
    page = [folder / "index.html", *(folder / "static").iterdir(), folder / "models" / "models.json"]
    every = [path for path in folder.rglob("*") if path.is_file() and "LICENSE" not in path.name]
    rows: list[tuple[Any, ...]] = [("machine", "", machine(torch.device("cpu")), "", "")]
    for what, files in (("page", page), ("runtime", list((folder / "runtime").glob("ort*"))), ("folder", every)):
        contents = [path.read_bytes() for path in files]
        packed = sum(len(gzip.compress(content, 6)) for content in contents)
        rows.append((f"{what}, MB", "", f"{sum(map(len, contents)) / 1e6:.2f}", "", ""))
        rows.append((f"{what} by gzip, MB", "", f"{packed / 1e6:.2f}", "", ""))
    return rows


def measure(browser: Any, address: str) -> dict[str, tuple[list[float], int | None]]:
    """Milliseconds, and the limit of their 95th percentile, if there is one."""
    found: dict[str, tuple[list[float], int | None]] = {}

    def add(what: str, times: list[float], limit: int | None = None) -> None:
        found[what] = times, limit
        print(f"{what}: {statistics.median(times):.0f}", flush=True)

    paints, answers = loads(browser, address)
    add("first paint, ms", paints, 1000)
    add("first answer, ms", answers)
    for parts in (2, MAX_PARTS):
        page = scene(browser, address, parts)
        add(f"a move of a shape, {parts} parts, ms", moves(page), 250)
        add(f"the end of a drag of a shape, {parts} parts, ms", drags(page), 250)
        page.close()
    for what, times in requests(browser, address).items():
        add(what, times)
    add("stroke to updated bars, ms", strokes(browser, address, STROKES))
    return found


def loads(browser: Any, address: str) -> tuple[list[float], list[float]]:
    """First paint and first prediction, each in a new context without a cache."""
    paints, answers = [], []
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        page = context.new_page()
        page.goto(address)
        answers.append(page.evaluate(ANSWERED))
        paints.append(page.evaluate(PAINT))
        context.close()
    return paints, answers


def requests(browser: Any, address: str) -> dict[str, list[float]]:
    """Requests of the other panels, as the page sends them."""
    page = open_page(browser, address, "#draw-redrawn", "draw")
    described = page.evaluate("async () => (await import('./static/transport.js')).send('api/model')")
    main = next(model for model in described["models"] if model["name"] == described["default"])
    seen = {"png": page.get_attribute("#draw-seen", "src"), "centre": False}
    pose = [0.1] * main["pose"]
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "reconstruction with a sweep, ms": ("api/reconstruct", {"class": 5, "pose": pose, "sweep": True}),
        "routing, 10 iterations, ms": ("api/routing", {"image": seen, "iterations": 10}),
        "transform, ms": ("api/transform", {"image": seen, "rotate": 20}),
        "transform with a curve of 25, ms": ("api/transform", {"image": seen, "along": "rotate", "steps": 25}),
    }
    if main["kind"] == "poses":
        del asked["routing, 10 iterations, ms"]
        asked["views, ms"] = "api/lattice", {"image": seen}
    times = {}
    for what, (path, body) in asked.items():
        page.evaluate(ASK, [path, body])  # programs are loaded before
        times[what] = [page.evaluate(ASK, [path, body]) for _ in range(PANELS)]
    page.close()
    return times


def write(rows: list[tuple[Any, ...]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("measure", "n", "median", "p95", "wanted of the p95"), *rows])
    for row in rows:
        print(*(f"{'' if cell is None else cell:>12}" if i else f"{cell:44}" for i, cell in enumerate(row)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
