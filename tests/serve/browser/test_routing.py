"""The Routing panel: what it says about how much routing decides, its controls, and the picture of the network."""

from __future__ import annotations

import re

import pytest
from driver import SEVEN, draw, expect, serving, settle
from test_page import CONTRASTS, OVERFLOWING, press, tab_to

EXPLAINED = ("part", "vote", "coupling", "iteration", "type", "place", "support", "length", "entropy")


@pytest.fixture
def routing(open_page):
    """routing(…) → the page with the Routing panel, after its first answer."""

    def opened(**settings):
        page = open_page("routing", **settings)
        expect(page.locator("#votes tbody tr")).to_have_count(10)
        settle(page)
        return page

    return opened


def answer_of(page):
    """The answer of the server to the image on the page, for ten iterations."""
    with page.expect_response("**/api/routing") as response:
        page.get_by_role("button", name="5, slanted").click()
    settle(page)
    return response.value.json()


def numbers(text):
    return [float(word.replace("−", "-").replace(",", "")) for word in re.findall(r"−?\d[\d,]*\.?\d*", text)]


def test_the_panel_asks_a_network_whose_couplings_decide(routing):
    page = routing()
    answer = answer_of(page)
    finding = answer["finding"]
    assert answer["model"] == "capsnet-mnist-routing"
    assert finding["winners"] == [5, 5, 5]
    first, *_, last = (step["lengths"][5] for step in answer["steps"][:3])
    assert first < 0.3
    assert last > 0.9
    said = page.locator("#finding")
    expect(said).to_have_text(finding["sentence"])
    expect(said).to_contain_text("Routing decides that there is a 5: with equal couplings")
    expect(said).to_contain_text(f"{100 * finding['undecided']:.1f} % undecided")
    expect(said).to_have_attribute("data-kind", "present")
    expect(page.locator("#routing-network")).to_contain_text("This panel asks the network capsnet-mnist-routing.")
    page.get_by_role("button", name="Clear").first.click()
    expect(said).to_be_empty()


def test_couplings_that_do_not_decide_are_said_not_to(browser):
    """A network of the user's own shows its own routing."""
    with serving("capsnet-digits") as url:
        page = browser.new_page()
        page.goto(f"{url}#routing")
        page.locator("#examples button").first.click()
        said = page.locator("#finding")
        expect(said).to_contain_text("The couplings decide little here")
        expect(said).to_have_attribute("data-kind", "none")
        expect(page.locator("#routing-network")).to_be_hidden()
        page.close()


def test_an_answer_that_routing_changes_is_said_to_be_changed(open_page):
    page = open_page("draw")

    def changed(route):
        answer = route.fetch().json()
        answer["finding"] |= {"kind": "changed", "sentence": "Routing changes the answer: 3 is longest at iteration 1."}
        route.fulfill(json=answer)

    page.route("**/api/routing", changed)
    page.get_by_role("tab", name="Routing").click()
    expect(page.locator("#finding")).to_have_text("Routing changes the answer: 3 is longest at iteration 1.")
    expect(page.locator("#finding")).to_have_attribute("data-kind", "changed")
    settle(page)
    page.unroute("**/api/routing")


def test_the_axis_of_the_entropy_runs_from_zero_to_one(routing):
    page = routing()
    assert page.locator("#entropy .tick").all_text_contents()[:3] == ["0 decided", "0.5", "1 all equal"]
    expect(page.locator("#entropy .axis")).to_have_text("iteration")
    points = page.locator("#entropy polyline.strong").get_attribute("points").split()
    heights = [float(point.split(",")[1]) for point in points]
    lines = [float(page.locator("#entropy .grid").nth(i).get_attribute("y1")) for i in (0, 2)]
    entropies = [step["entropy"] for step in answer_of(page)["steps"]]
    assert len(heights) == 10
    drawn = [(lines[0] - height) / (lines[0] - lines[1]) for height in heights]
    assert drawn == pytest.approx(entropies, abs=0.01)


