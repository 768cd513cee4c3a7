"""The Pose, Routing, Overlap and Transform panels."""

from __future__ import annotations

import time

import numpy as np
import pytest
from driver import SEVEN, THREE, draw, expect, settle

from torchcaps.models import shipped_models


def source(page, selector):
    return page.get_attribute(selector, "src")


def becomes(page, selector, other, same=False):
    """Wait until an image differs from `other`, or (same) equals it."""
    found = expect(page.locator(selector))
    (found.to_have_attribute if same else found.not_to_have_attribute)("src", other)


def heat(page):
    return page.locator("#heat canvas").evaluate("(canvas) => canvas.toDataURL()")


def bars(page, host):
    return [float(text) for text in page.locator(f"{host} .value").all_inner_texts()]


def test_a_slider_changes_the_reconstruction_and_reset_undoes_it(open_page):
    page = open_page("pose")
    becomes(page, "#pose-redrawn", "static/blank.svg")
    first = source(page, "#pose-redrawn")
    expect(page.locator("#pose-sliders input")).to_have_count(16)
    page.locator("#pose-4").fill("0.25")
    becomes(page, "#pose-redrawn", first)
    page.get_by_role("button", name="Reset").click()
    becomes(page, "#pose-redrawn", first, same=True)
    assert page.input_value("#pose-4") == "0"


def test_sliders_are_named_by_their_meaning(open_page):
    page = open_page("pose")
    becomes(page, "#pose-redrawn", "static/blank.svg")
    described = page.evaluate("fetch('api/model').then((answer) => answer.json())")["models"][0]
    names = page.locator("#pose-sliders .meaning").all_inner_texts()
    meanings = described["meanings"]
    known = [meanings and meanings[5][dimension]["name"] for dimension in range(16)]  # the greeting is a 5
    assert names == [name or f"dimension {dimension + 1}" for dimension, name in enumerate(known)]


def test_the_sweep_shows_every_dimension(open_page):
    page = open_page("pose")
    becomes(page, "#pose-redrawn", "static/blank.svg")
    page.get_by_role("button", name="Sweep").click()
    strip = page.locator(".strip")
    expect(strip).to_be_visible()
    assert strip.evaluate("(image) => image.decode().then(() => [image.naturalWidth, image.naturalHeight])") == [
        308,
        448,
    ]
    expect(page.locator(".sweep li")).to_have_count(16)
    before = source(page, "#pose-redrawn")
    box = strip.bounding_box()
    strip.click(position={"x": box["width"] * 10.5 / 11, "y": box["height"] * 2.5 / 16})  # third row, last column
    expect(page.locator("#pose-2")).to_have_value("0.25")
    becomes(page, "#pose-redrawn", before)


def test_the_slider_selects_the_iteration(open_page):
    page = open_page("routing")
    expect(page.locator("#iteration-value")).to_have_text("3 of 10")
    seen = []
    for iteration in (3, 2, 1):
        page.locator("#iteration").fill(str(iteration))
        expect(page.locator("#iteration-value")).to_have_text(f"{iteration} of 10")
        seen.append((bars(page, "#routing-classes"), heat(page)))
    assert seen[0][0][5] > seen[1][0][5] > seen[2][0][5]  # the winner grows with every iteration
    assert len({picture for _, picture in seen}) == 3
    label = page.locator("#entropy svg").get_attribute("aria-label")
    entropies = [float(word) for word in label.split(": ")[1].split(";")[0].split(", ")]
    assert entropies[0] >= entropies[1] > entropies[2]


def test_a_class_shows_its_support_and_a_part_its_votes(open_page):
    page = open_page("routing")
    expect(page.locator("#heat-title")).to_have_text("Support for 5")
    winner = heat(page)
    page.locator("#routing-classes button").nth(3).hover()
    expect(page.locator("#heat-title")).to_have_text("Support for 3")
    assert heat(page) != winner
    page.locator("#heat-title").hover()
    expect(page.locator("#heat-title")).to_have_text("Support for 5")
    assert heat(page) == winner

    page.locator("#places button").nth(12).click()
    expect(page.locator("#part-title")).to_contain_text("row 2, column 3")
    page.locator("#types button").nth(6).click()
    expect(page.locator("#part-title")).to_contain_text("type 7 in row 2, column 3")
    rows = page.locator("#votes tbody tr")
    couplings = [float(rows.nth(row).locator(".number").first.inner_text()) for row in range(10)]
    assert sum(couplings) == pytest.approx(1, abs=0.06)  # shown with two decimals
    canvas = page.locator("#heat canvas")
    canvas.hover(position={"x": 5, "y": 5})
    expect(page.locator("#part-title")).to_contain_text("row 1, column 1")


