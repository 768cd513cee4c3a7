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


CLASSIFIERS = {
    "capsnet_small": {"decoder": "auto"},
    "capsnet_small without a decoder": {"decoder": "none"},
    "efficient_capsnet": {"channels": (4, 4, 4, 8), "hidden": (4,)},
    "em_capsnet": {"channels": 4, "primary": 2, "first": 2, "second": 2},
    "posecaps_small": {"width": 4, "types": 2},
    "backbone_caps": {"backbone_options": {"channels": (4,)}, "decoder": "conv"},
    "backbone_caps without a decoder": {"backbone_options": {"channels": (4,)}},
    "backbone_linear": {"backbone_options": {"channels": (4,)}},
    "pooled_cnn": {},
    "small_resnet": {},
    "strong_cnn": {},
    "baseline_cnn": {"channels": (4, 4, 4), "hidden": (4,)},
}
WRONG_TARGETS = [
    (torch.tensor([3, 10]), ValueError, r"must be in 0…9 for 10 classes, got 10; number the classes from 0"),
    (torch.tensor([-1, 3]), ValueError, r"must be in 0…9 for 10 classes, got -1"),
    (torch.tensor([3]), ValueError, "2 examples, but 1 targets"),
    (torch.tensor([3.0, 4.0]), ValueError, r"must be integers, got torch.float32; use targets.long\(\)"),
    (torch.zeros(2, 11), ValueError, r"targets .*11"),
    ([3, 4], TypeError, r"targets must be a tensor, got list; use torch.as_tensor\(targets\)"),
]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_name_wrong_targets(name, training):
    model = create_model(name.partition(" ")[0], image_shape=(1, 32, 32), **CLASSIFIERS[name]).train(training)
    for targets, error, message in WRONG_TARGETS:
        with pytest.raises(error, match=message):
            model(IMAGES, targets)
    with pytest.raises(ValueError, match="must be in 0…9 for 10 classes, got 11"):
        model(IMAGES, each=torch.tensor([[1, 2], [3, 11]]))
    for targets in (torch.tensor([3, 9]), torch.zeros(2, 10), torch.ones(2, 10, dtype=torch.bool)):
        assert model(IMAGES, targets).lengths.shape == (2, 10)
