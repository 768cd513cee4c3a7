"""The recipe that is chosen for a folder."""

import numpy as np
import pytest
from PIL import Image

from torchcaps.errors import UserError
from torchcaps.train.auto import FolderFacts, choose_recipe, describe_choice, folder_facts, recipe_for_folder
from torchcaps.train.recipe import DataSection, load_recipe, make_recipe
from torchcaps.train.run import start_run

PHOTOGRAPHS = FolderFacts(630, 3, 32, 32, colour=True, photographs=True, mirrors=True, turns=False, zooms=True)
DIGITS = FolderFacts(1200, 10, 8, 8, colour=False, photographs=False, mirrors=False, turns=False, zooms=True)
CELLS = FolderFacts(630, 2, 32, 32, colour=False, photographs=False, mirrors=True, turns=True, zooms=False)


def chosen(facts, *overrides, data=None):
    return make_recipe({"name": "folder", **choose_recipe(facts, data)}, overrides)


def test_photographs_are_flipped_and_digits_are_not():
    assert chosen(PHOTOGRAPHS).augment.flip
    assert not chosen(PHOTOGRAPHS).augment.turn
    assert not chosen(DIGITS).augment.flip
    assert "no flips (mirrored images are not recognised)" in describe_choice(DIGITS, chosen(DIGITS))[1]
    cells = chosen(CELLS).augment
    assert (cells.flip, cells.flip_vertical, cells.turn, cells.scale) == (True, True, True, 0.0)


def test_without_a_comparison_only_photographs_are_flipped():
    assert chosen(PHOTOGRAPHS._replace(mirrors=None)).augment.flip
    assert not chosen(DIGITS._replace(mirrors=None)).augment.flip


def test_size_channels_and_length_follow_from_the_images():
    small, large = chosen(PHOTOGRAPHS), chosen(PHOTOGRAPHS._replace(height=480, width=640))
    assert (small.data.image_size, large.data.image_size) == (32, 64)
    assert large.train.epochs < small.train.epochs
    assert chosen(PHOTOGRAPHS._replace(images=100_000)).train.epochs == 12
    assert chosen(DIGITS).data.channels == 1


def test_what_the_user_sets_counts_more():
    recipe = chosen(PHOTOGRAPHS, "augment.flip=no", "train.patience=null", "model.width=8")
    assert not recipe.augment.flip
    assert recipe.train.patience is None
    assert recipe.model.options == {"width": 8}
    assert chosen(PHOTOGRAPHS, data=DataSection(image_size=48)).data.image_size == 48
    assert chosen(PHOTOGRAPHS, data=DataSection(validation=0)).train.patience is None


def draw(path, label, seed, colour):
    """A bar that rises to the right (0) or to the left (1): mirrored, each is the other."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 20, (24, 24, 3)).astype(np.uint8)
    for row in range(24):
        place = 23 - row if label == 0 else row
        pixels[row, max(0, place - 2) : place + 2] = (250, 120, 60) if colour else (250, 250, 250)
    if not colour:
        pixels[:] = pixels[..., :1]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bars")
    for i in range(60):
        draw(folder / ("right" if i % 2 else "left") / f"{i}.png", i % 2, i, colour=False)
    return folder


def test_facts_of_a_folder_whose_classes_are_mirror_images(bars):
    facts = folder_facts(bars)
    assert (facts.images, facts.classes, facts.height, facts.width) == (43, 2, 24, 24)
    assert not facts.colour  # three equal channels are grey
    assert facts.mirrors is False
    assert not recipe_for_folder(bars)[0].augment.flip


def test_the_resolved_recipe_is_stored_and_simple_methods_are_measured(bars, tmp_path):
    settings = [f"data.path={bars}", "train.epochs=2", "model.width=4", "data.image_size=16"]
    recipe, told = recipe_for_folder(bars, settings)
    assert told[-1].startswith("chosen: strong_cnn at 16×16, up to 2 epochs")
    folder = start_run(recipe, out=tmp_path / "run", device="cpu")
    assert load_recipe(str(folder / "recipe.yaml")) == recipe
    summary = (folder / "summary.json").read_text()
    assert '"hog_svm": 1.0' in summary
    assert '"test_accuracy_interval"' in summary
    assert bars.name in (folder / "report.html").read_text()


def test_a_folder_that_is_taken_for_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="torchcaps train --data pets"):
        load_recipe("pets")


def test_options_of_another_model_are_left_out_and_named(caplog):
    recipe = load_recipe("folder", ["model.name=matched_cnn", "model.parameters=20000"])
    assert "model.types: of the recipe's model capsnet_small; left out for matched_cnn" in caplog.text
    assert recipe.model.options == {"channels": 64, "parameters": 20000}  # both have channels