@pytest.mark.skipif(
    "capsnet-multimnist" not in shipped_models(), reason="weights for overlapping digits are not shipped"
)
def test_two_digits_give_two_reconstructions(open_page):
    page = open_page("overlap")
    expect(page.locator("#pair-verdict")).to_have_text("A 2 and a 7.")
    page.locator("#panel-overlap").get_by_role("button", name="Clear").click()
    expect(page.locator("#pair-verdict")).to_contain_text("Draw two digits")
    draw(page, THREE, "#pair-pad")
    page.get_by_label("Second digit").check()
    page.locator("#pair-examples").get_by_role("button", name="0, upright").click()
    expect(page.locator("#pair-verdict")).to_have_text("A 3 and a 0.")
    first, second, missing = (source(page, f"#pair-{name}") for name in ("first", "second", "missing"))
    assert len({first, second, missing}) == 3
    expect(page.locator("#probe-text")).to_contain_text("the 3 explains")
    here = page.inner_text("#probe-text")
    page.locator("#probe").press("ArrowLeft")
    expect(page.locator("#probe-text")).not_to_have_text(here)
    asked = source(page, "#other-picture")
    page.locator("#other").get_by_role("button", name="8").click()
    expect(page.locator("#other-note")).to_contain_text("8, length")
    becomes(page, "#other-picture", asked)


@pytest.mark.skipif(
    "capsnet-multimnist" not in shipped_models(), reason="weights for overlapping digits are not shipped"
)
@pytest.mark.parametrize("layer", [0, 1])
def test_one_digit_is_one_digit(open_page, layer):
    page = open_page("overlap")
    expect(page.locator("#pair-verdict")).to_have_text("A 2 and a 7.")
    page.locator("#panel-overlap").get_by_role("button", name="Clear").click()
    page.locator(f"#layer-{layer}").check()
    draw(page, THREE, "#pair-pad")
    verdict = page.locator("#pair-verdict")
    expect(verdict).to_have_text("A 3; no second digit found.")
    settle(page)
    here, other = (("first", "second"), ("second", "first"))[layer]
    expect(page.locator(f"#pair-{here}-name")).to_contain_text("a 3, length 0.")
    expect(page.locator(f"#pair-{other}-name")).to_contain_text("no second digit: ")
    expect(page.locator(f"#pair-{other}")).to_have_attribute("src", "static/blank.svg")
    expect(page.locator("#pair-bars .bar[data-kind]:not([data-kind=''])")).to_have_count(1)
    expect(page.locator("#probe-text")).to_contain_text("the 3 explains")
    for index in (0, 4, 6, 8, 15):
        page.locator("#pair-examples button").nth(index).click()
        expect(verdict).to_have_text(f"{'An' if index == 8 else 'A'} {index % 10}; no second digit found.")
    page.locator(f"#layer-{1 - layer}").check()
    page.locator("#pair-examples button").nth(3).click()
    expect(verdict).not_to_contain_text("no second digit")  # a second one that is there is found


@pytest.mark.skipif(
    "capsnet-multimnist" not in shipped_models(), reason="weights for overlapping digits are not shipped"
)
def test_what_a_second_reconstruction_adds(open_page):
    page = open_page("overlap")
    added = """async ([drawn, one, two]) => {
      const { addedBySecond } = await import("/static/pixels.js");
      return addedBySecond(drawn, [one, two]);
    }"""
    drawn, left, right = [1, 1, 0, 0], [1, 0, 0, 0], [0, 0.5, 0, 0]
    assert page.evaluate(added, [drawn, left, right]) == {"best": 0, "added": pytest.approx(0.375)}  # 1 → 0.25, of 2
    assert page.evaluate(added, [drawn, right, left]) == {"best": 1, "added": pytest.approx(0.375)}
    assert page.evaluate(added, [drawn, left, left])["added"] == 0
    assert page.evaluate(added, [drawn, left, [0, 0, 1, 0]])["added"] == -0.5


