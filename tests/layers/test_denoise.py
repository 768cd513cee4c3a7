"""The first layer against noise: what it takes for noise, and what it leaves of an image."""

from __future__ import annotations

import pytest
import torch

from torchcaps.layers.denoise import Denoise, noise_level, smooth

FLAT = {"black": 0.0, "grey": 0.3, "white": 1.0}
flat = pytest.mark.parametrize("value", FLAT.values(), ids=FLAT)


def strokes(side: int = 20) -> torch.Tensor:
    """(2, 1, side, side): a cross and a frame, white on black; more than half of each is black."""
    images = torch.zeros(2, 1, side, side)
    images[0, :, 8:10, 3:-3] = images[0, :, 3:-3, 8:10] = 1
    images[1, :, 4:-4, 4:-4] = 1
    images[1, :, 6:-6, 6:-6] = 0
    return images


@pytest.mark.parametrize("std", [0.02, 0.2, 1.5])
@pytest.mark.parametrize("channels", [1, 3])
def test_noise_is_measured_and_strokes_are_not(std, channels):
    images = strokes(80).repeat(1, channels, 1, 1)
    found = noise_level(images + std * torch.randn_like(images))
    assert found.shape == (2, 1, 1, 1)
    torch.testing.assert_close(found, torch.full_like(found, std), rtol=0.05, atol=0)


def test_images_that_are_mostly_flat_have_no_noise():
    noise = torch.rand(4, 2, 11, 11)
    noise[..., :6] = 0.7  # six of eleven columns
    assert not noise_level(noise).any()
    noise[..., :4] = torch.rand(4, 2, 11, 4)
    assert (noise_level(noise) > 0.1).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 1)], ids=str)
def test_one_row_or_column_has_no_noise(size):
    assert not noise_level(torch.rand(2, 3, *size)).any()


def test_noise_level_by_hand():
    images = torch.tensor([[0.0, 0.4], [0.1, 1.0]])
    assert noise_level(images[None, None]).item() == pytest.approx((1.0 - 0.4 - 0.1 + 0.0) / 2 / 0.6745)


def test_smoothing_keeps_flat_images_and_the_sum_of_a_dot():
    grey = torch.full((1, 2, 5, 7), 0.3)
    torch.testing.assert_close(smooth(grey, 0.6), grey)
    dot = torch.zeros(1, 2, 15, 15)
    dot[..., 7, 7] = 1
    spread = smooth(dot, 1.0)
    torch.testing.assert_close(spread.sum((-2, -1)), torch.ones(1, 2))
    assert (spread[..., 7, 8] / spread[..., 7, 7]).tolist() == [pytest.approx([0.6065, 0.6065], abs=1e-4)]


@flat
@pytest.mark.parametrize("size", [(1, 1), (2, 9), (28, 28)], ids=str)
def test_flat_images_stay_flat_and_black_stays_black(value, size):
    found = Denoise()(torch.full((2, 3, *size), value))
    assert found.isfinite().all()
    torch.testing.assert_close(found, found[:, :1, :1, :1].expand_as(found))
    assert found.any() == (value > 0)


def test_ground_stays_black():
    found = Denoise()(strokes())
    assert found[0, 0, 8, 4] > 0.9
    assert not found[:, :, 0].any()  # further from a stroke than smoothing reaches


def test_noise_is_taken_out():
    clean = strokes(40)
    noisy = clean + 0.2 * torch.randn_like(clean)
    layer = Denoise()
    left = (layer(noisy) - layer(clean)).square().mean().sqrt()
    assert left < 0.1


@flat
def test_gradients_of_flat_images_are_finite(value):
    layer, images = Denoise(), torch.full((2, 1, 9, 9), value, requires_grad=True)
    layer(images).square().sum().backward()
    for tensor in (images, layer.slope, layer.level):
        assert tensor.grad.isfinite().all()


def test_gradients():
    layer = Denoise().double()
    images = torch.rand(2, 1, 5, 6, dtype=torch.float64)
    weights = torch.randn_like(images)

    def answer(slope, level):
        state = {"slope": slope, "level": level}
        return (torch.func.functional_call(layer, state, images) * weights).sum()

    assert torch.autograd.gradcheck(answer, (layer.slope, layer.level))


@pytest.mark.parametrize("noise", [0.0, 0.5], ids=["clean", "noisy"])  # w is 0, and 1
def test_contrast_does_not_matter(noise):
    images = strokes() + noise * torch.rand(2, 1, 20, 20)
    layer = Denoise()
    torch.testing.assert_close(layer(0.5 * images), layer(images))
    assert layer(0.05 * images).max() < 0.5  # fainter than `faintest`: not brightened further


def test_the_rest_of_a_batch_changes_nothing():
    layer, images = Denoise(), torch.cat([strokes(), torch.rand(1, 1, 20, 20), torch.zeros(1, 1, 20, 20)])
    whole = layer(images)
    for index in range(4):
        torch.testing.assert_close(layer(images[index : index + 1])[0], whole[index])
    assert layer(images[:0]).shape == (0, 1, 20, 20)
