"""Frozen sets of shapes, and the data sets that recipes name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchcaps.data import load_data
from torchcaps.data.datasets.shapes import sets
from torchcaps.data.datasets.shapes.scenes import draw_shapes
from torchcaps.errors import UserError


@pytest.mark.parametrize("name", sets.FROZEN_SETS)
def test_a_frozen_set_is_what_it_was(name):
    scenes, known = sets.frozen_set(name), sets.FROZEN_SETS[name]  # raises unless the checksum is right
    assert len(scenes) == known.images
    assert scenes.images.dtype == scenes.wholes.x.dtype == torch.float32
    grey = 255 * scenes.images
    torch.testing.assert_close(grey, grey.round(), atol=1e-4, rtol=0)
    assert len({each.seed for each in sets.FROZEN_SETS.values()}) == len(sets.FROZEN_SETS)


def test_the_checksum_covers_images_and_ground_truth_but_no_last_digits():
    scenes = draw_shapes(4, dtype=torch.float64)
    known = sets.checksum(scenes)
    assert sets.checksum(replace(scenes, images=scenes.images + 1e-12)) == known
    brighter = scenes.images.clone()
    brighter[3, 0, 5, 5] += 1 / 255
    assert sets.checksum(replace(scenes, images=brighter)) != known
    for name, tensor in scenes.wholes.tensors().items():
        changed = tensor.clone()
        changed[0, 0] = ~changed[0, 0] if name == "present" else changed[0, 0] + 1
        levels = (scenes.parts, scenes.wholes.with_tensors({**scenes.wholes.tensors(), name: changed}))
        assert sets.checksum(replace(scenes, levels=levels)) != known, name


def test_a_set_that_differs_is_not_used(monkeypatch):
    changed = sets.FROZEN_SETS["upright"]._replace(images=3)
    monkeypatch.setitem(sets.FROZEN_SETS, "upright", changed)
    with pytest.raises(UserError, match=r"'upright' differ with PyTorch .*try another version"):
        sets.frozen_set("upright")
    with pytest.raises(UserError, match="did you mean 'turned'"):
        sets.frozen_set("turnd")


@pytest.fixture
def small(monkeypatch):
    """Frozen sets of ten images, and forty to train on."""
    for name, known in sets.FROZEN_SETS.items():
        drawn = draw_shapes(10, known.seed, dtype=torch.float64, **known.parameters)
        monkeypatch.setitem(
            sets.FROZEN_SETS, name, known._replace(images=10, checksum=sets.checksum(sets.rounded(drawn)))
        )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("source", "names"),
    [("shapes", ("boat", "house")), ("shapes-turned", ("boat", "house")), ("faces", ("face", "sad face"))],
)
def test_recipes_find_shapes_by_name(source, names):
    splits = load_data(source, limit=50, validation=100, channels=3)
    assert splits.train.class_names == splits.test.class_names == names
    assert splits.train.image_shape == splits.test.image_shape == (3, 32, 32)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [50, 100, 10]
    assert splits.train.class_counts().tolist() == [25, 25]
    again = load_data(source, limit=50, validation=100, channels=3)
    assert again.fingerprint() == splits.fingerprint()
    assert load_data(source, image_size=16).test.image_shape == (1, 16, 16)


@pytest.mark.usefixtures("small")
def test_training_images_are_upright_and_do_not_depend_on_their_number():
    few, many = (sets.shapes_splits("turned", count=count) for count in (20, 30))
    assert torch.equal(few.train.images, many.train.images[:20])
    assert not torch.equal(few.train.images, sets.shapes_splits("turned", count=20, seed=1).train.images)
    assert few.validation is None
    drawn = draw_shapes(20, sets.TRAINING_SEED)
    assert torch.equal(few.train.images, (255 * drawn.images).round().to(torch.uint8))
    assert float(drawn.wholes.angle.abs().amax()) <= 15
    assert float(sets.frozen_set("turned").wholes.angle.abs().amax()) > 90


@pytest.mark.usefixtures("small")
def test_a_mistake_is_answered_with_what_to_do():
    with pytest.raises(UserError, match="belongs to a frozen set"):
        sets.shapes_splits(seed=sets.FROZEN_SETS["turned"].seed)
    with pytest.raises(UserError, match="give wholes="):
        sets.shapes_splits("faces")
    with pytest.raises(UserError, match="no class: draw shapes with"):
        sets.shapes_splits("scrambled")
