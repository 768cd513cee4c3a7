"""Examples on the page: images of the data that the network was trained on, and "none of these"."""

from __future__ import annotations

import base64
import io

import pytest
from driver import draw, expect, serving, settle
from PIL import Image
from test_drawing import DROP
from test_page import CONTRASTS, OVERFLOWING, press, tab_to

from torchcaps.models import create_model, save

CLASSES = ("red", "green", "blue")
DOTS = [[(x, y), (x + 0.01, y)] for x in (0.1, 0.4, 0.7, 0.9) for y in (0.1, 0.4, 0.7, 0.9)]


def saved(folder, photos):
    model = create_model("capsnet_small", image_shape=(3, 20, 20), num_classes=3, class_names=CLASSES).eval()
    settings = {"image_size": 20, "channels": None, "validation": 0, "test": 0.5, "split_seed": 0, "limit": None}
    model.trained_by = {"recipe": "folder", "seed": 0, "data": {**settings, "source": "folder", "path": str(photos)}}
    save(model, folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(4):
            Image.new("RGB", (40, 40), name).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def visit(browser):
    """visit(address, …) → a page that must cause no errors."""
    errors, contexts = [], []

    def opened(address, panel="draw", **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}#{panel}")
        page.wait_for_selector("body[data-panel]")
        settle(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def test_a_network_of_photographs_shows_its_own(visit, photos, tmp_path):
    saved(tmp_path / "run", photos)
    with serving(str(tmp_path / "run")) as address:
        page = visit(address, viewport={"width": 320, "height": 740}, color_scheme="dark")
        expect(page.locator("#purpose")).to_have_text("Choose an image and see how a capsule network classifies it.")
        expect(page.locator("#examples-note")).to_have_text(
            "Test images of the data that the network was trained on (folder)."
        )
        examples = page.locator("#examples button")
        expect(examples).to_have_count(6)
        expect(page.locator("#verdict")).not_to_be_empty()
        for index in range(3):
            examples.nth(index).click()
            settle(page)
            name = examples.nth(index).get_attribute("aria-label").split(",")[0]
            channel = CLASSES.index(name)
            picture = page.get_attribute("#draw-seen", "src").partition(",")[2]
            pixel = Image.open(io.BytesIO(base64.b64decode(picture))).getpixel((10, 10))
            assert pixel.index(max(pixel)) == channel
        blue = io.BytesIO()
        Image.new("RGB", (60, 60), "blue").save(blue, "png")
        page.evaluate(DROP, [base64.b64encode(blue.getvalue()).decode(), "blue.png", "image/png"])
        examples.nth(0).click()
        settle(page)
        tab_to(page, "#examples button")
        press(page, "Right, Enter")
        settle(page)
        page.get_by_role("tab", name="Routing").click()
        expect(page.locator("#votes tbody tr")).to_have_count(3)
        assert page.evaluate(OVERFLOWING, 321) == []
        assert [text for text in page.evaluate(CONTRASTS) if not text["enough"]] == []
        page.get_by_role("tab", name="Image").click()
        page.get_by_role("button", name="Clear").first.click()
        expect(page.locator("#verdict")).to_have_text("Open an image.")


def test_a_network_whose_data_is_gone_shows_none_and_says_so(visit, photos, tmp_path):
    saved(tmp_path / "run", tmp_path / "gone")
    with serving(str(tmp_path / "run")) as address:
        page = visit(address)
        expect(page.locator("#examples-note")).to_have_text(
            "No examples: the data that this network was trained on (folder) cannot be loaded."
        )
        expect(page.locator("#examples")).to_be_hidden()
        expect(page.locator("#verdict")).to_have_text("Open an image.")


def test_a_network_of_embedded_digits_is_greeted_by_one(visit):
    with serving("capsnet-digits") as address:
        page = visit(address)
        expect(page.locator("#verdict")).to_have_attribute("data-winner", "0")
        examples = page.locator("#examples button")
        expect(examples).to_have_count(30)
        wrong = []
        for index in range(30):
            with page.expect_response("**/api/predict") as response:
                examples.nth(index).click()
            assert response.value.request.post_data_json["image"] == {"example": index}
            settle(page)
            if page.get_attribute("#verdict", "data-winner") != str(index % 10):
                wrong.append(index)
        assert len(wrong) <= 1
        draw(page, [[(0.5, 0.1), (0.5, 0.9)]])  # over the last example, which stays below the stroke
        settle(page)
        expect(page.locator("#verdict")).not_to_be_empty()
        for example in (29, 28):  # without the stroke, and the example before
            with page.expect_response("**/api/predict") as response:
                page.get_by_role("button", name="Undo").click()
            assert response.value.request.post_data_json["image"] == {"example": example}
        settle(page)
        expect(page.locator("#verdict")).to_have_attribute("data-winner", "8")


def test_none_of_these_is_the_answer_below_a_presence_of_one_half(open_page):
    page = open_page()
    expect(page.locator("#verdict")).to_have_text("This is a 5. Length 0.97.")
    expect(page.locator("#reject")).to_have_value("0.5")
    answers = []
    page.route("**/api/predict", lambda route: answers.append(route.request.post_data_json) or route.continue_())
    draw(page, DOTS)
    settle(page)
    assert answers[-1]["reject"] == 0.5
    lengths = [float(text) for text in page.locator("#draw-bars .value").all_inner_texts()]
    assert max(lengths) < 0.5
    expect(page.locator("#verdict")).to_contain_text("None of these. Nearest: ")
    page.locator("#reject").fill("0")
    expect(page.locator("#verdict")).to_contain_text("Possibly")
