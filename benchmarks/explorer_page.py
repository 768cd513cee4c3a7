"""Measure the explorer's page in a browser: stroke to updated bars, slider to image, first paint and page size.

    .venv/bin/python benchmarks/explorer_page.py

Starts a server and a Chromium on this machine, prints a table, writes benchmarks/results/explorer-page.csv, and fails
if a median is above its limit. Times are measured inside the page, from the input event to the last change of the page.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from torchcaps.train.environment import machine

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "serve" / "browser"))
from driver import THREE, browsing, draw, serving  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "explorer-page.csv"
STROKES, MOVES, LOADS = 40, 60, 10

# Responses to earlier parts of a stroke may arrive after it, so the last change counts.
STROKE = """() => { window.begun = window.ended = null;
  addEventListener("pointerup", (event) => { window.begun = event.timeStamp; }, true);
  new MutationObserver(() => { window.ended = performance.now(); })
    .observe(document.getElementById("draw-bars"),
      { subtree: true, childList: true, characterData: true, attributes: true });
}"""
SLIDER = """() => { window.begun = window.ended = null;
  document.getElementById("pose-4").addEventListener("input", (event) => {
    window.begun = event.timeStamp;
    window.ended = null;
  }, true);
  document.getElementById("pose-redrawn").addEventListener("load", () => { window.ended = performance.now(); });
}"""
PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => resolve(list.getEntries()
  .find((entry) => entry.name === "first-contentful-paint").startTime)).observe({ type: "paint", buffered: true }))"""

# Playwright's wait_for_function compiles a string in the page, which the content security policy forbids.
UNTIL = "() => new Promise((resolve) => { const look = () => ((%s) ? resolve() : setTimeout(look, 5)); look(); })"


def main() -> None:
    with serving() as address, browsing() as browser:
        paints, weight = loads(browser, address)
        measured = {
            "stroke to updated bars, ms": (strokes(browser, address), 80),
            "slider to picture, ms": (moves(browser, address), 40),
            "first paint, ms": (paints, 1000),
            "page weight, KB": ([weight], 300),
        }
    rows = [("machine", "", machine(torch.device("cpu")), "", "")]
    for name, (values, limit) in measured.items():
        slow = sorted(values)[round(0.95 * (len(values) - 1))]
        rows.append((name, len(values), f"{statistics.median(values):.1f}", f"{slow:.1f}", limit))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("measure", "n", "median", "p95", "wanted of the median"), *rows])
    for row in rows:
        print(*(f"{cell:>12}" if i else f"{cell:30}" for i, cell in enumerate(row)))
    above = [name for name, (values, limit) in measured.items() if statistics.median(values) > limit]
    if above:
        raise SystemExit("above the limit: " + "; ".join(above))


def loads(browser: Any, address: str) -> tuple[list[float], float]:
    """Load the page several times, each in a new context without a cache."""
    paints, weight = [], 0.0
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        page = context.new_page()
        answers: list[Any] = []
        page.on("response", lambda answer, answers=answers: answers.append(answer))
        page.goto(address, wait_until="networkidle")
        paints.append(page.evaluate(PAINT))
        weight = (
            sum(len(answer.body()) for answer in answers if "/api/" not in answer.url and address in answer.url) / 1000
        )
        context.close()
    return paints, weight


def strokes(browser: Any, address: str, count: int = STROKES) -> list[float]:
    page = open_page(browser, address, "#draw-redrawn", "draw")
    page.evaluate(STROKE)
    times = []
    for _ in range(count):
        page.get_by_role("button", name="Clear").click()
        settled(page)
        draw(page, THREE)
        settled(page)
        times.append(page.evaluate("ended - begun"))
    return times


def moves(browser: Any, address: str) -> list[float]:
    page = open_page(browser, address, "#pose-redrawn", "pose")
    page.evaluate(SLIDER)
    times = []
    for move in range(MOVES):
        page.locator("#pose-4").press("ArrowLeft" if move // 20 % 2 else "ArrowRight")
        page.evaluate(UNTIL % "begun !== null && ended !== null")
        times.append(page.evaluate("ended - begun"))
    return times


def open_page(browser: Any, address: str, picture: str, panel: str) -> Any:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"{address}#{panel}")
    page.wait_for_selector(f"{picture}[src^=data]")
    return page


def settled(page: Any) -> None:
    """Wait until nothing has changed for much longer than a response takes."""
    page.evaluate(UNTIL % "performance.now() - Math.max(begun ?? 0, ended ?? 0) > 400")


if __name__ == "__main__":
    main()
