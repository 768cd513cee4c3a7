"""The Shapes panel: parts are placed by mouse, touch and keyboard, and vote for boats and houses."""

from __future__ import annotations

import math

import pytest
from driver import expect, settle
from test_page import press, tab_to

FIELDS = ("x", "y", "angle", "scale")
VERDICTS = {
    "A boat": "A boat.",
    "A house": "A house.",
    "Neither": "Neither a boat nor a house.",
    "Two boats": "Two boats.",
    "Shared triangle": "A boat and two houses.",
    "Neighbours": "Four houses.",
}


@pytest.fixture
def show(open_page):
    """show("A boat", …) → the page with a preset scene and its answer."""

    def opened(preset="A house", **settings):
        page = open_page("shapes", **settings)
        verdict(page, "A house.")
        choose(page, preset)
        return page

    return opened


def choose(page, preset):
    page.get_by_role("button", name=preset, exact=True).click()
    verdict(page, VERDICTS[preset])
    settle(page)


def verdict(page, text):
    expect(page.locator("#shapes-verdict")).to_have_text(text)


def number(text):
    return float(text.replace("−", "-").strip("°×px "))


def poses(page):
    """The numbers in the list of parts, by the part's name."""
    found = {}
    for row in page.locator("#shapes-parts tbody tr").all():
        name = row.locator("th button").get_attribute("aria-label").removeprefix("Select ")
        found[name] = dict(zip(FIELDS, (float(field.input_value()) for field in row.locator("input").all())))
    return found


def table(page, name):
    """The cells of a table, by the name of each row."""
    rows = page.locator(f"#shapes-{name} tbody tr:has(th)").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def on_screen(page, x, y):
    box = page.locator("#shapes-scene").bounding_box()
    return box["x"] + (x + 0.5) * box["width"] / 64, box["y"] + (y + 0.5) * box["height"] / 64


def drag(page, start, end):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=8)
    page.mouse.up()


def handle(page, name):
    box = page.locator(f"#shapes-scene .handle.{name} .reach").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def sail_of(page, preset="A house"):
    """Where the triangle must go to turn the house of a preset into a boat."""
    choose(page, "A boat")
    boat = poses(page)
    choose(page, preset)
    house = poses(page)
    offset = {field: boat["triangle 2"][field] - boat["rectangle 1"][field] for field in ("x", "y")}
    assert boat["triangle 2"]["angle"] == 135
    return {field: house["rectangle 1"][field] + offset[field] for field in ("x", "y")}


@pytest.mark.parametrize("preset", VERDICTS)
def test_presets_show_what_they_are_called(show, preset):
    page = show(preset)
    pressed = page.locator("#shapes-presets [aria-pressed=true]")
    expect(pressed).to_have_text(preset)
    if preset != "Shared triangle":
        names = [name.split()[0] for name in table(page, "wholes") if name]
        words = {"A boat": ["boat"], "A house": ["house"], "Two boats": ["boat"] * 2, "Neighbours": ["house"] * 4}
        assert names == words.get(preset, [])
        expect(page.locator(".ghost")).to_have_count(len(names))
        left = "rectangle 1 (100 %), triangle 2 (100 %)." if preset == "Neither" else "nothing."
        expect(page.locator("#shapes-left")).to_have_text(f"Left unexplained: {left}")


def test_a_house_becomes_a_boat_when_its_triangle_is_dragged(show):
    page = show()
    target = sail_of(page)
    before = poses(page)
    roof = before["triangle 2"]
    drag(page, on_screen(page, roof["x"], roof["y"]), on_screen(page, roof["x"] + 10, roof["y"] - 5))
    verdict(page, "Neither a boat nor a house.")
    expect(page.locator("#shapes-presets [aria-pressed=true]")).to_have_count(0)
    moved = poses(page)["triangle 2"]
    assert moved == pytest.approx({**roof, "x": roof["x"] + 10, "y": roof["y"] - 5}, abs=0.3)
    assert poses(page)["rectangle 1"] == before["rectangle 1"]
    top, middle = handle(page, "turn"), on_screen(page, moved["x"], moved["y"])
    reach, angle = math.dist(top, middle), math.radians(90 + 135)
    drag(page, top, (middle[0] + reach * math.cos(angle), middle[1] - reach * math.sin(angle)))
    drag(page, middle, on_screen(page, target["x"], target["y"]))
    verdict(page, "A boat.")
    assert poses(page)["triangle 2"]["angle"] == pytest.approx(135, abs=2)
    assert list(table(page, "wholes")) == ["boat"]
    expect(page.locator(".ghost.boat")).to_have_count(1)
    expect(page.locator(".ghost.house")).to_have_count(0)


