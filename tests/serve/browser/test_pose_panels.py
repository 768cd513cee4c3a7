"""The page with a network that predicts placements."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from driver import THREE, draw, draw_example, expect, serving, settle
from PIL import Image, ImageDraw
from test_drawing import DROP
from test_page import CONTRASTS, OVERFLOWING, press, tab_to

PANELS = ("draw", "pose", "views", "transform", "shapes")
STAR = [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)], [(0.5, 0.1), (0.5, 0.9)]]  # not a digit
GREYS = """async (selector) => {
  const { greys } = await import("/static/pixels.js");
  return Array.from(await greys(document.querySelector(selector).src));
}"""


@pytest.fixture(scope="module")
def server():
    with serving("posecaps-digits") as address:
        yield address


@pytest.fixture
def show(open_page):
    """show("pose", …) → the page with that panel, after all requests have finished."""

    def opened(panel="draw", **settings):
        page = open_page(panel, **settings)
        page.wait_for_selector("#verdict[data-winner]", state="attached")
        settle(page)
        return page

    return opened


def number(text):
    return float(text.replace("−", "-").strip("°×px "))


def placement(page):
    rows = page.locator("#draw-placement > div").all_inner_texts()
    return {name: number(value) for name, value in (row.split("\n") for row in rows)}


def example(page, name):
    """Draw a digit of the page's own, in a style, as large as the training digits."""
    draw_example(page, int(name[0]), ("upright", "slanted").index(name[3:]), share=1 / 0.9)
    expect(page.locator("#verdict")).to_have_attribute("data-winner", name[0])
    settle(page)


def greys(page, selector):
    return np.array(page.evaluate(GREYS, selector)).reshape(16, 16)