def test_without_a_network_for_overlap_a_message_is_shown(open_page, browser):
    page = open_page("draw")

    def without(route):
        answer = route.fetch().json()
        answer["models"] = [model for model in answer["models"] if model["role"] != "overlap"]
        route.fulfill(json=answer)

    page.route("**/api/model", without)
    page.reload()
    page.get_by_role("tab", name="Overlap").click()
    expect(page.locator("#overlap-absent")).to_have_text(
        "This panel needs a network trained on overlapping digits; none is served."
    )
    expect(page.locator("#overlap-present")).to_be_hidden()


def test_a_drawing_is_rotated_by_slider_and_by_handle(open_page):
    page = open_page("transform")
    expect(page.locator("#curve-capsules polyline")).to_have_count(10)
    expect(page.locator("#curve-cnn polyline")).to_have_count(10)
    expect(page.locator("#transform-class")).to_have_text("a 5")
    upright = source(page, "#stage-picture")
    curve = page.locator("#curve-capsules .strong").first.get_attribute("points")
    page.locator("#knob-rotate").fill("40")
    becomes(page, "#stage-picture", upright)
    assert (
        page.locator("#curve-capsules .strong").first.get_attribute("points") == curve
    )  # the x-axis of the curve: only the cursor moves
    page.locator("#knob-shear").fill("0.4")
    expect(page.locator("#curve-capsules .strong").first).not_to_have_attribute("points", curve)
    page.get_by_role("button", name="Reset").click()
    becomes(page, "#stage-picture", upright, same=True)

    box = page.locator("#stage svg").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    handle = page.locator(".handle.rotate").bounding_box()
    page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
    page.mouse.down()
    page.mouse.move(middle[0] - 80, middle[1], steps=6)  # a quarter to the left
    page.mouse.up()
    expect(page.locator("#knob-rotate")).to_have_value("90")
    becomes(page, "#stage-picture", upright)
    page.locator("#along-scale").check()
    expect(page.locator("#curve-cnn .axis")).to_have_text("scale")


def test_the_frame_moves_as_the_drawing_does(open_page):
    """The frame's transformation maps the ink of the drawing onto ink of the transformed image."""
    page = open_page("transform")
    draw(page, SEVEN)
    settle(page)
    expect(page.locator("#transform-note")).to_contain_text("Class 7:")
    before, square = picture_and_frame(page)
    for name, value in (("rotate", 70), ("shift_x", 3), ("shift_y", -2), ("scale", -0.4), ("shear", 0.5)):
        shown = source(page, "#stage-picture")
        page.locator(f"#knob-{name}").fill(str(value))
        becomes(page, "#stage-picture", shown)
    settle(page)
    after, frame = picture_and_frame(page)
    change, *_ = np.linalg.lstsq(np.column_stack([square, np.ones(4)]), frame, rcond=None)
    rows, columns = (before > 0.9).nonzero()
    moved = np.column_stack([columns + 0.5, rows + 0.5, np.ones(len(rows))]) @ change
    x, y = np.floor(moved).astype(int).T
    inside = (x >= 0) & (x < 28) & (y >= 0) & (y < 28)
    assert inside.mean() > 0.8
    assert (after[y[inside], x[inside]] > 0.4).mean() > 0.95


def picture_and_frame(page):
    """The image between the handles as (28, 28) in [0, 1], and the frame's corners (x, y)."""
    greys = """async () => {
      const { greys } = await import("/static/pixels.js");
      return Array.from(await greys(document.getElementById("stage-picture").src));
    }"""
    corners = page.locator("#stage polygon").get_attribute("points").split()
    frame = np.array([[float(number) for number in corner.split(",")] for corner in corners])
    return np.array(page.evaluate(greys)).reshape(28, 28), frame


def slow(page, path, seconds=0.4):
    """Delay every request to a path."""

    def later(route):
        time.sleep(seconds)
        route.continue_()

    page.route(path, later)


def count(page, path):
    """A list to which the body of every request to a path is appended."""
    sent = []
    page.on("request", lambda request: path in request.url and sent.append(request.post_data_json))
    return sent