def test_a_part_of_another_size_belongs_to_no_whole(show):
    page = show()
    page.locator("#shapes-scene .shape").first.click()
    corner = handle(page, "scale")
    body = poses(page)["rectangle 1"]
    middle = on_screen(page, body["x"], body["y"])
    drag(page, corner, [m + 0.6 * (c - m) for c, m in zip(corner, middle)])
    verdict(page, "Neither a boat nor a house.")
    assert poses(page)["rectangle 1"]["scale"] == pytest.approx(1.2, abs=0.05)
    assert number(table(page, "gaps")["house"][2]) == pytest.approx(2 / 1.2, abs=0.1)


def test_everything_works_by_keyboard(show):
    page = show()
    target = sail_of(page)
    roof = poses(page)["triangle 2"]
    tab_to(page, "#tab-shapes")
    tab_to(page, ".shape")
    expect(page.locator("#shapes-parts tr.chosen input").first).to_have_attribute("aria-label", "Rectangle 1: x")
    page.keyboard.press("Tab")
    triangle = page.locator(".shape").nth(1)
    expect(triangle).to_be_focused()
    assert (
        page.evaluate("getComputedStyle(document.activeElement.querySelector('polygon')).stroke")
        == "rgb(116, 192, 252)"
    )
    right, down = (round(target[field] - roof[field]) for field in ("x", "y"))
    press(page, f"{'Right' if right > 0 else 'Left'} {abs(right)}, {'Down' if down > 0 else 'Up'} {abs(down)}, [ 27")
    verdict(page, "A boat.")
    moved = poses(page)["triangle 2"]
    assert moved == {"x": roof["x"] + right, "y": pytest.approx(roof["y"] + down), "angle": 135, "scale": 2}
    label = f"Triangle 2: x {moved['x']:.1f}, y {moved['y']:.1f}, angle 135°, scale 2.00"
    expect(triangle).to_have_attribute("aria-label", label)
    expect(page.locator("#shapes-status")).to_have_text(f"{label}.")
    press(page, "], -, +, +, Shift+ArrowLeft")
    after = poses(page)["triangle 2"]
    assert after["x"] == pytest.approx(moved["x"] - 0.2, abs=0.06)
    assert (after["angle"], after["scale"]) == (130, 2.1)
    press(page, "Delete")
    verdict(page, "Neither a boat nor a house.")
    expect(page.locator(".shape")).to_have_count(1)
    expect(page.locator(".shape").first).to_be_focused()
    expect(page.locator("#shapes-status")).to_have_text("Removed triangle 2.")
    press(page, "Delete")
    verdict(page, "Place a rectangle and a triangle.")
    expect(page.locator("#shapes-add-rectangle")).to_be_focused()
    press(page, "Enter")
    expect(page.locator(".shape").first).to_be_focused()


def test_numbers_can_be_typed(show):
    page = show()
    field = page.get_by_label("Triangle 2: angle", exact=True)
    field.fill("180")
    verdict(page, "Neither a boat nor a house.")
    field.fill("")
    field.press("Tab")
    expect(field).to_have_value("-180")  # the same, within half a turn
    field.fill("4")
    verdict(page, "A house.")
    x = page.get_by_label("Rectangle 1: x", exact=True)
    x.fill("700")  # out of range, and left out
    x.press("Tab")
    expect(x).to_have_value("32")
    verdict(page, "A house.")


def test_parts_are_added_up_to_the_limit_and_removed(show):
    page = show()
    for kind in ["rectangle", "triangle"] * 11:
        page.locator(f"#shapes-add-{kind}").click()
    expect(page.locator(".shape")).to_have_count(24)
    expect(page.locator("#shapes-full")).to_be_visible()
    expect(page.locator("#shapes-add-triangle")).to_be_disabled()
    settle(page)
    expect(page.locator("#shapes-message")).to_be_empty()
    page.get_by_role("button", name="Remove rectangle 1", exact=True).click()
    expect(page.locator(".shape")).to_have_count(23)
    expect(page.locator("#shapes-add-triangle")).to_be_enabled()
    page.locator("#shapes-add-triangle").click()
    assert "triangle 1" in poses(page)  # the number that was free