def test_the_placement_of_the_digit_is_shown(show):
    page = show()
    expect(page.locator("#tab-routing")).to_be_hidden()
    example(page, "6, upright")
    upright = placement(page)
    assert list(upright) == ["angle", "angle spread", "scale", "x", "y", "stroke width"]
    expect(page.locator("#placement-title")).to_have_text("Placement of 6")
    example(page, "6, slanted")
    slanted = placement(page)
    assert slanted["angle"] < upright["angle"] - 5  # slanted to the right: turned clockwise
    pictures = [page.get_attribute(f"#draw-{name}", "src") for name in ("seen", "redrawn", "upright", "missing")]
    assert len(set(pictures)) == 4
    expect(page.locator("#draw-posed .outline")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#draw-posed .outline")).to_be_hidden()
    expect(page.locator("#draw-placement dd").first).to_have_text("–")


def test_a_drawing_keeps_its_position_unless_it_is_centred(show):
    page = show()
    narrow = [[(0.5 + 0.7 * (x - 0.5), y) for x, y in stroke] for stroke in THREE]
    places = []
    for shift in (-0.12, 0.12):
        page.get_by_role("button", name="Clear").click()
        draw(page, [[(x + shift, y) for x, y in stroke] for stroke in narrow])
        expect(page.locator("#verdict")).to_have_attribute("data-winner", "3")
        settle(page)
        places.append(placement(page)["x"])
    assert 2.5 < places[1] - places[0] < 5.5  # 0.24 of 16 pixels
    page.get_by_label("Centre and scale").check()
    settle(page)
    assert abs(placement(page)["x"] - 7.5) < 1.6


def test_a_small_digit_in_a_photograph_is_found_when_it_is_centred(show):
    photo = Image.new("L", (300, 300), 235)
    ImageDraw.Draw(photo).line([(30 + 90 * x, 30 + 90 * y) for x, y in THREE[0]], fill=20, width=11, joint="curve")
    buffer = io.BytesIO()
    photo.save(buffer, "png")
    page = show()
    page.evaluate(DROP, [base64.b64encode(buffer.getvalue()).decode(), "three.png", "image/png"])
    expect(page.locator("#verdict")).to_contain_text("None of these.")
    page.get_by_label("Centre and scale").check()
    expect(page.locator("#verdict")).to_contain_text("This is a 3.")


def test_none_of_these_is_shown_and_reject_overrides_the_threshold(show):
    page = show()
    draw(page, STAR)
    verdict, won = page.locator("#verdict"), page.locator("#draw-bars [data-kind=won]")
    expect(verdict).to_contain_text("None of these. Nearest:")
    settle(page)
    expect(won).to_have_count(0)
    expect(page.locator("#placement-title")).to_contain_text("Placement of the nearest class")
    expect(page.locator("#draw-error")).to_contain_text("the answer is “none of these”")
    page.locator("#reject").fill("0.1")
    expect(verdict).not_to_contain_text("None of these")
    expect(won).to_have_count(1)
    page.locator("#reject").fill("0.95")
    expect(verdict).to_contain_text("None of these")
    expect(page.locator("#draw-error")).not_to_contain_text("Familiarity")


def test_the_angle_slider_rotates_the_reconstruction(show):
    page = show("pose")
    example(page, "1, upright")
    asked = []
    page.on("request", lambda request: "api/reconstruct" in request.url and asked.append(request.post_data_json))
    first, upright = greys(page, "#pose-redrawn"), page.get_attribute("#pose-upright", "src")
    read = number(page.locator("[for=part-angle] + output").inner_text())
    for angle in (10, 90):
        page.locator("#part-angle").fill(str(angle))
        settle(page)
        assert asked[-1]["placement"]["angle"] == pytest.approx(read + angle, abs=0.06)
        assert number(page.locator("[for=part-angle] + output").inner_text()) == pytest.approx(read + angle, abs=0.06)
    quarter = greys(page, "#pose-redrawn")
    turned = (stroke_angle(quarter) - stroke_angle(first)) % 180  # an axis has no direction
    assert turned == pytest.approx(90, abs=12)
    assert page.get_attribute("#pose-upright", "src") == upright
    page.get_by_role("button", name="Reset").click()
    settle(page)
    assert np.abs(greys(page, "#pose-redrawn") - first).max() < 0.01
    page.locator("#part-x").fill("3")
    page.locator("#part-y").fill("-2")
    settle(page)
    moved = greys(page, "#pose-redrawn")
    assert np.abs(moved[:-2, 3:] - first[2:, :-3]).max() < 0.02
    page.locator("#pose-4").fill("0.3")
    settle(page)
    assert page.get_attribute("#pose-upright", "src") != upright  # the capsule changes the upright drawing


def stroke_angle(grey):
    """The direction of the longest axis of the ink, in degrees, counter-clockwise."""
    rows, columns = np.indices(grey.shape)
    x, y = columns - np.average(columns, weights=grey), np.average(rows, weights=grey) - rows
    xx, yy, xy = ((grey * part).sum() for part in (x * x, y * y, x * y))
    return np.degrees(np.arctan2(2 * xy, xx - yy)) / 2


def test_the_sweep_has_a_row_for_each_placement_parameter(show):
    page = show("pose")
    page.get_by_role("button", name="Sweep").click()
    strips = page.locator(".strip")
    expect(strips).to_have_count(5)
    assert page.locator(".sweep p.rows").all_inner_texts() == ["angle", "scale", "x", "y"]
    box = strips.first.bounding_box()
    strips.first.click(position={"x": box["width"] * 10.5 / 11, "y": box["height"] / 2})
    expect(page.locator("#part-angle")).to_have_value("40")


def test_the_map_shows_the_length_in_each_view(show):
    page = show("views")
    example(page, "6, slanted")
    cells = page.locator("#lattice .cells button")
    expect(cells).to_have_count(21)
    expect(page.locator("#lattice-title")).to_have_text("Length of 6 in each view")
    lengths = np.array([number(label.split("length ")[1]) for label in labels(cells)]).reshape(3, 7)
    assert lengths.argmax() % 7 < 3  # slanted to the right: longest in a view turned by less than 0
    cross = page.locator(".cross").evaluate("(e) => [e.style.getPropertyValue('--x'), e.style.getPropertyValue('--y')]")
    assert 0 < float(cross[0]) < 0.5
    cells.nth(20).hover()
    expect(page.locator("#views-caption")).to_contain_text("the view at 45°, ×0.8: length")
    page.locator("#views-classes button").nth(3).click()
    expect(page.locator("#lattice-title")).to_have_text("Length of 3 in each view")
    tab_to(page, "#lattice button")
    press(page, "Home, Right, Down")
    expect(page.locator("#views-caption")).to_contain_text("the view at −30°, ×1: length")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#lattice-title")).to_have_text("Length in each view")


def test_the_picture_of_the_network_has_its_numbers_and_words(show):
    page = show("views")
    model = page.evaluate("fetch('api/model').then((answer) => answer.json())")["models"][0]
    captions = page.locator("#views-network figcaption").evaluate_all("(all) => all.map((each) => each.innerText)")
    numbers = [[int(word) for word in re.findall(r"\d+", caption)] for caption in captions]
    lattice = model["lattice"]
    assert numbers == [
        [16, 16],
        [lattice["searched"], len(lattice["angles"]), len(lattice["scales"])],
        [model["part_types"], model["part_pose"]],
        [10, 16],
    ]
    for each in page.locator("#views-network image").all():
        assert each.get_attribute("href").startswith("data:image/png;base64,")
    radii = page.locator("#views-network .class-dot").evaluate_all("(all) => all.map((dot) => +dot.getAttribute('r'))")
    presence = [float(text) for text in page.locator("#views-classes .value").all_inner_texts()]
    assert radii == pytest.approx([1 + 9 * value**0.5 for value in presence], abs=0.3)
    tab_to(page, "#views-network .word")
    expect(page.locator(".meaning-tip:visible")).to_contain_text("The image turned and scaled.")
    press(page, "Escape")
    expect(page.locator(".meaning-tip:visible")).to_have_count(0)
    page.get_by_role("button", name="Clear").first.click()
    expect(page.locator("#views-network image[href]")).to_have_count(0)


def labels(cells):
    return [cells.nth(index).get_attribute("aria-label") for index in range(cells.count())]


def test_the_predicted_angle_follows_the_applied_one(show):
    page = show("transform")
    example(page, "5, slanted")
    chart, title = page.locator("#curve-read svg"), page.locator("#curve-read-title")
    expect(title).to_have_text("Predicted angle of 5")
    expect(page.locator("#curve-read polyline.strong").first).to_be_visible()
    expect(page.locator("#curve-read .band")).to_have_count(1)
    expect(page.locator("#curve-cnn")).to_be_hidden()
    before = number(chart.get_attribute("aria-label").split(": ")[1].split(" at ")[0])
    page.locator("#knob-rotate").fill("30")
    settle(page)
    label = chart.get_attribute("aria-label")
    assert label.endswith("at 30°")
    assert number(label.split(": ")[1].split(" at ")[0]) - before == pytest.approx(30, abs=8)
    page.locator("#along-shift_x").check()
    expect(title).to_have_text("Predicted x of 5")
    page.locator("#along-scale").check()
    expect(title).to_have_text("Predicted scale of 5")


def test_without_a_decoder_no_reconstructions_are_shown(show):
    page = show()

    def without(route):
        answer = route.fetch().json()
        answer["models"][0]["decoder"] = False
        route.fulfill(json=answer)

    page.route("**/api/model", without)
    page.reload()
    page.wait_for_selector("#verdict[data-winner]")
    expect(page.get_by_text("This network has no decoder, so it cannot reconstruct the image.")).to_be_visible()
    for name in ("redrawn", "upright", "missing"):
        expect(page.locator(f"#draw-{name}")).to_be_hidden()
    page.get_by_role("tab", name="Pose").click()
    expect(page.get_by_text("This panel needs a decoder, and this network has none.")).to_be_visible()
    expect(page.locator("#pose-parts")).to_be_hidden()
    expect(page.locator("#pose-sliders")).to_be_hidden()


def test_the_panel_of_shapes_is_the_same_for_every_network(show):
    page = show("shapes")
    expect(page.locator("#shapes-verdict")).to_have_text("A house.")
    page.get_by_role("button", name="A boat", exact=True).click()
    expect(page.locator("#shapes-verdict")).to_have_text("A boat.")


def test_the_hash_of_a_missing_panel_shows_the_first_panel(show):
    page = show("routing")
    expect(page.locator("#panel-draw")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_layout_and_contrast_on_a_phone(show, scheme):
    page = show(viewport={"width": 320, "height": 740}, color_scheme=scheme)
    for panel in PANELS:
        page.get_by_role("tab", name=panel).click()
        if panel == "pose" and scheme == "light":
            page.get_by_role("button", name="Sweep").click()
        settle(page)
        assert page.evaluate(OVERFLOWING, 321) == [], panel
        assert page.evaluate("document.documentElement.scrollWidth") == 320, panel
        assert [text for text in page.evaluate(CONTRASTS) if not text["enough"]] == [], panel
