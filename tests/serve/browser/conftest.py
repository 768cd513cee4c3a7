"""A server and a browser for all tests, and a page for each that must end without a complaint."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest
from driver import browsing, chromium, serving

# The browser reports what breaks the page's policy here, whether or not it also writes it to the console.
WATCH = """window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => violations.push(event.violatedDirective + " " + event.blockedURI));"""


def slow_down(devtools):
    """A browser on a weak machine far away, where a test that does not wait for what it looks at fails."""
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": 6})
    devtools.send("Network.enable")
    unlimited = {"downloadThroughput": -1, "uploadThroughput": -1}
    devtools.send("Network.emulateNetworkConditions", {"offline": False, "latency": 150, **unlimited})


def pytest_collection_modifyitems(items):
    if chromium() is None:
        for item in items:
            if "browser" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="no Chromium, or no Playwright to drive it"))


@pytest.fixture(scope="session")
def server():
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    with browsing() as chrome:
        yield chrome


@pytest.fixture
def complaints():
    """What a test expects the browser to complain of, as parts of its words."""
    return []


@pytest.fixture
def open_page(server, browser, complaints):
    """open_page("draw", viewport=…, …) → a page. At the end nothing was complained of, no other host asked."""
    opened = []

    def visit(panel="draw", path="/", **settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        context.set_default_timeout(15_000)
        page = context.new_page()
        said, asked = [], []
        page.add_init_script(WATCH)
        if os.environ.get("TORCHCAPS_SLOW_BROWSER"):
            slow_down(context.new_cdp_session(page))
        page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server}{path}" + (f"#{panel}" if path == "/" else ""))
        if path == "/":  # loaded is not ready: the page first asks for the models
            page.wait_for_selector("body[data-panel]")
        opened.append((context, page, said, asked))
        return page

    yield visit
    for context, page, said, asked in opened:
        said += page.evaluate("window.violations")
        foreign = {
            url for url in asked if not url.startswith("data:") and urlsplit(url).netloc != urlsplit(server).netloc
        }
        context.close()
        assert not [text for text in said if not any(part in text for part in complaints)]
        assert not foreign


@pytest.fixture
def page(open_page):
    return open_page()