def test_a_shared_triangle_is_explained_away_after_the_first_iteration(show):
    page = show("Shared triangle")
    slider = page.locator("#shapes-iteration")
    presences, left = [], []
    for iteration in range(1, 6):
        slider.fill(str(iteration))
        expect(page.locator("#shapes-iteration-value")).to_have_text(f"{iteration} of 5")
        wholes = table(page, "wholes")
        assert all(number(wholes[name][0]) > 0.99 for name in ("house 1", "house 2", "boat 1"))
        presences.append(number(wholes["boat 2"][0]))
        left.append(page.locator("#shapes-left").inner_text())
    assert presences[0] > 0.9
    assert max(presences[1:]) < 0.1
    assert left[0] == "Left unexplained: nothing."
    assert left[4] == "Left unexplained: rectangle 3 (100 %)."
    expect(page.locator("#shapes-sentence")).to_have_text("Boat 2 is explained away: triangle 2 is part of house 1.")
    assert "house 1: 1.00, 1.00" in page.locator("#shapes-presence svg").get_attribute("aria-label")
    expect(page.locator("#shapes-presence polyline")).to_have_count(4)
    ghosts = page.locator(".ghost")
    expect(ghosts).to_have_count(3)
    slider.fill("1")
    expect(ghosts).to_have_count(4)
    page.get_by_role("button", name="boat 2").click()
    expect(page.locator("#shapes-gaps tbody tr")).to_have_count(2)  # of one pair of parts
    assert table(page, "gaps")["boat"][3] == "agree, but explained away"
    expect(page.locator("#shapes-why")).to_contain_text("another whole has taken triangle 2")
    page.get_by_role("button", name="Remove triangle 2").click()
    verdict(page, "A boat and a house.")


def test_play_shows_the_iterations_one_after_the_other(show):
    page = show("Shared triangle")
    loser = page.locator(".vote-chart.boat .ring[data-presence='1.00']")
    expect(loser).to_have_count(1)
    value, play = page.locator("#shapes-iteration-value"), page.locator("#shapes-play")
    page.evaluate("""() => { window.values = [];
      new MutationObserver(() => values.push(document.getElementById("shapes-iteration-value").textContent[0]))
        .observe(document.getElementById("shapes-iteration-value"), { childList: true }); }""")
    play.click()
    expect(loser).to_have_count(2)
    expect(play).to_have_text("Stop")
    expect(value).to_have_text("5 of 5")
    expect(play).to_have_text("Play")
    expect(loser).to_have_count(1)
    assert page.evaluate("values") == list("12345")
    play.click()
    expect(value).to_have_text("2 of 5")
    play.click()
    expect(play).to_have_text("Play")
    page.wait_for_timeout(1200)
    expect(value).to_have_text("2 of 5")  # it stopped


def test_votes_are_arrows_at_the_voted_pose(show):
    page = show()
    for name in ("boat", "house"):
        expect(page.locator(f".vote-chart.{name} .vote")).to_have_count(3)  # the rectangle votes twice
    expect(page.locator(".vote-chart.house .vote.taken")).to_have_count(2)
    expect(page.locator(".vote-chart.boat .vote.taken")).to_have_count(0)
    page.get_by_role("button", name="Select triangle 2").click()
    expect(page.locator(".vote-chart.house figcaption")).to_have_text("Triangle 2 votes for x 32.0, y 34.0, 0°, ×2.00.")
    expect(page.locator(".vote-chart .vote.chosen")).to_have_count(2)
    arrow = page.locator(".vote-chart.house .vote.chosen path")
    assert arrow.get_attribute("d").startswith("M32.00 34.00L32.00 20.00")  # upwards, twice as long as at scale 1
    page.get_by_label("Triangle 2: angle", exact=True).fill("90")
    expect(page.locator(".vote-chart.house figcaption")).to_contain_text("90°, ×2.00.")
    assert [round(float(v)) for v in arrow.get_attribute("d")[1:].split("M")[0].replace("L", " ").split()][2:] == [
        pytest.approx(value, abs=1) for value in tip_of_a_turned_roof(page)
    ]
    page.get_by_role("button", name="Select rectangle 1").click()
    expect(page.locator(".vote-chart.boat figcaption")).to_contain_text("or, turned by half: ")