def test_bars_have_a_scale_and_the_sum_of_the_lengths(routing):
    page = routing()
    page.locator("#iteration").fill("1")
    for panel, host in (("routing", "#routing-classes"), ("draw", "#draw-bars")):
        page.get_by_role("tab", name=panel).click()
        settle(page)
        assert page.locator(f"{host} .scale span").all_inner_texts() == ["0", "0.5", "1"]
        total = sum(float(text) for text in page.locator(f"{host} .value").all_inner_texts())
        said = page.locator(f"{host} .sum").inner_text()
        assert numbers(said)[0] == pytest.approx(total, abs=0.06)
        assert "need not add up to 1" in said
    page.get_by_role("button", name="Clear").first.click()
    expect(page.locator("#draw-bars .sum")).to_be_empty()


def test_couplings_by_position_are_coloured_on_a_scale_from_zero_to_one(routing):
    page = routing()
    coupling = [value for row in answer_of(page)["steps"][2]["coupling"][5] for value in row]
    shown = page.locator("#places button").evaluate_all(
        "(cells) => cells.map((cell) => Number(cell.style.getPropertyValue('--value')))"
    )
    assert shown == pytest.approx(coupling)
    low, high, equal = numbers(page.locator("#places-note").inner_text())
    assert (low, high, equal) == pytest.approx((min(coupling), max(coupling), 0.1), abs=6e-4)


def test_one_to_ten_iterations_can_be_chosen(routing):
    page = routing()
    answer = answer_of(page)
    assert len(answer["steps"]) == 10
    expect(page.locator("#iteration-own")).to_have_text("The network’s own number.")
    for iteration in (1, 10):
        page.locator("#iteration").fill(str(iteration))
        expect(page.locator("#iteration-value")).to_have_text(f"{iteration} of 10")
        expect(page.locator("#iteration-own")).to_have_text("The network’s own number is 3.")
        step = answer["steps"][iteration - 1]
        expect(page.locator("#routing-sentence")).to_contain_text(f"{100 * step['entropy']:.1f} % undecided")
        bars = [float(text) for text in page.locator("#routing-classes .value").all_inner_texts()]
        assert bars == pytest.approx(step["lengths"], abs=0.006)


def test_routing_off_shows_equal_couplings(routing):
    page = routing()
    answer = answer_of(page)
    page.get_by_label("Routing off").check()
    expect(page.locator("#iteration-value")).to_have_text("off")
    assert page.locator("#iteration").is_disabled()
    assert page.locator("#play").is_disabled()
    couplings = page.locator("#votes tbody tr td:nth-child(2) .number").all_inner_texts()
    assert couplings == ["0.10"] * 10
    bars = [float(text) for text in page.locator("#routing-classes .value").all_inner_texts()]
    assert bars == pytest.approx(answer["steps"][0]["lengths"], abs=0.006)
    page.get_by_label("Routing off").uncheck()
    expect(page.locator("#iteration-value")).to_have_text("3 of 10")


def test_routing_cannot_be_off_where_couplings_are_never_equal(open_page):
    page = open_page("draw")

    def unequal(route):
        answer = route.fetch().json()
        answer["finding"]["starts_uniform"] = False
        route.fulfill(json=answer)

    page.route("**/api/routing", unequal)
    page.get_by_role("tab", name="Routing").click()
    expect(page.locator("#votes tbody tr")).to_have_count(10)
    expect(page.locator("#routing-off")).to_be_disabled()
    expect(page.locator("#places-note")).not_to_contain_text("equal couplings")
    settle(page)
    page.unroute("**/api/routing")


