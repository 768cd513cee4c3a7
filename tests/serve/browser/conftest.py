"""A server and a browser for all tests, and a page for each test that must cause no browser errors."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest
from driver import browsing, chromium, serving

# Collects violations of the content security policy, which the browser does not always write to the console.
WATCH = """window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => violations.push(event.violatedDirective + " " + event.blockedURI));"""


def slow_down(devtools):
    """Emulate a slow machine with a slow connection, to find tests that do not wait."""
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
def expected_errors():
    """Parts of the browser errors that a test expects."""
    return []


@pytest.fixture
def open_page(server, browser, expected_errors):
    """open_page("draw", viewport=…, …) → a page. Afterwards checks for browser errors and requests to other hosts."""
    opened = []

    def visit(panel="draw", path="/", **settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        context.set_default_timeout(15_000)
        page = context.new_page()
        errors, urls = [], []
        page.add_init_script(WATCH)
        if os.environ.get("TORCHCAPS_SLOW_BROWSER"):
            slow_down(context.new_cdp_session(page))
        page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: urls.append(request.url))
        page.goto(f"{server}{path}" + (f"#{panel}" if path == "/" else ""))
        if path == "/":  # the page first fetches the models
            page.wait_for_selector("body[data-panel]")
        opened.append((context, page, errors, urls))
        return page

    yield visit
    for context, page, errors, urls in opened:
        errors += page.evaluate("window.violations")
        foreign = {
            url for url in urls if not url.startswith("data:") and urlsplit(url).netloc != urlsplit(server).netloc
        }
        context.close()
        assert not [text for text in errors if not any(part in text for part in expected_errors)]
        assert not foreign


@pytest.fixture
def page(open_page):
    return open_page()
