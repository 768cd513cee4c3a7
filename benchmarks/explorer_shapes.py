"""Measure the explorer's Shapes panel in a browser: from the move of a part to the answer that is shown.

    .venv/bin/python benchmarks/explorer_shapes.py

Starts a server and a Chromium on this machine, prints a table, writes benchmarks/results/explorer-shapes.csv, and fails
if a 95th percentile is above its limit. Times are measured inside the page, from the pointer event to the new charts:
for single moves, and for the last move of drags with a move in each frame. Other processes on the machine slow all of
this down, so the table has the load that they made.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from torchcaps.train.environment import machine

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "serve" / "browser"))
from driver import browsing, serving  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "explorer-shapes.csv"
MOVES, DRAGS, FRAMES = 100, 30, 30
FRAME_MS = 16
LIMIT_MS = 100
MAX_PARTS = 24

WATCH = """() => { window.begun = window.ended = null;
  document.getElementById("shapes-scene")
    .addEventListener("pointermove", (event) => { window.begun = event.timeStamp; }, true);
  new MutationObserver(() => { window.ended = performance.now(); })
    .observe(document.getElementById("shapes-votes"), { childList: true });
}"""
# Playwright's wait_for_function compiles a string in the page, which the content security policy forbids.
ANSWERED = """() => new Promise((resolve) => {
  const look = () => (document.querySelector("main").getAttribute("aria-busy") === "false" && ended > begun
    ? resolve(ended - begun) : setTimeout(look, 3));
  look();
})"""


def main() -> None:
    measured, load = {}, os.getloadavg()[0]
    with serving() as address, browsing() as browser:
        for parts in (2, MAX_PARTS):
            page = scene(browser, address, parts)
            measured[f"a move, {parts} parts, ms"] = moves(page)
            measured[f"the end of a drag, {parts} parts, ms"] = drags(page)
            page.close()
    rows = [("machine", "", machine(torch.device("cpu")), "", "")]
    rows.append(("load of the machine before", "", f"{load:.1f}", "", ""))
    for name, values in measured.items():
        rows.append((name, len(values), f"{statistics.median(values):.1f}", f"{late(values):.1f}", LIMIT_MS))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("measure", "n", "median", "p95", "wanted of the p95"), *rows])
    for row in rows:
        print(*(f"{cell:>12}" if i else f"{cell:36}" for i, cell in enumerate(row)))
    above = [name for name, values in measured.items() if late(values) > LIMIT_MS]
    if above:
        raise SystemExit("above the limit: " + "; ".join(above))


def late(values: list[float]) -> float:
    return sorted(values)[round(0.95 * (len(values) - 1))]


def scene(browser: Any, address: str, parts: int) -> Any:
    """A page whose scene has this many parts, with the pointer on one that is being dragged."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"{address}#shapes")
    page.wait_for_selector(".ghost.house", state="attached")
    for index in range(parts - 2):
        page.locator(f"#shapes-add-{('rectangle', 'triangle')[index % 2]}").click()
    page.wait_for_selector("main[aria-busy=false]", state="attached")
    page.evaluate(WATCH)
    move(page, 0)
    page.mouse.down()
    return page


def move(page: Any, step: int) -> None:
    """Move the first part, from where the preset has it."""
    box = page.locator("#shapes-scene").bounding_box()
    pixel = box["width"] / 64
    page.mouse.move(box["x"] + (32 + step % 20) * pixel, box["y"] + (40 + step % 3) * pixel)


def moves(page: Any) -> list[float]:
    times = []
    for step in range(1, MOVES + 1):
        move(page, step)
        times.append(page.evaluate(ANSWERED))
    return times


def drags(page: Any) -> list[float]:
    times = []
    for _ in range(DRAGS):
        for step in range(FRAMES):
            move(page, step + 1)
            page.wait_for_timeout(FRAME_MS)
        times.append(page.evaluate(ANSWERED))
    return times


if __name__ == "__main__":
    main()