def test_play_steps_through_the_iterations_and_pauses(routing):
    page = routing()
    page.locator("#iteration").fill("10")
    play = page.locator("#play")
    play.click()  # from the end it starts again
    expect(play).to_have_text("Pause")
    expect(page.locator("#iteration-value")).to_have_text("1 of 10")
    expect(page.locator("#iteration-value")).to_have_text("3 of 10")
    play.click()
    expect(play).to_have_text("Play")
    kept = page.locator("#iteration").input_value()
    page.wait_for_timeout(1200)
    expect(page.locator("#iteration")).to_have_value(kept)
    page.locator("#iteration").fill("9")
    play.click()
    expect(page.locator("#iteration-value")).to_have_text("10 of 10")
    expect(play).to_have_text("Play")  # it stops at the end
    play.click()
    page.get_by_role("tab", name="Draw").click()
    expect(play).to_have_text("Play")


def test_votes_are_drawn_where_the_server_puts_them(routing):
    page = routing()
    answer = answer_of(page)
    votes = answer["votes"]
    planes = page.locator("#planes .plane")
    expect(planes).to_have_count(3)
    dots = planes.first.locator(".vote-dot")
    expect(dots).to_have_count(len(votes["parts"]))
    place = "(dots) => dots.map((dot) => ['cx', 'cy', 'r'].map((name) => Number(dot.getAttribute(name))))"
    most = max(
        abs(number)
        for points in (*(part["votes"] for part in votes["parts"]), *votes["capsules"])
        for point in points
        for number in point
    )
    radii = {}
    for iteration in (1, 10):
        page.locator("#iteration").fill(str(iteration))
        found = dots.evaluate_all(place)
        for (x, y, r), part, row in zip(found, votes["parts"], votes["couplings"][iteration - 1]):
            expected = 100 + 88 * part["votes"][0][0] / most, 100 - 88 * part["votes"][0][1] / most
            assert (x, y) == pytest.approx(expected, abs=0.1)
            assert r == pytest.approx(12 * row[0] ** 0.5, abs=0.01)
        radii[iteration] = [r for _, _, r in found]
        points = planes.first.locator(".trail").get_attribute("points").split()
        assert len(points) == iteration
        capsule = votes["capsules"][iteration - 1][0]
        assert float(points[-1].split(",")[0]) == pytest.approx(100 + 88 * capsule[0] / most, abs=0.1)
    assert len(set(radii[1])) == 1  # equal couplings
    assert max(radii[10]) > 1.5 * min(radii[10])
    assert "Votes for 5" in planes.first.locator("figcaption").inner_text()
    assert planes.first.locator("svg").get_attribute("aria-label").startswith("Votes for 5: ")


def test_the_first_part_sees_ink_and_a_dot_chooses_its_part(routing):
    page = routing()
    answer = answer_of(page)
    first = page.locator("#part-title").inner_text()
    kind, row, column, _ = numbers(first)
    (ink,) = (
        part["ink"]
        for part in answer["votes"]["parts"]
        if (part["type"] + 1, part["row"] + 1, part["column"] + 1) == (kind, row, column)
    )
    assert ink >= 0.5
    expect(page.locator("#planes .chosen")).to_have_count(3)
    other = next(i for i, p in enumerate(answer["votes"]["parts"]) if (p["type"] + 1, p["row"] + 1) != (kind, row))
    page.locator("#planes .plane").first.locator(".vote-dot").nth(other).dispatch_event("click")
    part = answer["votes"]["parts"][other]
    expect(page.locator("#part-title")).to_contain_text(
        f"type {part['type'] + 1} in row {part['row'] + 1}, column {part['column'] + 1}"
    )


def test_the_picture_of_the_network_has_the_numbers_of_the_model(routing):
    page = routing()
    captions = page.locator("#network figcaption").evaluate_all("(all) => all.map((each) => each.innerText)")
    assert numbers(captions[0]) == [28, 28]
    assert numbers(captions[1]) == [800, 8, 10, 10, 8]
    assert numbers(captions[2]) == [8000, 16, 1_024_000]
    assert numbers(captions[3]) == [10, 16]
    assert page.locator("#network image").get_attribute("href").startswith("data:image/png;base64,")
    radii = "(dots) => dots.map((dot) => Number(dot.getAttribute('r')))"
    lengths = answer_of(page)["steps"][2]["lengths"]
    shown = page.locator("#network .class-dot").evaluate_all(radii)
    assert shown == pytest.approx([1 + 9 * length**0.5 for length in lengths], abs=0.01)
    couplings = [float(text) for text in page.locator("#votes td:nth-child(2) .number").all_inner_texts()]
    widths = page.locator("#network .vote-line").evaluate_all(
        "(lines) => lines.map((line) => Number(line.getAttribute('stroke-width')))"
    )
    assert widths == pytest.approx([0.3 + 9 * coupling for coupling in couplings], abs=0.06)


