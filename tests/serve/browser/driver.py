"""A real server in its own process, a real Chromium, and functions that draw on the page."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

try:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=15_000)  # the same as for clicks in `open_page`; machines may be busy
except ModuleNotFoundError:  # the browser tests are then skipped
    expect = sync_playwright = None

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PANELS = ("draw", "pose", "routing", "overlap", "transform", "shapes")
SUB_PATH = "/some/where/"  # of a folder on a static host
Stroke = Sequence[tuple[float, float]]

OWN_STROKES = """async ([digit, style, share]) => {
  const { PATHS, strokesOf } = await import("/static/examples.js");
  const place = (value) => 0.5 + (value - 0.5) * share;
  return strokesOf(PATHS[digit][style], 5).map((points) => points.map(([x, y]) => [place(x), place(y)]));
}"""


def curve(*points: tuple[float, float], between: int = 5) -> Stroke:
    """A smooth curve through points (Catmull-Rom)."""
    ends = [points[0], *points, points[-1]]
    line = []
    for a, b, c, d in zip(ends, ends[1:], ends[2:], ends[3:]):
        for t in (step / between for step in range(between)):
            weights = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)
            x, y = (sum(w * p[axis] for w, p in zip(weights, (a, b, c, d))) / 2 for axis in (0, 1))
            line.append((x, y))
    return [*line, points[-1]]


# In shares of the pad's side.
THREE: list[Stroke] = [
    [
        *curve((0.29, 0.22), (0.43, 0.13), (0.60, 0.14), (0.67, 0.25), (0.60, 0.39), (0.44, 0.45)),
        *curve((0.44, 0.45), (0.60, 0.47), (0.71, 0.57), (0.70, 0.71), (0.58, 0.82), (0.40, 0.83), (0.27, 0.76)),
    ]
]
SEVEN: list[Stroke] = [
    [(0.26, 0.18), (0.45, 0.17), (0.62, 0.17), (0.74, 0.16), (0.62, 0.40), (0.52, 0.62), (0.45, 0.85)]
]


def chromium() -> str | None:
    """The path of an installed Chromium, if there is one and Playwright is installed."""
    return sync_playwright and next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Run a server on a free port; yields its address."""
    command = [sys.executable, "-m", "torchcaps", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://[\d.]+:\d+", line)
            assert found, f"the server printed no address but {line!r}"
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)  # like Ctrl-C
            process.wait(timeout=30)


class _FileHandler(SimpleHTTPRequestHandler):
    """Serves the files of a folder below SUB_PATH, and nothing else."""

    def translate_path(self, path: str) -> str:
        inside = path.startswith(SUB_PATH)
        return super().translate_path(path.removeprefix(SUB_PATH[:-1]) if inside else "/no such file")

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def hosting(folder: Path) -> Iterator[str]:
    """Serve a folder's files as a static host does, below a path; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_FileHandler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{SUB_PATH}"
        server.shutdown()


@contextmanager
def browsing():
    with sync_playwright() as playwright:
        # Containers often run as root, for which Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


def settle(page) -> None:
    """Wait until all requests of the page have finished."""
    page.wait_for_selector("main[aria-busy=false]", state="attached")


def draw(page, strokes: Sequence[Stroke], pad: str = "#pad") -> None:
    """Draw strokes with the mouse."""
    page.locator(f"{pad} canvas").scroll_into_view_if_needed()
    box = page.locator(f"{pad} canvas").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=2)
        page.mouse.up()


def draw_example(page, digit: int, style: int, share: float = 1.0) -> None:
    """Draw one of the page's own digits with the mouse, instead of what is on the pad."""
    strokes = page.evaluate(OWN_STROKES, [digit, style, share])
    page.get_by_role("button", name="Clear").first.click()
    draw(page, strokes)


def touch(page, strokes: Sequence[Stroke], pad: str = "#pad") -> None:
    """Draw strokes by touch."""
    page.locator(f"{pad} canvas").scroll_into_view_if_needed()
    box = page.locator(f"{pad} canvas").bounding_box()
    finger = page.context.new_cdp_session(page)

    def send(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]} for x, y in places]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    for stroke in strokes:
        send("touchStart", stroke[0])
        for place in stroke[1:]:
            send("touchMove", place)
        send("touchEnd")