def test_a_position_chosen_before_the_first_response_is_requested_once(open_page):
    page = open_page()
    settle(page)
    sent = count(page, "api/routing")
    slow(page, "**/api/routing")
    page.get_by_role("tab", name="Routing").click()
    page.locator("#places button").nth(12).click()
    expect(page.locator("#part-title")).to_contain_text("row 2, column 3")
    settle(page)
    page.wait_for_timeout(500)
    assert len(sent) <= 3
    assert sent[-1]["part"]["row"] == 1


def test_a_second_click_or_a_new_drawing_unpins_a_class(open_page):
    page = open_page("routing")
    title = page.locator("#heat-title")
    expect(title).to_have_text("Support for 5")
    three = page.locator("#routing-classes button").nth(3)
    for expected in ("Support for 3", "Support for 5", "Support for 3"):
        three.click()
        title.hover()
        expect(title).to_have_text(expected)
    draw(page, SEVEN)
    expect(title).to_have_text("Support for 7")


def test_the_tab_key_reaches_the_selected_items(open_page):
    page = open_page("routing")
    expect(page.locator("#part-title")).to_contain_text("Part of type")
    words = page.inner_text("#part-title").replace(",", "").split()
    kind, row, column = (int(words[words.index(word) + 1]) for word in ("type", "row", "column"))
    stops = [page.locator(f"{host} [tabindex='0']") for host in ("#routing-classes", "#places", "#types")]
    for stop in stops:
        expect(stop).to_have_count(1)
    assert stops[0].inner_text().startswith("5")
    assert stops[1].get_attribute("aria-label") == f"row {row}, column {column}"
    assert stops[2].get_attribute("aria-label") == f"type {kind}"
    stops[0].focus()
    page.keyboard.press("Tab")
    expect(page.locator("#heat-title")).to_have_text("Support for 5")  # moving the focus pins nothing


def test_the_curve_is_that_of_the_last_setting(open_page):
    page = open_page("transform")
    curve = page.locator("#curve-capsules .strong").first
    expect(curve).to_be_attached()
    settle(page)
    first = curve.get_attribute("points")
    slow(page, "**/api/transform")
    page.locator("#along-scale").check()
    page.wait_for_timeout(100)
    page.locator("#along-rotate").check()
    settle(page)
    expect(page.locator("#curve-cnn .axis")).to_have_text("rotation")
    page.locator("#knob-shear").fill("0.6")
    page.wait_for_timeout(100)
    page.get_by_role("button", name="Reset").click()
    settle(page)
    expect(curve).to_have_attribute("points", first)


def test_clearing_the_drawing_clears_all_panels(open_page):
    page = open_page("pose")
    becomes(page, "#pose-redrawn", "static/blank.svg")
    page.get_by_role("button", name="Sweep").click()
    expect(page.locator(".strip")).to_be_visible()
    page.get_by_role("tab", name="Routing").click()
    expect(page.locator("#part-title")).to_contain_text("row")
    page.get_by_role("button", name="Clear").first.click()
    expect(page.locator("#heat-title")).to_have_text("Support")
    expect(page.locator("#part-title")).to_have_text("One part")
    expect(page.locator("#places [aria-pressed=true], #types [aria-pressed=true]")).to_have_count(0)
    page.get_by_role("tab", name="Pose").click()
    expect(page.locator(".strip")).to_have_count(0)


def test_a_very_long_stroke_can_be_arranged(page):
    """As many points as in an hour of drawing."""
    box = page.evaluate("""async () => {
      const { arranged } = await import("/static/pair.js");
      const points = Array.from({ length: 300_000 }, (_, i) => [(i % 100) / 100, (i % 70) / 100, 1]);
      return arranged([{ layer: 0, width: 0.1, points }])[0].points.length;
    }""")
    assert box == 300_000


@pytest.mark.skipif("capsnet-multimnist" not in shipped_models(), reason="weights for pairs are not shipped")
def test_a_network_for_pairs_can_be_the_main_model(open_page):
    page = open_page("draw")

    def alone(route):
        answer = route.fetch().json()
        (pairs,) = (model for model in answer["models"] if model["pairs"])
        route.fulfill(json={"default": pairs["name"], "models": [{**pairs, "role": "main"}]})

    page.route("**/api/model", alone)
    page.reload()
    page.get_by_role("tab", name="Overlap").click()
    expect(page.locator("#pair-verdict")).to_have_text("A 2 and a 7.")