def test_the_picture_of_another_network_has_its_numbers(browser):
    with serving("capsnet-digits") as address:
        page = browser.new_page()
        page.goto(f"{address}#routing")
        caption = page.locator("#network figcaption").nth(1)
        expect(caption).to_contain_text("128 parts")
        assert numbers(caption.inner_text()) == [128, 8, 4, 4, 8]
        page.close()


def test_words_are_explained_where_they_stand(routing):
    page = routing()
    assert set(
        page.locator("#panel-routing [data-word]").evaluate_all("(all) => all.map((each) => each.dataset.word)")
    ) == set(EXPLAINED)
    expect(page.locator("#panel-routing .word .word")).to_have_count(0)
    words = page.locator("#panel-routing .word")
    for index in range(words.count()):
        words.nth(index).click()
        tip = page.locator(f"#{words.nth(index).get_attribute('aria-describedby')}")
        expect(tip).to_be_visible()
        assert len(tip.inner_text()) > 30
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
    words.first.hover()
    expect(page.locator(".meaning-tip:visible")).to_have_text(
        "A capsule of the first layer: 8 numbers computed from 9 × 9 pixels. "
        "Its length says how clearly the network sees there what the part stands for."
    )


def test_words_and_controls_work_by_keyboard(routing):
    page = routing()
    page.locator("#pad canvas").focus()
    tab_to(page, "#panel-routing .word")
    tip = page.locator(".meaning-tip:visible")
    expect(tip).to_have_count(1)
    press(page, "Escape")
    expect(tip).to_have_count(0)
    press(page, "Enter")
    expect(tip).to_have_count(1)
    tab_to(page, "#play")
    expect(tip).to_have_count(0)
    press(page, "Space")
    expect(page.locator("#iteration-value")).to_have_text("5 of 10")
    press(page, "Space")
    expect(page.locator("#play")).to_have_text("Play")
    tab_to(page, "#routing-off")
    press(page, "Space")
    expect(page.locator("#iteration-value")).to_have_text("off")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_explanations_fit_and_can_be_read_on_a_phone(routing, scheme):
    page = routing(viewport={"width": 320, "height": 740}, color_scheme=scheme)
    words = page.locator("#panel-routing .word")
    for index in range(words.count()):
        words.nth(index).click()
        expect(page.locator(".meaning-tip:visible")).to_have_count(1)
        assert page.evaluate(OVERFLOWING, 321) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        box = page.locator(".meaning-tip:visible").bounding_box()
        assert box["x"] >= 0
        assert [text for text in page.evaluate(CONTRASTS) if not text["enough"]] == []
        page.keyboard.press("Escape")


def test_dots_do_not_glide_if_motion_is_reduced(routing):
    duration = "getComputedStyle(document.querySelector('.vote-dot')).transitionDuration"
    for motion, expected in (("no-preference", "0.3s"), ("reduce", "0s")):
        assert routing(reduced_motion=motion).evaluate(duration) == expected


def test_a_drawing_changes_the_votes(routing):
    page = routing()
    expect(page.locator("#planes figcaption").first).to_contain_text("Votes for 5")
    draw(page, SEVEN)
    expect(page.locator("#planes figcaption").first).to_contain_text("Votes for 7")
    page.get_by_role("button", name="Clear").first.click()
    expect(page.locator("#planes .plane")).to_have_count(0)
