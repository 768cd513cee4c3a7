"""The first panel: strokes in, bars and pictures out."""

from __future__ import annotations

import base64
import io

import pytest
from driver import SEVEN, THREE, draw, touch
from PIL import Image, ImageDraw

expect = pytest.importorskip("playwright.sync_api").expect

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
    """A photograph of a digit: dark ink on white paper."""
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
    wins(page, 5)  # the page greets with a digit, which makes way
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
    assert page.evaluate("scrollY") == 0  # a finger on the pad draws, and does not scroll


def test_answers_come_while_the_pen_is_down(page):
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
    assert page.evaluate(INK, page.get_attribute("#draw-seen", "src")) > 1.2 * page.evaluate(INK, thin)


def test_every_example_is_what_it_says(page):
    examples = page.locator("#examples button")
    assert examples.count() == 30
    for index in range(30):
        examples.nth(index).click()
        wins(page, index % 10)
        assert examples.nth(index).get_attribute("aria-label").startswith(f"{index % 10}, ")


def test_a_file_is_chosen_or_dropped(page):
    wins(page, 5)
    page.set_input_files("#pad-file", {"name": "seven.png", "mimeType": "image/png", "buffer": written(SEVEN)})
    wins(page, 7)
    page.evaluate(DROP, [base64.b64encode(written(THREE)).decode(), "three.png", "image/png"])
    wins(page, 3)
    assert page.locator("#message").inner_text() == ""


@pytest.mark.parametrize(("name", "content"), [("notes.txt", b"no picture"), ("broken.png", written(THREE)[:60])])
def test_a_bad_file_is_said_and_changes_nothing(page, name, content):
    wins(page, 5)
    page.evaluate(DROP, [base64.b64encode(content).decode(), name, "image/png"])
    expect(page.locator("#message")).to_contain_text(f"“{name}” is not a picture that can be read.")
    wins(page, 5)
    draw(page, SEVEN)
    wins(page, 7)
    expect(page.locator("#message")).to_be_empty()
