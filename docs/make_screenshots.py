"""Take the screenshots of the explorer for the README and docs/explorer.md, with a real server and Chromium.

.venv/bin/python docs/make_screenshots.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "serve" / "browser"))
from driver import THREE, browsing, draw, draw_example, serving, settle  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
DESKTOP = {"viewport": {"width": 1180, "height": 700}, "device_scale_factor": 1.5}
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}


def main() -> None:
    with browsing() as browser:
        with serving() as address:
            take_all(browser, address, PICTURES)
        with serving("posecaps-digits") as address:
            take_poses(browser, address, PICTURES)


def take_all(browser: Any, address: str, folder: Path) -> None:
    """Take all screenshots of the default model, as explorer-….png in a folder."""
    shoot = partial(take, browser, address, folder)
    shoot("draw", "draw", three, **DESKTOP)
    shoot("pose", "pose", sweep, **DESKTOP)
    shoot("routing", "routing", three, color_scheme="dark", **DESKTOP)
    shoot("overlap", "overlap", pair, **DESKTOP)
    shoot("transform", "transform", turn, **DESKTOP)
    shoot("shapes", "shapes", shared, **DESKTOP)
    shoot("phone", "draw", lambda page: example(page, "2, upright"), whole=False, **PHONE)


def take_poses(browser: Any, address: str, folder: Path) -> None:
    """Take all screenshots of a model that predicts placements."""
    shoot = partial(take, browser, address, folder)
    shoot("placement", "draw", slanted, **DESKTOP)
    shoot("sliders", "pose", turned, **DESKTOP)
    shoot("views", "views", slanted, **DESKTOP)
    shoot("angle", "transform", angle, **DESKTOP)


def take(
    browser: Any,
    address: str,
    folder: Path,
    name: str,
    panel: str,
    prepare: Callable[[Any], None],
    whole: bool = True,
    **settings: Any,
) -> None:
    """Take one screenshot of a panel, after `prepare` has changed the page."""
    context = browser.new_context(reduced_motion="reduce", **settings)
    page = context.new_page()
    page.goto(f"{address}#{panel}")
    page.wait_for_selector("#verdict[data-winner]", state="attached")
    prepare(page)
    settle(page)
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.screenshot(path=folder / f"explorer-{name}.png", full_page=whole)
    context.close()


def three(page: Any) -> None:
    draw(page, THREE)
    page.wait_for_selector('#verdict[data-winner="3"]')


def example(page: Any, name: str) -> None:
    page.get_by_role("button", name=name).first.click()
    page.wait_for_selector(f'#verdict[data-winner="{name[0]}"]')


def sweep(page: Any) -> None:
    three(page)
    page.get_by_role("button", name="Sweep").click()
    page.wait_for_selector(".strip")


def pair(page: Any) -> None:
    page.wait_for_selector("#pair-first[src^=data], #overlap-absent:visible")


def turn(page: Any) -> None:
    three(page)
    page.wait_for_selector("#curve-cnn polyline")
    page.locator("#knob-rotate").fill("30")
    page.locator("#knob-shift_x").fill("1.5")


def shared(page: Any) -> None:
    page.wait_for_selector(".ghost.house")
    page.get_by_role("button", name="Shared triangle").click()
    page.wait_for_selector(".ghost.boat")
    page.locator("#shapes-iteration").fill("2")


def slanted(page: Any) -> None:
    draw_example(page, 6, 1, share=1 / 0.9)
    page.wait_for_selector('#verdict[data-winner="6"]')


def turned(page: Any) -> None:
    slanted(page)
    settle(page)
    page.locator("#part-angle").fill("40")


def angle(page: Any) -> None:
    slanted(page)
    page.wait_for_selector("#curve-read polyline.strong")
    settle(page)
    page.locator("#knob-rotate").fill("30")


if __name__ == "__main__":
    main()
