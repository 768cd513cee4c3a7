"""The modules that need no model compute what serve/ computes: images as models take them, and routing of shapes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from driver import hosting
from PIL import Image

from torchcaps.models import create_model
from torchcaps.serve import requests
from torchcaps.serve.served_models import ServedModel
from torchcaps.serve.shapes import describe_layer, find_wholes
from torchcaps.site.folder import BROWSER, write_json

sys.path.append(str(Path(__file__).parents[1]))
from answers import compare
from bodies import as_file

PREPARED = """async ([model, image]) => {
  const { prepared } = await import("./answers/prepare.js");
  return Array.from((await prepared(model, image)).data);
}"""
SHAPES = """async (body) => (await import("./answers/shapes.js")).shapes(body)"""
PICTURE = """async ([channels, height, width, data]) => {
  const { dataUrl } = await import("./answers/png.js");
  return dataUrl({ channels, height, width, data });
}"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    shutil.copytree(BROWSER, folder / "answers")
    (folder / "models").mkdir()
    write_json(folder / "models" / "shapes.json", describe_layer())
    (folder / "index.html").write_text("<!doctype html>")
    with hosting(folder) as address:
        page = browser.new_page()
        page.goto(address)
        yield page
        page.close()


def files():
    """Image files of several kinds, sizes and colours."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:140, :100] / 100
    ring = (np.abs(np.hypot(x - 0.55, (y - 0.7) * 0.8) - 0.25) < 0.06).astype(float)
    colours = np.stack([0.8 - 0.2 * x - 0.5 * ring, 0.7 - 0.6 * ring, 0.6 + 0.1 * y - 0.5 * ring], axis=-1)
    noisy = (255 * (colours + random.normal(0, 0.02, colours.shape)).clip(0, 1)).astype(np.uint8)
    yield as_file((255 * ring).astype(np.uint8))
    yield as_file((255 * (1 - ring)).astype(np.uint8))
    yield as_file(noisy)
    yield as_file(Image.fromarray(noisy).resize((9, 11)))
    yield as_file((ring > 0)[:, 40:60])
    yield as_file(np.zeros((5, 3), np.uint8))
    yield as_file(
        np.pad(np.full((60, 7), 255, np.uint8), ((20, 20), (30, 31)))
    )  # symmetric: half a pixel to either side


SIZES = {
    "mnist": ((1, 28, 28), None),
    "digits": ((1, 28, 28), None),
    "affnist-like": ((1, 40, 40), None),
    "folder": ((3, 24, 20), (30, 26)),
    "grey folder": ((1, 24, 20), None),
}


@pytest.mark.parametrize("source", SIZES)
def test_images_are_prepared_as_by_the_server(source, page):
    shape, resized = SIZES[source]
    model = create_model("matched_cnn", image_shape=shape, parameters=20_000, resize_to=resized)
    model.trained_by = {"data": {"source": source}}
    served = ServedModel("net", model)
    channels, height, width = shape
    box, _, side = served.style
    own = {
        "name": "net",
        "image": {"channels": channels, "height": height, "width": width},
        "style": {"box": box, "original_side": side},
        "resize_to": model.resize_to,
        "draws": served.draws,
    }
    for png in files():
        for centre in (False, True):
            expected = served.preprocess(requests.ImageFile(png=png, centre=centre)).flatten()
            found = torch.tensor(page.evaluate(PREPARED, [own, {"png": png, "centre": centre}]), dtype=torch.float32)
            gap = (found - expected).abs()
            # Where a resized photograph is halfway between two of 256 levels, rounding errors choose.
            assert gap.max() <= (2e-6 if served.draws else 1.001 / 255)
            assert (gap > 2e-6).float().mean() <= 0.01


def scenes():
    generator = torch.Generator().manual_seed(0)
    house = [
        {"type": "rectangle", "x": 32, "y": 37.9, "scale": 2},
        {"type": "triangle", "x": 32, "y": 27.3, "scale": 2},
    ]
    yield []
    yield house[:1]
    yield house
    yield [*house, {"type": "triangle", "x": 32, "y": 50.0, "angle": 135.0, "scale": 2, "presence": 0.4}]
    yield [*house, {**house[0], "x": 40, "presence": 0.0}]
    for count in (3, 8, 24):
        numbers = torch.rand(count, 4, generator=generator, dtype=torch.float64)
        yield [
            {
                "type": ("rectangle", "triangle")[index % 2],
                "x": 60 * x,
                "y": 60 * y,
                "angle": 300 * angle - 150,
                "scale": 0.5 + scale,
            }
            for index, (x, y, angle, scale) in enumerate(numbers.tolist())
        ]


@pytest.mark.parametrize("iterations", [1, 5])
def test_shapes_are_routed_as_by_the_server(iterations, page):
    for parts in scenes():
        body = {"parts": parts, "iterations": iterations}
        expected = find_wholes(requests.ShapesRequest.model_validate(body)).model_dump(by_alias=True)
        compare(ordered(expected), ordered(page.evaluate(SHAPES, body)), "shapes")


def ordered(answer):
    """Hypotheses in an order of their own: those that are equally present may come in any."""
    wholes = [list(each) for each in zip(*(step["wholes"] for step in answer["steps"]))]
    wholes.sort(key=lambda each: [round(each[-1][name], 2) for name in ("class", "x", "y", "scale")])
    steps = [{**step, "wholes": [each[index] for each in wholes]} for index, step in enumerate(answer["steps"])]
    return {**answer, "steps": steps}


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_pictures_are_those_of_the_server(channels, page):
    from torchcaps.serve.pictures import data_url

    picture = 1.4 * torch.rand(channels, 150, 170, generator=torch.Generator().manual_seed(1)) - 0.2
    found = page.evaluate(PICTURE, [channels, 150, 170, picture.flatten().tolist()])
    compare(data_url(picture), found, "picture")
