"""Segmentation as a task: its losses, Dice, and whole images by tiles."""

import pytest
import torch

from torchcaps.data import SegmentationDataset
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED, dice_loss, mask_cross_entropy
from torchcaps.models import SegmentationOutput, create_model, tiles
from torchcaps.models.tiles import predict_map
from torchcaps.train.recipe import LossSection
from torchcaps.train.tasks.segmentation import SegmentationTask


def small(name="segcaps", **options):
    sizes = {"segcaps": {"channels": 4, "width": 0.5}, "unet": {"channels": 2, "depth": 2}}[name]
    return create_model(name, image_shape=(1, 32, 32), **{**sizes, **options})


def test_weights_by_default_and_by_name():
    assert SegmentationTask.make(small(), None, LossSection()).weights == {"cross_entropy": 1.0, "reconstruction": 1.0}
    assert SegmentationTask.make(small("unet"), None, LossSection()).weights == {"cross_entropy": 1.0}
    mixed = SegmentationTask.make(small(), None, LossSection(dice=2.0, margin=0.5, reconstruction=0.0))
    assert mixed.weights == {"dice_loss": 2.0, "margin": 0.5}
    for section, message in (
        (LossSection(cross_entropy=0.0), "at least one of cross_entropy, dice and margin"),
        (LossSection(spread=1.0), "loss.spread is not for segmentation, which has loss.cross_entropy, loss.dice"),
    ):
        with pytest.raises(UserError, match=message):
            SegmentationTask.make(small(), None, section)
    with pytest.raises(UserError, match="no decoder"):
        SegmentationTask.make(small("unet"), None, LossSection(reconstruction=1.0))


def test_terms_are_the_losses_of_their_names():
    task = SegmentationTask(
        {"cross_entropy": 1.0, "dice_loss": 1.0, "margin": 1.0, "reconstruction": 1.0}, 2, positive_weight=3.0
    )
    presence, images = torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4)
    masks = torch.randint(0, 2, (2, 4, 4))
    terms = task.terms(SegmentationOutput(presence, reconstruction=images * masks[:, None]), images, masks)
    torch.testing.assert_close(terms["cross_entropy"], mask_cross_entropy(presence, masks, 3.0))
    torch.testing.assert_close(terms["dice_loss"], dice_loss(presence, masks))
    assert terms["reconstruction"].tolist() == [0.0, 0.0]
    assert set(task.terms(SegmentationOutput(presence), images, masks)) == {"cross_entropy", "dice_loss", "margin"}


def test_dice_is_by_hand_what_it_should_be():
    task = SegmentationTask({"dice_loss": 1.0}, 2)
    mask = torch.tensor([[1, 1, 0, IGNORED]])
    found = torch.tensor([[0.9, 0.1, 0.8, 0.9]])  # one of two found, one too many, one that nobody knows
    got = task.correct(torch.stack([found, found * 0])[:, None], torch.stack([mask, mask * 0]))
    assert got.tolist() == [pytest.approx(2 * 1 / (2 + 2)), 1.0]


def test_dice_of_several_classes_is_the_mean_without_the_background():
    task = SegmentationTask({"dice_loss": 1.0}, 3)
    masks = torch.tensor([[[0, 1, 1, 2]]])
    presence = torch.nn.functional.one_hot(torch.tensor([[[0, 1, 0, 2]]]), 3).movedim(-1, 1).float()
    assert task.correct(presence, masks).tolist() == [pytest.approx((2 / 3 + 1) / 2)]


def test_images_of_any_size_are_measured_one_by_one():
    model = small(num_classes=3)
    masks = [torch.randint(0, 3, size, dtype=torch.uint8) for size in ((9, 17), (16, 8))]
    images = [torch.randint(0, 256, (1, *mask.shape), dtype=torch.uint8) for mask in masks]
    segments = SegmentationDataset(images, masks, ("none", "a", "b"), ("x", "y"))
    task = SegmentationTask.make(model, None, LossSection(dice=1.0))
    result = task.evaluate(model.train(), segments)
    assert model.training
    assert [tuple(found.shape) for found in result.masks] == [(9, 17), (16, 8)]
    model.eval()
    expected = []
    for image, mask in zip(images, masks):
        with torch.no_grad():
            presence = model(image[None].float() / 255).probabilities
        expected.append((dice_loss(presence, mask[None].long()).item(), task.correct(presence, mask[None]).item()))
    assert result.loss == pytest.approx(sum(loss for loss, _ in expected) / 2, abs=1e-6)
    assert result.score == pytest.approx(sum(right for _, right in expected) / 2, abs=1e-6)


@pytest.mark.parametrize("name", ["segcaps", "unet"])
def test_tiles_change_no_pixel(name, monkeypatch):
    model = small(name).eval()
    monkeypatch.setattr(tiles, "TILE", 1)  # as small as the model's margin allows
    tile = 3 * model.margin + 2 * model.multiple
    image = torch.rand(1, 40, tile + 60)
    with torch.no_grad():
        whole = model(image[None]).probabilities[0]
    torch.testing.assert_close(predict_map(model, image), whole, atol=1e-5, rtol=1e-4)
