"""What models say about images, masks and targets that they cannot take."""

from __future__ import annotations

import pytest
import torch

from torchcaps.models import create_model

SEGMENTING = ("segcaps", "unet")
DRAWING = ("capspix2pix_small", "pix2pix_small")
IMAGES = torch.rand(2, 1, 32, 32)
MASKS = torch.randint(0, 2, (2, 32, 32))
WRONG_IMAGES = [
    (IMAGES.numpy(), TypeError, r"expected a tensor of images, got ndarray; use model.prepare\("),
    ((255 * IMAGES).byte(), TypeError, r"expected floats in \[0, 1\], got torch.uint8; use model.prepare\(images\)"),
    (
        IMAGES.view(2, 32, 32, 1),
        ValueError,
        r"shape \(B, 1, H, W\), got \(2, 32, 32, 1\); .* images.permute\(0, 3, 1, 2\)",
    ),
    (IMAGES[0], ValueError, r"shape \(B, 1, H, W\), got \(1, 32, 32\); .* use images\[None\]"),
    (IMAGES.repeat(1, 3, 1, 1), ValueError, r"shape \(B, 1, H, W\), got \(2, 3, 32, 32\)$"),
]
OF_IMAGES = ("an array", "bytes", "channels last", "one image", "colours")
OPTIONS = {
    "segcaps": {"channels": 4, "width": 0.5},
    "unet": {"channels": 4, "depth": 2},
    "capspix2pix_small": {"channels": 4},
    "pix2pix_small": {"channels": 4},
}


def made(name):
    return create_model(name, image_shape=(1, 32, 32), **OPTIONS.get(name, {}))


@pytest.mark.parametrize(("images", "error", "message"), WRONG_IMAGES, ids=OF_IMAGES)
@pytest.mark.parametrize("name", SEGMENTING)
def test_segmentation_names_wrong_images_as_they_were_given(name, images, error, message):
    with pytest.raises(error, match=message):
        made(name)(images)


@pytest.mark.parametrize(("images", "error", "message"), WRONG_IMAGES, ids=OF_IMAGES)
@pytest.mark.parametrize("name", DRAWING)
def test_a_discriminators_images_are_those_of_a_model(name, images, error, message):
    with pytest.raises(error, match=message):
        made(name).discriminator_input(MASKS, images)


@pytest.mark.parametrize("size", [(32, 32), (9, 40), (48, 33)], ids=str)
@pytest.mark.parametrize("name", SEGMENTING)
def test_prepare_of_models_for_any_size_keeps_the_size(name, size):
    model = made(name)
    prepared = model.prepare(torch.full((2, 1, *size), 51, dtype=torch.uint8))
    assert torch.equal(prepared, torch.full((2, 1, *size), 0.2))
    assert model(prepared).probabilities.shape == (2, 1, *size)
    with pytest.raises(ValueError, match=r"prepare: expected images of shape \(B, 1, H, W\), got \(2, 3, 9, 9\)"):
        model.prepare(torch.zeros(2, 3, 9, 9))


@pytest.mark.parametrize("name", SEGMENTING)
def test_segmentation_names_wrong_masks(name):
    with pytest.raises(ValueError, match=r"\(B, channels, H, W\) and \(B, H, W\), got .* and \(2, 31, 32\)"):
        made(name)(IMAGES, MASKS[:, :31])
    with pytest.raises(TypeError, match=r"masks must be a tensor, got ndarray; use torch.as_tensor\(masks\)"):
        made(name)(IMAGES, MASKS.numpy())


@pytest.mark.parametrize("name", DRAWING)
def test_drawing_names_wrong_masks_and_noise(name):
    model, noise = made(name), torch.zeros(2, 100)
    model(MASKS.byte(), noise)
    with pytest.raises(TypeError, match=r"masks must be a tensor, got ndarray; use torch.as_tensor\(masks\)"):
        model(MASKS.numpy(), noise)
    with pytest.raises(
        TypeError, match=r"noise must hold floating-point numbers, got torch.int64; use noise.float\(\)"
    ):
        model(MASKS, noise.long())
    with pytest.raises(ValueError, match=r"got \(2, 1, 32, 16\) and \(2, 32, 32\)"):
        model.discriminator_input(MASKS, IMAGES[..., :16])
