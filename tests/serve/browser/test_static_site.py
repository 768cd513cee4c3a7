"""The explorer without a server: the same answers as the server's, the same page, and no request outside the folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from driver import SEVEN, THREE, draw, expect, hosting

from torchcaps.errors import UserError
from torchcaps.serve import requests
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.served_models import load_models
from torchcaps.serve.shapes import find_wholes

sys.path.append(str(Path(__file__).parents[1]))
from answers import compare
from bodies import as_file, random_pixels

pytestmark = pytest.mark.slow
MODELS = ("capsnet-mnist", "posecaps-digits", "capsnet-digits")
REQUESTS = {
    "predict": requests.PredictRequest,
    "reconstruct": requests.ReconstructRequest,
    "routing": requests.RoutingRequest,
    "lattice": requests.LatticeRequest,
    "transform": requests.TransformRequest,
    "shapes": requests.ShapesRequest,
}
ASK = """async ([path, body]) => {
  try {
    return await (await import("./static/transport.js")).send(path, body);
  } catch (error) {
    return { error: error.message };
  }
}"""


@pytest.fixture(scope="module", params=MODELS)
def site(request, tmp_path_factory):
    """A folder with a model and those that are served with it."""
    from torchcaps.site.folder import write_site
    from torchcaps.site.runtime import kept_package

    if not kept_package().is_file():
        pytest.skip("the runtime for browsers has not been fetched: run torchcaps serve --static FOLDER once")
    folder = tmp_path_factory.mktemp("static") / request.param
    write_site(request.param, folder)
    return request.param, folder


@pytest.fixture(scope="module")
def explorer(site):
    return Explorer(load_models(site[0]))


@pytest.fixture(scope="module")
def visit(site, browser):
    """visit(panel) → a page of the folder. Afterwards checks for errors, and for requests that leave the folder."""
    opened = []
    with hosting(site[1]) as address:

        def open_page(panel="draw"):
            context = browser.new_context(viewport={"width": 1200, "height": 900})
            context.set_default_timeout(60_000)
            page, errors, urls = context.new_page(), [], []
            context.route(lambda url: not url.startswith((address, "data:", "blob:")), lambda route: route.abort())
            context.on("request", lambda request: urls.append(request.url))
            page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{address}#{panel}")
            page.wait_for_selector("body[data-panel]")
            opened.append((context, errors, urls))
            return page

        yield open_page
        for context, errors, urls in opened:
            context.close()
            assert not errors
            assert any(url.endswith(".wasm") for url in urls)
            assert not [url for url in urls if not url.startswith((address, "data:", "blob:"))]


@pytest.fixture(scope="module")
def ask(visit):
    page = visit("shapes")
    return lambda path, body: page.evaluate(ASK, [f"api/{path}", body])


@pytest.fixture
def agree(explorer, ask):
    """agree(path, body): the folder answers like the server; returns the answer."""

    def check(path, body):
        asked = REQUESTS[path].model_validate(body)
        try:
            expected = (find_wholes if path == "shapes" else getattr(explorer, path))(asked).model_dump(by_alias=True)
        except UserError as error:
            expected = {"error": str(error)}
        found = ask(path, body)
        if path == "routing" and "error" not in expected:
            expected, found = same_parts(expected, found)
        compare(expected, found, path)
        return found

    return check


def same_parts(*answers):
    """Answers with the votes of the parts that both have: of equally long ones rounding decides which are shown."""
    places = [[(each["type"], each["row"], each["column"]) for each in answer["votes"]["parts"]] for answer in answers]
    shared = sorted(set(places[0]) & set(places[1]))
    assert len(shared) >= 0.9 * len(places[0])
    for answer, listed in zip(answers, places):
        indices = [listed.index(place) for place in shared]
        votes = answer["votes"]
        votes["parts"] = [votes["parts"][index] for index in indices]
        votes["couplings"] = [[step[index] for index in indices] for step in votes["couplings"]]
    return answers


def pictures(explorer):
    """Images of every kind that the page sends: drawn, dark on light, a photograph, example, and an array."""
    side = explorer.served_models[explorer.default].model.image_shape[1]
    y, x = np.mgrid[:140, :140] / 139
    ring = 255 * (np.abs(np.hypot(x - 0.55, (y - 0.5) * 0.8) - 0.25) < 0.06)
    stroke = 255 * (np.abs(x - 0.5 + 0.2 * (y - 0.5)) < 0.05) * (np.abs(y - 0.5) < 0.35)
    noise = np.random.default_rng(0).normal(0, 6, (140, 140))
    paper = 210 - 60 * x - 0.6 * ring + noise
    colours = np.stack([paper, paper - 10, paper - 40], axis=-1)
    images = {
        "ring": {"png": as_file(ring.astype(np.uint8)), "centre": True},
        "stroke": {"png": as_file(stroke.astype(np.uint8)), "centre": False},
        "light": {"png": as_file((255 - ring[:90]).astype(np.uint8)), "centre": True},
        "photograph": {"png": as_file(colours.clip(0, 255).astype(np.uint8)), "centre": True},
        "small": {"png": as_file(ring[::20, ::20].astype(np.uint8)), "centre": False},
        "empty": {"png": as_file(np.zeros((140, 140), np.uint8)), "centre": True},
        "array": random_pixels(side=side),
    }
    examples = explorer.models().models[0].examples.images
    return images | {f"example {index}": {"example": index} for index in range(0, len(examples), 7)}


def test_predictions_are_those_of_the_server(explorer, agree):
    for image in pictures(explorer).values():
        agree("predict", {"image": image})
        agree("predict", {"image": image, "top": 3, "reject": 0.5})
    for name, served in explorer.served_models.items():
        image = random_pixels(side=served.model.image_shape[1])
        agree("predict", {"image": image, "model": name, "top": 2})
        agree("predict", {"image": image, "model": name, "decode": [7, 2]})
        agree("predict", {"image": image, "model": name, "iterations": 1})
        agree("predict", {"image": {"png": as_file(np.eye(140, dtype=np.uint8) * 255)}, "model": name})


def test_reconstructions_are_those_of_the_server(explorer, agree):
    for name, served in explorer.served_models.items():
        if getattr(served.model, "decoder", None) is None:
            continue
        image = {"png": as_file(np.eye(140, dtype=np.uint8) * 255), "centre": True}
        pose = agree("predict", {"image": image, "model": name})["decoded"][0]["pose"]
        agree("reconstruct", {"class": 3, "pose": pose, "model": name, "compare": image, "sweep": True})
        agree("reconstruct", {"class": 3, "pose": pose[1:], "model": name})
        place = {"x": 9.5, "y": 15.25, "angle": 40.0, "scale": 1.3}
        agree("reconstruct", {"class": 4, "pose": pose, "model": name, "placement": place, "sweep": True})


def test_transforms_are_those_of_the_server(explorer, agree):
    image = pictures(explorer)["ring"]
    agree("transform", {"image": image, "rotate": 30.0, "shift_x": 2.5, "shift_y": -1.25, "scale": 1.2, "shear": 0.3})
    for along in requests.TRANSFORM_RANGES:
        agree("transform", {"image": image, "rotate": -20.0, "along": along, "steps": 9})


def test_routing_is_that_of_the_server(explorer, agree):
    for image in pictures(explorer).values():
        for name, served in explorer.served_models.items():
            if served.model.image_shape[1] == explorer.served_models[explorer.default].model.image_shape[1]:
                agree("routing", {"image": image, "model": name, "iterations": 10})
    agree("routing", {"image": random_pixels(side=28), "part": {"type": 1, "row": 2, "column": 3}})


def test_lattices_are_those_of_the_server(explorer, agree):
    for image in pictures(explorer).values():
        agree("lattice", {"image": image})


def test_shapes_are_those_of_the_server(agree):
    house = [
        {"type": "rectangle", "x": 32, "y": 37.9, "scale": 2},
        {"type": "triangle", "x": 32, "y": 27.3, "scale": 2},
    ]
    agree("shapes", {"parts": [*house, {"type": "triangle", "x": 30, "y": 50, "angle": 135, "scale": 2}]})


def test_the_page_works_without_a_server(site, visit):
    page = visit()
    page.wait_for_selector("#draw-redrawn[src^=data]")
    page.get_by_role("button", name="Clear").first.click()
    draw(page, THREE if site[0] != "capsnet-digits" else SEVEN)
    expect(page.locator("#verdict")).to_have_attribute("data-winner", "3" if site[0] != "capsnet-digits" else "7")
    for panel in ("pose", "routing", "views", "overlap", "transform", "shapes"):
        tab = page.locator(f"#tab-{panel}")
        if tab.is_visible():
            tab.click()
            page.wait_for_selector("main[aria-busy=false]", state="attached")
            assert page.inner_text("#message") == ""
    expect(page.locator(".ghost.house").first).to_be_visible()


def test_a_network_that_cannot_be_loaded_is_loaded_later(site, browser):
    with hosting(site[1]) as address:
        context = browser.new_context()
        context.set_default_timeout(60_000)
        page, held = context.new_page(), []
        context.route("**/encode.onnx", lambda route: route.abort())
        page.goto(address)
        expect(page.locator("#banner")).to_have_text("The server does not respond. Retrying…")
        context.unroute("**/encode.onnx")
        context.route("**/encode.onnx", lambda route: held.append(route))
        while not held:
            page.wait_for_timeout(50)
        expect(page.locator("#loading")).to_contain_text(f"Loading {site[0]}, ")
        for route in held:
            route.continue_()
        context.unroute("**/encode.onnx")
        page.wait_for_selector("#draw-redrawn[src^=data]")
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#loading")).to_be_hidden()
        context.close()
