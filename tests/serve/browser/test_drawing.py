"""The Draw panel: strokes in, bars and images out."""

from __future__ import annotations

import base64
import io

import pytest
from driver import SEVEN, THREE, draw, expect, settle, touch
from PIL import Image, ImageDraw

DROP = """([bytes, name, type]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, { type }));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""

INK = """async (source) => {
  const { greys } = await import("/static/pixels.js");
  return (await greys(source)).reduce((sum, grey) => sum + grey);
}"""


def written(strokes):
    """An image of a digit as a PNG: dark ink on white paper."""
    image = Image.new("L", (300, 300), 250)
    for stroke in strokes:
        ImageDraw.Draw(image).line([(300 * x, 300 * y) for x, y in stroke], fill=20, width=26, joint="curve")
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def wins(page, digit):
    expect(page.locator("#verdict")).to_have_attribute("data-winner", str(digit))


def values(page):
    return [float(text) for text in page.locator("#draw-bars .value").all_inner_texts()]


def test_a_three_drawn_with_the_mouse(page):
    wins(page, 5)  # the greeting, which the first stroke removes
    greeting = page.get_attribute("#draw-redrawn", "src")
    draw(page, THREE)
    wins(page, 3)
    expect(page.locator("#draw-bars .bar").nth(3)).to_have_attribute("data-kind", "won")
    lengths = values(page)
    assert lengths.index(max(lengths)) == 3
    assert lengths[3] > 0.5 > lengths[5]
    assert page.get_attribute("#draw-redrawn", "src") != greeting
    pictures = [page.get_attribute(f"#draw-{name}", "src") for name in ("seen", "redrawn", "missing")]
    assert len(set(pictures)) == 3
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    size = page.locator("#draw-redrawn").evaluate("(image) => [image.naturalWidth, image.naturalHeight]")
    assert size == [28, 28]


def test_a_seven_drawn_with_a_finger(open_page):
    page = open_page(has_touch=True, viewport={"width": 360, "height": 740})
    wins(page, 5)
    touch(page, SEVEN)
    wins(page, 7)
    assert page.evaluate("scrollY") == 0  # drawing does not scroll the page


def test_predictions_update_during_a_stroke(page):
    wins(page, 5)
    box = page.locator("#pad canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40, steps=20)
    wins(page, 1)
    page.mouse.up()


def test_undo_clear_and_brush(page):
    draw(page, THREE)
    wins(page, 3)
    settle(page)  # a part of the stroke may already be classified as 3
    thin = page.get_attribute("#draw-seen", "src")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#verdict")).to_have_text("Draw a digit.")
    assert values(page) == [0] * 10
    page.get_by_role("button", name="Undo").click()
    wins(page, 3)
    page.get_by_role("button", name="Undo").click()
    wins(page, 5)
    page.locator("#pad-brush").fill("0.14")
    page.get_by_role("button", name="Clear").click()
    draw(page, THREE)
    wins(page, 3)
    settle(page)
    assert page.evaluate(INK, page.get_attribute("#draw-seen", "src")) > 1.2 * page.evaluate(INK, thin)


def test_every_example_is_classified_correctly(page):
    examples = page.locator("#examples button")
    expect(examples).to_have_count(30)
    for index in range(30):
        examples.nth(index).click()
        wins(page, index % 10)
        assert examples.nth(index).get_attribute("aria-label").startswith(f"{index % 10}, ")


def test_below_the_chosen_length_no_class_is_predicted(page):
    wins(page, 5)
    expect(page.locator("#tab-views")).to_be_hidden()  # only for networks that predict placements
    longest = page.locator("#draw-bars [data-kind=won]")
    expect(longest).to_have_count(1)
    page.locator("#reject").fill("1")
    expect(page.locator("#verdict")).to_contain_text("None of these. Nearest: 5, length 0.")
    expect(longest).to_have_count(0)
    page.locator("#reject").fill("0")
    expect(page.locator("#verdict")).to_contain_text("This is a 5.")


def test_a_file_is_chosen_or_dropped(page):
    wins(page, 5)
    page.set_input_files("#pad-file", {"name": "seven.png", "mimeType": "image/png", "buffer": written(SEVEN)})
    wins(page, 7)
    page.evaluate(DROP, [base64.b64encode(written(THREE)).decode(), "three.png", "image/png"])
    wins(page, 3)
    assert page.locator("#message").inner_text() == ""


@pytest.mark.parametrize(("name", "content"), [("notes.txt", b"no picture"), ("broken.png", written(THREE)[:60])])
def test_an_invalid_file_shows_an_error_and_changes_nothing(page, name, content):
    wins(page, 5)
    page.evaluate(DROP, [base64.b64encode(content).decode(), name, "image/png"])
    expect(page.locator("#message")).to_contain_text(f"“{name}” cannot be read as an image.")
    wins(page, 5)
    draw(page, SEVEN)
    wins(page, 7)
    expect(page.locator("#message")).to_be_empty()


def test_a_stroke_ended_from_the_keyboard_stays_ended(page):
    """Keys pressed during a stroke break nothing, and the next stroke is complete."""
    wins(page, 5)
    box = page.locator("#pad canvas").bounding_box()
    for key in ("Backspace", "Control+z", "Delete", "Escape", "Space", "ArrowLeft"):
        page.mouse.move(box["x"] + 60, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 90, box["y"] + 90, steps=3)
        page.keyboard.press(key)
        page.mouse.move(box["x"] + 160, box["y"] + 90, steps=3)
        page.mouse.up()
    page.get_by_role("button", name="Clear").click()
    draw(page, THREE)
    wins(page, 3)


def test_clearing_lifts_the_pen_of_the_keyboard(page):
    wins(page, 5)
    page.locator("#pad canvas").press("Space")
    for key in ("ArrowDown", "Delete", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    settle(page)
    expect(page.locator("#verdict")).to_have_text("Draw a digit.")
    expect(page.locator("#pad .pen.down")).to_have_count(0)


def test_the_greeting_is_removed_again_after_undo(page):
    wins(page, 5)
    draw(page, THREE)
    wins(page, 3)
    page.get_by_role("button", name="Undo").click()
    wins(page, 5)
    draw(page, SEVEN)
    wins(page, 7)


def test_browser_shortcuts_are_not_intercepted(page):
    wins(page, 5)
    taken = """(key) => !document.querySelector("#pad canvas").dispatchEvent(
      new KeyboardEvent("keydown", { ...key, bubbles: true, cancelable: true }))"""
    assert page.evaluate(taken, {"key": "ArrowLeft"})
    assert not page.evaluate(taken, {"key": "ArrowLeft", "altKey": True})
    assert not page.evaluate(taken, {"key": "Delete", "ctrlKey": True})


def test_a_file_dropped_on_another_panel_is_opened_in_the_first_panel(open_page):
    page = open_page("overlap")
    expect(page.locator("#pair-verdict")).not_to_be_empty()
    page.evaluate(DROP, [base64.b64encode(b"no picture").decode(), "notes.txt", "image/png"])
    expect(page.locator("#message")).to_be_visible()
    page.get_by_role("button", name="Clear").first.click()
    expect(page.locator("#message")).to_be_empty()
    page.get_by_role("tab", name="Overlap").click()
    page.evaluate(DROP, [base64.b64encode(written(THREE)).decode(), "three.png", "image/png"])
    expect(page.locator("#panel-draw")).to_be_visible()
    wins(page, 3)


def test_a_file_error_is_not_cleared_by_a_pending_response(page):
    wins(page, 5)
    held = []
    page.route("**/api/predict", lambda route: held.append(route))
    with page.expect_request("**/api/predict"):
        page.get_by_role("button", name="7, upright").click()
    page.evaluate(DROP, [base64.b64encode(b"no picture").decode(), "notes.txt", "image/png"])
    expect(page.locator("#message")).to_contain_text("notes.txt")
    held[0].continue_()
    wins(page, 7)
    expect(page.locator("#message")).to_contain_text("notes.txt")
    page.unroute("**/api/predict")
    page.get_by_role("button", name="3, upright").click()
    wins(page, 3)
    expect(page.locator("#message")).to_be_empty()


def test_a_file_dropped_right_after_a_tab_click_is_opened_in_the_first_panel(page):
    wins(page, 5)
    at_once = f"(file) => {{ document.getElementById('tab-overlap').click(); ({DROP})(file); }}"
    page.evaluate(at_once, [base64.b64encode(written(THREE)).decode(), "three.png", "image/png"])
    wins(page, 3)
    expect(page.locator("#panel-draw")).to_be_visible()
