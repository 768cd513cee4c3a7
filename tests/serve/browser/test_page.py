"""The whole page: keyboard only, phones, light and dark themes, server errors and outages."""

from __future__ import annotations

import pytest
from driver import PANELS, SEVEN, draw, expect, settle

from torchcaps.models import shipped_models

# The contrast of all texts with their background; it must be 4.5 : 1, or 3 : 1 for large text.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const read = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    const colour = read(getComputedStyle(element).backgroundColor);
    return colour[3] === 255 || !element.parentElement ? colour : behind(element.parentElement);
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.disabled
    && [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
  return texts.map((e) => {
    const style = getComputedStyle(e);
    const own = luminance(read(e instanceof SVGElement ? style.fill : style.color));
    const paper = luminance(behind(e));
    const contrast = (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05);
    const enough = contrast >= (parseFloat(style.fontSize) >= 24 ? 3 : 4.5);
    return { text: e.textContent.trim().slice(0, 30), contrast, enough };
  });
}"""

OVERFLOWING = """(edge) => [...document.querySelectorAll("main *")]
  .filter((e) => e.checkVisibility() && !e.closest("svg") && e.getBoundingClientRect().right > edge)
  .map((e) => e.outerHTML.slice(0, 80))"""


def ready(page, panel):
    """Wait until a panel shows a prediction."""
    signs = {
        "draw": "#draw-redrawn[src^=data]",
        "pose": "#pose-redrawn[src^=data]",
        "routing": "#votes tbody tr >> nth=9",
        "overlap": "#pair-first[src^=data], #overlap-absent:visible",
        "transform": "#curve-cnn polyline >> nth=9",
        "shapes": ".ghost.house",
    }
    expect(page.locator(signs[panel]).first).to_be_visible()


def winner(page, digit):
    expect(page.locator("#verdict")).to_have_attribute("data-winner", str(digit))


def tab_to(page, selector):
    for _ in range(60):
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the Tab key never reaches {selector}")


def press(page, keys):
    """ "Right 3" is the right arrow key three times."""
    for word in keys.split(","):
        key, _, times = word.strip().partition(" ")
        for _ in range(int(times or 1)):
            page.keyboard.press(f"Arrow{key}" if key in ("Left", "Right", "Up", "Down") else key)


def test_everything_works_by_keyboard(open_page):
    page = open_page()
    winner(page, 5)
    tab_to(page, "#tab-draw")
    tab_to(page, "#pad canvas")
    press(page, "Left 7, Space, Right 13")  # the bar of a 7
    page.keyboard.down("ArrowDown")  # its stem: down, and left with every second step
    for _ in range(8):
        press(page, "Down, Left")
    page.keyboard.up("ArrowDown")
    press(page, "Space")
    winner(page, 7)
    press(page, "Backspace")
    winner(page, 5)
    tab_to(page, "#examples button")
    press(page, "Right 3, Enter")
    winner(page, 3)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # the focus is visible

    page.keyboard.press("Shift+Tab")
    while not page.evaluate("document.activeElement.matches('#tab-draw')"):
        page.keyboard.press("Shift+Tab")
    press(page, "Right")
    ready(page, "pose")
    drawn = page.get_attribute("#pose-redrawn", "src")
    tab_to(page, "#pose-2")
    press(page, "Right 9")
    expect(page.locator("#pose-redrawn")).not_to_have_attribute("src", drawn)

    while not page.evaluate("document.activeElement.matches('#tab-pose')"):
        page.keyboard.press("Shift+Tab")
    press(page, "Right")
    ready(page, "routing")
    tab_to(page, "#iteration")
    press(page, "Left")
    expect(page.locator("#iteration-value")).to_have_text("2 of 10")
    tab_to(page, "#routing-classes button")
    press(page, "End, Up")
    expect(page.locator("#heat-title")).to_have_text("Support for 8")
    tab_to(page, "#places button")
    press(page, "Home, Down, Right")
    expect(page.locator("#part-title")).to_contain_text("row 2, column 2")
    tab_to(page, "#types button")
    press(page, "Home, Right 2")
    expect(page.locator("#part-title")).to_contain_text("type 3 in row 2, column 2")

    while not page.evaluate("document.activeElement.matches('#tab-routing')"):
        page.keyboard.press("Shift+Tab")
    press(page, "Right 2")
    ready(page, "transform")
    picture = page.get_attribute("#stage-picture", "src")
    tab_to(page, "#along-rotate")
    press(page, "Down")
    expect(page.locator("#curve-cnn .axis")).to_have_text("shift x")
    tab_to(page, "#knob-shear")
    press(page, "Right 20")
    expect(page.locator("#stage-picture")).not_to_have_attribute("src", picture)


@pytest.mark.skipif(
    "capsnet-multimnist" not in shipped_models(), reason="weights for overlapping digits are not shipped"
)
def test_two_digits_by_keyboard(open_page):
    page = open_page("overlap")
    ready(page, "overlap")
    tab_to(page, "#pair-examples button")
    press(page, "Home, Right 3, Enter")
    expect(page.locator("#pair-verdict")).to_have_text("A 3 and a 7.")
    while not page.evaluate("document.activeElement.matches('#layer-0')"):
        page.keyboard.press("Shift+Tab")
    press(page, "Right")
    tab_to(page, "#pair-examples button")
    press(page, "Home, Enter")
    expect(page.locator("#pair-verdict")).to_have_text("A 3 and a 0.")


@pytest.mark.parametrize("width", [320, 360])
def test_no_horizontal_scrolling_on_a_phone(open_page, width):
    page = open_page(viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)
    for panel in PANELS:
        page.get_by_role("tab", name=panel).tap()
        ready(page, panel)
        if panel == "pose":
            page.get_by_role("button", name="Sweep").tap()
            expect(page.locator(".strip")).to_be_visible()
        assert page.evaluate(OVERFLOWING, width + 1) == [], panel
        assert page.evaluate("document.documentElement.scrollWidth") == width, panel


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(open_page, scheme):
    page = open_page(color_scheme=scheme)
    for panel in PANELS:
        page.get_by_role("tab", name=panel).click()
        ready(page, panel)
        texts = page.evaluate(CONTRASTS)
        assert len(texts) > 10
        assert [text for text in texts if not text["enough"]] == [], panel


def test_the_theme_follows_the_system_until_one_is_chosen(open_page):
    page = open_page(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    assert dark != light
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(paper) == light
    page.reload()
    assert page.evaluate(paper) == light
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) == dark


def test_reduced_motion_is_respected(open_page):
    duration = "getComputedStyle(document.querySelector('#draw-bars .fill')).transitionDuration"
    for motion, expected in (("no-preference", "0.12s"), ("reduce", "0s")):
        page = open_page(reduced_motion=motion)
        ready(page, "draw")
        assert page.evaluate(duration) == expected


def test_a_tab_clicked_before_the_models_are_loaded_is_shown(open_page):
    page = open_page()
    held = []
    page.route("**/api/model", lambda route: held.append(route))
    page.reload()
    page.get_by_role("tab", name="Pose").click()
    while not held:
        page.wait_for_timeout(20)
    assert page.get_attribute("body", "data-panel") is None
    held[0].continue_()
    ready(page, "pose")


def test_the_page_is_small(open_page, server):
    page = open_page()
    sizes = {}
    page.on("response", lambda response: sizes.update({response.url: response}))
    page.reload(wait_until="networkidle")
    weights = {
        url: len(answer.body()) for url, answer in sizes.items() if "/api/" not in url and url.startswith(server)
    }
    assert f"{server}/static/main.js" in weights
    assert sum(weights.values()) <= 300_000


def test_the_api_viewer_contacts_no_other_host(open_page):
    page = open_page(path="/docs")
    expect(page.get_by_text("/api/predict").first).to_be_visible()


def test_an_unavailable_server_is_shown_and_retried(open_page, expected_errors):
    expected_errors.append("net::ERR_FAILED")
    page = open_page()
    ready(page, "draw")
    for path in ("**/api/*", "**/healthz"):
        page.route(path, lambda route: route.abort())
    draw(page, SEVEN)
    expect(page.locator("#banner")).to_have_text("The server does not respond. Retrying…")
    for path in ("**/api/*", "**/healthz"):
        page.unroute(path)
    winner(page, 7)  # the drawing is sent again
    expect(page.locator("#banner")).to_be_hidden()


def test_sliders_keep_their_values_while_the_server_is_unavailable(open_page, expected_errors):
    expected_errors.append("net::ERR_FAILED")
    page = open_page("pose")
    ready(page, "pose")
    page.locator("#pose-4").fill("0.25")
    settle(page)
    page.route("**/api/*", lambda route: route.abort())
    page.locator("#pose-7").fill("-0.2")
    expect(page.locator("#banner")).to_be_visible()
    page.unroute("**/api/*")
    expect(page.locator("#banner")).to_be_hidden()
    settle(page)
    assert (page.input_value("#pose-4"), page.input_value("#pose-7")) == ("0.25", "-0.2")


def test_a_server_that_times_out_is_unavailable(open_page):
    page = open_page()
    ready(page, "draw")
    page.evaluate(
        "() => { window.usual = AbortSignal.timeout; AbortSignal.timeout = () => usual.call(AbortSignal, 300); }"
    )
    page.route("**/api/predict", lambda route: None)
    draw(page, SEVEN)
    expect(page.locator("#banner")).to_have_text("The server does not respond. Retrying…")
    page.evaluate("() => { AbortSignal.timeout = usual; }")
    page.unroute("**/api/predict")
    winner(page, 7)


def test_error_messages_are_shown_as_text(open_page, expected_errors):
    expected_errors.append("status of 422")
    page = open_page()
    ready(page, "draw")
    page.route("**/api/predict", lambda route: route.fulfill(status=422, json={"detail": "<b>Too strange.</b>"}))
    page.get_by_role("button", name="Clear").click()
    draw(page, SEVEN)
    expect(page.locator("#message")).to_have_text("<b>Too strange.</b>")
    page.unroute("**/api/predict")
    draw(page, [SEVEN[0][:2]])
    expect(page.locator("#message")).to_be_empty()
