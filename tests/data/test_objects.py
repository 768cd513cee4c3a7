"""Data sets with objects: drawn shapes, scattered digits, and what does not fit."""

import math
from dataclasses import replace

import pytest
import torch

from torchcaps.data import ObjectDataset, annotate, draw_shapes, load_data, make_loader, scatter_digits
from torchcaps.errors import UserError
from torchcaps.similarity import Similarity


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", image_size=24).train


def test_shapes_are_annotated_with_parts_and_wholes():
    scenes = draw_shapes(6, 3)
    data = annotate(scenes, ("rectangle", "triangle"))
    assert data.levels == (("rectangle", "triangle"), ("boat", "house"))
    assert data.members == (((0, 1), (0, 1)),)
    assert data.symmetry == (2, 1)
    assert data.class_names == ("boat", "house")
    wholes = data.objects[data.objects[..., 0] == 1]
    assert torch.equal(wholes[:, 1].long(), scenes.wholes.label[:, 0])
    placed = Similarity(wholes[:, 2:6])
    torch.testing.assert_close(placed.x, scenes.wholes.x[:, 0])
    torch.testing.assert_close(placed.angle, scenes.wholes.angle[:, 0])
    torch.testing.assert_close(placed.scale, scenes.wholes.scale[:, 0])
    assert data.targets.argmax(1).tolist() == scenes.wholes.label[:, 0].tolist()
    part = data.objects[data.objects[..., 0] == 0]
    assert sorted({tuple(size) for size in part[:, 6:].tolist()}) == [(14.0, 6.0), (14.0, 7.0)]


def test_parts_that_are_not_told_apart_are_left_out():
    scenes = draw_shapes(4, 3, distractors=(2, 2))
    everything, some = annotate(scenes), annotate(scenes, ("rectangle", "triangle"))
    assert ((everything.objects[..., 0] == 0).sum(1) == 4).all()
    assert ((some.objects[..., 0] == 0).sum(1) == 2).all()


def test_faces_have_eyes_for_parts_or_strokes():
    scenes = draw_shapes(2, 3, wholes=("face", "sad face"))
    assert annotate(scenes, first=1).levels[0] == ("eye", "nose", "mouth")
    assert annotate(scenes, first=1).members == (((0, 0, 1, 2), (0, 0, 1, 2)),)
    assert len(annotate(scenes).levels) == 3


def test_subset_fingerprint_and_loader():
    data = annotate(draw_shapes(6, 3))
    some = data.subset(torch.tensor([4, 1]))
    assert torch.equal(some.objects, data.objects[[4, 1]])
    assert b"".join(data.content()) != b"".join(some.content())
    batch = make_loader(data, "cpu").take(torch.tensor([2]))
    assert torch.equal(batch.targets, data.objects[[2]])
    assert batch.images.max() <= 1
    with pytest.raises(UserError, match=r"augment\.flip: objects would not follow"):
        make_loader(data, "cpu", flip=True)
    bright = make_loader(data, "cpu", brightness=0.5).take(torch.tensor([2]))
    assert torch.equal(bright.targets, batch.targets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(6, 1, 8, 8)}, "uint8"),
        ({"objects": torch.zeros(6, 3, 7)}, "level, label, x, y"),
        ({"objects": torch.full((6, 3, 8), math.nan)}, "finite"),
        ({"objects": torch.full((6, 3, 8), 1.0)[..., :8] * 9}, None),
        ({"members": ()}, "members of each level"),
        ({"symmetry": (1,)}, "symmetries"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    data = annotate(draw_shapes(6, 3))
    if message is None:  # a level that is not known is not an object
        assert len(replace(data, **change)) == 6
        return
    with pytest.raises(UserError, match=message):
        replace(data, **change)


def test_labels_lie_in_their_level():
    data = annotate(draw_shapes(2, 3))
    data.objects[0, 0, 1] = 7
    with pytest.raises(UserError, match=r"level 0 must lie in 0\.\.4"):
        replace(data)


def test_scattered_digits_have_the_box_of_their_ink(digits):
    data = scatter_digits(digits, 20, 5, size=64, number=(1, 1))
    assert data.image_shape == (1, 64, 64)
    for image, (row,) in zip(data.images, data.objects):
        ys, xs = (image[0] >= 64).nonzero().unbind(-1)
        x, y, width, height = row[[2, 3, 6, 7]].tolist()
        assert (x - (width - 1) / 2, x + (width - 1) / 2) == (xs.min().item(), xs.max().item())
        assert (y - (height - 1) / 2, y + (height - 1) / 2) == (ys.min().item(), ys.max().item())
        assert row[4:6].tolist() == [1, 0]


def test_scattered_digits_overlap_no_more_than_they_may(digits):
    data = scatter_digits(digits, 30, 6, size=48, number=(3, 5), overlap=0.1)
    counts = (data.objects[..., 0] == 0).sum(1)
    assert counts.max() > 2
    assert counts.min() >= 1
    x, y, width, height = (data.objects[..., column] for column in (2, 3, 6, 7))
    for image in range(len(data)):
        for i in range(int(counts[image])):
            for j in range(int(counts[image])):
                if i != j:
                    across = (width[image, i] + width[image, j]) / 2 - (x[image, i] - x[image, j]).abs()
                    down = (height[image, i] + height[image, j]) / 2 - (y[image, i] - y[image, j]).abs()
                    inside = min(across, width[image, i]).clamp_min(0) * min(down, height[image, i]).clamp_min(0)
                    assert inside <= 0.1 * width[image, i] * height[image, i] + 1e-3
    assert torch.equal(data.images, scatter_digits(digits, 30, 6, size=48, number=(3, 5), overlap=0.1).images)


def test_twins_are_of_one_class_at_their_distance(digits):
    data = scatter_digits(digits, 10, 7, size=64, twin=9.0)
    assert torch.equal(data.objects[:, 0, 1], data.objects[:, 1, 1])
    apart = torch.hypot(*(data.objects[:, 0, 2:4] - data.objects[:, 1, 2:4]).T)
    assert (apart - 9).abs().max() < 2


@pytest.mark.parametrize("wrong", [{"number": (0, 2)}, {"overlap": 2.0}, {"size": 0}, {"size": 10}])
def test_impossible_scattering_is_refused(digits, wrong):
    with pytest.raises(UserError, match="scattered digits"):
        scatter_digits(digits, 3, 0, **wrong)


def test_scattered_digits_are_a_data_set(monkeypatch):
    from torchcaps.data.datasets import scattered

    monkeypatch.setattr(scattered, "TRAINING_IMAGES", 5)
    monkeypatch.setattr(scattered, "TEST_IMAGES", 3)
    splits = load_data("scattered-digits")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (5, 3, 3)
    assert isinstance(splits.train, ObjectDataset)
    with pytest.raises(UserError, match="image_size"):
        load_data("scattered-digits", image_size=64)
    assert len(load_data("scattered-digits", limit=2).train) == 2
    with pytest.raises(UserError, match="several classes; use limit"):
        load_data("scattered-digits", per_class=1)
    with pytest.raises(UserError, match="scenes is drawn"):
        load_data("scenes", image_size=64)