def tip_of_a_turned_roof(page):
    """Left of where the triangle votes."""
    words = page.locator(".vote-chart.house figcaption").inner_text()
    x, y = (number(words.split(f"{axis} ")[1].split(",")[0]) for axis in "xy")
    return x - 14, y


def test_the_page_says_why_a_house_is_no_boat(show):
    page = show()
    gaps = table(page, "gaps")
    assert gaps["house"] == ["0.0 px", "0°", "×1.00", "agree"]
    assert gaps["boat"][1:] == ["45°", "×1.00", "do not agree"]
    pixels = number(gaps["boat"][0])
    line = page.locator(".vote-chart.boat .gap")
    ends = [float(line.get_attribute(name)) for name in ("x1", "y1", "x2", "y2")]
    assert math.dist(ends[:2], ends[2:]) == pytest.approx(pixels, abs=0.06)
    assert pixels > 10
    why = f"As parts of a boat, rectangle 1 and triangle 2 vote for wholes {gaps['boat'][0]} and 45° apart."
    expect(page.locator("#shapes-why")).to_contain_text(f"Why is this house not a boat? {why}")
    choose(page, "Neither")
    expect(page.locator("#shapes-why")).to_contain_text("Why neither?")


@pytest.mark.parametrize("preset", VERDICTS)
def test_numbers_of_parts_do_not_overlap(show, preset):
    page = show(preset, viewport={"width": 360, "height": 740})
    if preset == "Neighbours":
        for kind in ["rectangle", "triangle"] * 8:
            page.locator(f"#shapes-add-{kind}").click()
        settle(page)
    boxes = [text.bounding_box() for text in page.locator(".numbers text").all()]
    assert len(boxes) == page.locator(".shape").count()
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = [abs(one[a] + one[s] / 2 - other[a] - other[s] / 2) for a, s in (("x", "width"), ("y", "height"))]
            sizes = [(one[s] + other[s]) / 2 for s in ("width", "height")]
            assert apart[0] >= sizes[0] or apart[1] >= 0.75 * sizes[1]  # a line is higher than its digits


def test_parts_are_dragged_by_touch_without_scrolling(show):
    page = show(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.evaluate("scrollTo(0, 0)")
    roof = poses(page)["triangle 2"]
    places = [on_screen(page, roof["x"] - step, roof["y"] + 2 * step) for step in range(10)]
    finger = page.context.new_cdp_session(page)
    for kind, points in (
        ("touchStart", places[:1]),
        *(("touchMove", [place]) for place in places[1:]),
        ("touchEnd", []),
    ):
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]})
    verdict(page, "Neither a boat nor a house.")
    assert poses(page)["triangle 2"] == pytest.approx({**roof, "x": roof["x"] - 9, "y": roof["y"] + 18}, abs=0.3)
    assert page.evaluate("scrollY") == 0


def test_reduced_motion_is_respected(show):
    duration = "getComputedStyle(document.querySelector('.ring')).transitionDuration.split(',')[0]"
    for motion, expected in (("no-preference", "0.35s"), ("reduce", "0s")):
        assert show(reduced_motion=motion).evaluate(duration) == expected


def test_errors_and_outages_are_shown(show, expected_errors):
    expected_errors += ["status of 422", "net::ERR_FAILED"]
    page = show()
    page.route("**/api/shapes", lambda route: route.fulfill(status=422, json={"detail": "<b>No.</b>"}))
    choose_again = page.get_by_role("button", name="A boat", exact=True)
    choose_again.click()
    expect(page.locator("#shapes-message")).to_have_text("<b>No.</b>")
    page.unroute("**/api/shapes")
    page.route("**/api/shapes", lambda route: route.abort())
    choose_again.click()
    expect(page.locator("#banner")).to_be_visible()
    page.unroute("**/api/shapes")
    verdict(page, "A boat.")  # asked again
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#shapes-message")).to_be_empty()
