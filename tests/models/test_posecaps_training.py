"""What pose capsules look at in training only: bent views, thicker strokes, images of nothing."""

from __future__ import annotations

import pytest
import torch

from torchcaps.capsules import length
from torchcaps.layers.denoise import Denoise
from torchcaps.models import create_model
from torchcaps.models.variations import cover, negatives, shuffle_patches


def make(**options):
    torch.manual_seed(0)
    small = {"width": 4, "types": 2, "class_dim": 4, "hidden": 8, "turn": 30}
    return create_model("posecaps", image_shape=(1, 12, 12), num_classes=3, **{**small, **options})


def batch(count=8):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 3


@pytest.mark.parametrize(("patch", "side"), [(3, 12), (1, 12), (5, 12)])
def test_shuffled_patches_are_the_same_in_another_order(patch, side):
    images, _ = batch()
    shuffled = shuffle_patches(images, patch)
    whole = side // patch * patch
    assert shuffled.shape == images.shape
    assert not shuffled[..., whole:, :].any()
    assert not shuffled[..., whole:].any()

    def patches(given):
        cut = given[..., :whole, :whole].unfold(2, patch, patch).unfold(3, patch, patch)
        return sorted(cut.reshape(-1, patch * patch).tolist())

    assert patches(shuffled[:1]) == patches(images[:1])
    assert not torch.equal(shuffled[..., :whole, :whole], images[..., :whole, :whole])


def test_images_of_nothing_come_in_four_kinds():
    images, _ = batch(10)
    made = negatives(images)
    assert made.shape == images.shape
    flat = made.flatten(1)
    assert ((flat - flat[:, :1]).abs().amax(1) < 1e-6).sum() == 2  # of ten images the fourth and the eighth
    assert made.amin() >= 0
    assert made.amax() <= 1
    assert negatives(torch.rand(4, 3, 2, 5)).shape == (4, 3, 2, 5)
    assert negatives(torch.rand(1, 1, 8, 8)).shape == (1, 1, 8, 8)


def test_a_rectangle_covers_a_bright_place():
    torch.manual_seed(0)
    images = torch.zeros(400, 2, 9, 12)
    images[:, :, 2:7, 3:8] = 1
    covered = cover(images, 4, 0.5)
    black = (images - covered).amax(1)  # 1 where it was covered
    assert ((black == 0) | (black == 1)).all()
    touched = black.flatten(1).any(1)
    assert 150 < touched.sum() < 250  # half of the images, each at a bright place
    assert black.amax(2).sum(1).max() <= 5
    assert black.amax(1).sum(1).max() <= 5
    for image in black[touched]:  # all of the rectangle's bright part is gone
        rows, columns = image.amax(1) > 0, image.amax(0) > 0
        assert image[rows][:, columns].all()
    assert torch.equal(cover(images, 4, 0.0), images)
    assert torch.equal(cover(torch.zeros(2, 1, 5, 5), 4, 1.0), torch.zeros(2, 1, 5, 5))


def test_parts_are_covered_in_training_only():
    model, (images, targets) = make(cover=6, negatives=0.0), batch()
    plain = make(negatives=0.0).train()
    torch.manual_seed(5)
    found = model.train()(images, targets).disagreement
    torch.manual_seed(5)
    given = cover(images, 6, 0.25)
    assert not torch.equal(given, images)
    assert torch.equal(plain(given, targets).disagreement, found)
    assert torch.equal(make(cover=6).eval()(images).lengths, make().eval()(images).lengths)


def test_absence_is_the_mean_squared_length_beyond_a_tenth():
    """By a plain loop, with the random poses of the forward pass drawn again."""
    model, (images, targets) = make(negatives=0.5).double().train(), batch()
    images = images.double()
    torch.manual_seed(5)
    found = model(images, targets).absence
    assert found.shape == (8,)
    assert (found == found[0]).all()
    torch.manual_seed(5)
    poses = model._random_poses(images)
    empty = negatives(images[:4])
    seen = model._view(model.denoise(images), poses).flatten(0, 1)
    nothing = model._view(model.denoise(empty), poses[:4, -1:]).flatten(0, 1)
    _, capsules, _ = model._encode(torch.cat([seen, nothing]))
    expected = 0.0
    for number in range(4):
        for label in range(3):
            expected += max(0.0, length(capsules)[24 + number, label].item() - 0.1) ** 2 / 4
    assert found[0].item() == pytest.approx(expected, rel=1e-12)


def test_training_makes_classes_absent_where_nothing_is_shown():
    torch.manual_seed(3)
    images = torch.zeros(24, 1, 12, 12)
    targets = torch.arange(24) % 3
    for number, label in enumerate(targets.tolist()):
        images[number, 0, 2 + 3 * label : 5 + 3 * label, 2:10] = 1  # a bar, higher or lower

    def trained(share):
        model = make(negatives=share, decoder="none", turn=15).train()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(60):
            out = model(images, targets)
            right = out.lengths[torch.arange(24), targets]
            loss = ((0.9 - right).relu().square()).mean() + (0 if out.absence is None else out.absence.mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            return model.eval()(negatives(images)).lengths.amax(1).mean().item()

    assert trained(0.5) < 0.6 * trained(0.0)


def test_answers_do_not_depend_on_what_training_adds():
    plain, changed = make(negatives=0.0), make(negatives=1.0, bend=2.0, thicken=0.3)
    changed.load_state_dict(plain.state_dict())
    images, targets = batch()
    for a, b in zip(plain.eval()(images, targets)[:2], changed.eval()(images, targets)[:2]):
        assert torch.equal(a, b)
    assert changed(images, targets).absence is None


def test_bent_views_differ_from_straight_ones():
    model, (images, _) = make(bend=1.0).train(), batch(2)
    poses = model._random_poses(images)
    bent = model._view(images, poses)
    model.bend = 0.0
    straight = model._view(images, poses)
    assert (bent - straight).abs().mean() > 0.01


def test_the_level_varies_in_training_alone():
    images, _ = batch(50)
    layer = Denoise(vary=0.2)
    assert torch.equal(layer.eval()(images), Denoise().eval()(images))
    shares = (layer.train()(images[:1].expand(50, -1, -1, -1)) > 0.5).float().mean((1, 2, 3))
    assert shares.std() > 0.02
