"""Decoders: any image shape, values between 0 and 1; and the mask that chooses what they see."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.layers import ConvDecoder, Decoder, mask_capsules

POSES = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]], [[0.1, 0.0], [0.0, 0.2], [0.3, 0.3]]])  # (2, 3, 2)


def kept(masked):
    """Which capsules of each example were left as they were; the others must be zero."""
    same, zero = (masked == POSES).all(-1), (masked == 0).all(-1)
    assert (same | zero).all()
    return same.tolist()


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (torch.tensor([2, 0]), [[False, False, True], [True, False, False]]),
        (torch.tensor([[1, 1, 0], [0, 0, 0]]), [[True, True, False], [False, False, False]]),
        (torch.tensor([[True, False, True], [False, True, False]]), [[True, False, True], [False, True, False]]),
        (None, [[False, True, False], [False, False, True]]),
    ],
    ids=["ids", "multi-hot", "bool", "longest"],
)
def test_mask(targets, expected):
    assert kept(mask_capsules(POSES, targets)) == expected
    assert kept(mask_capsules(Capsules(POSES), targets)) == expected


def test_mask_goes_by_activation_where_there_is_one():
    activation = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.9, 0.1]])
    assert kept(mask_capsules(Capsules(POSES, activation))) == [[True, False, False], [False, True, False]]


def test_mask_names_a_wrong_number_of_classes():
    with pytest.raises(ValueError, match="targets are for 4 classes, the model has 3"):
        mask_capsules(POSES, torch.zeros(2, 4))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 17, 23), (1, 100, 64), (1, 5, 3)], ids=str)
@pytest.mark.parametrize("kind", [Decoder, ConvDecoder])
def test_any_image_shape(kind, shape):
    decoder = kind(3, 4, shape)
    for B in (0, 1, 2):
        image = decoder(100 * torch.randn(B, 3, 4))
        assert image.shape == (B, *shape)
        assert ((image >= 0) & (image <= 1)).all()
    image.sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


@pytest.mark.parametrize("kind", [Decoder, ConvDecoder])
def test_pixels_use_the_whole_range(kind):
    """A sigmoid at the end: the last bias alone makes an image grey, black or white."""
    decoder = kind(3, 4, (1, 16, 16))
    last = [module for module in decoder.modules() if hasattr(module, "bias")][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(-math.log(3))
        torch.testing.assert_close(decoder(torch.randn(2, 3, 4)), torch.full((2, 1, 16, 16), 0.25))
        last.bias.fill_(-20)
        assert decoder(torch.randn(2, 3, 4)).max() < 1e-3
        last.bias.fill_(20)
        assert decoder(torch.randn(2, 3, 4)).min() > 1 - 1e-3


def test_dense_decoder_is_the_papers():
    decoder = Decoder(10, 16, (1, 28, 28))
    widths = [(layer.in_features, layer.out_features) for layer in decoder.layers if hasattr(layer, "in_features")]
    assert widths == [(160, 512), (512, 1024), (1024, 784)]
    assert Decoder(2, 4, (1, 5, 5), hidden=())(torch.zeros(1, 2, 4)).shape == (1, 1, 5, 5)


def test_convolutional_decoder_does_not_grow_with_the_image():
    small, large = (sum(p.numel() for p in ConvDecoder(10, 16, (3, s, s)).parameters()) for s in (64, 256))
    assert large < 1.2 * small


def test_pixels_are_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        for kind in (Decoder, ConvDecoder):
            assert kind(3, 4, (1, 9, 9))(torch.randn(2, 3, 4)).dtype == torch.float32


@pytest.mark.parametrize("kind", [Decoder, ConvDecoder])
def test_a_decoder_of_another_size_is_named(kind):
    decoder = kind(3, 4, (1, 8, 8))
    with pytest.raises(
        ValueError, match=r"expected poses of shape \(B, 3, 4\), got \(2, 5, 4\); give capsules and dim"
    ):
        decoder(torch.rand(2, 5, 4))
    assert decoder(torch.rand(2, 12)).shape == (2, 1, 8, 8)  # poses may be flat


@pytest.mark.parametrize("kind", [Decoder, ConvDecoder])
def test_what_is_not_masked_poses_is_named(kind):
    decoder = kind(3, 4, (1, 8, 8))
    with pytest.raises(TypeError, match=r"expected masked poses, got Capsules; use mask_capsules\(capsules, targets\)"):
        decoder(Capsules(torch.rand(2, 3, 4)))
    with pytest.raises(TypeError, match="poses must be a tensor, got ndarray"):
        decoder(torch.rand(2, 3, 4).numpy())
    with pytest.raises(
        TypeError, match=r"poses must hold floating-point numbers, got torch.int64; use poses.float\(\)"
    ):
        decoder(torch.ones(2, 3, 4, dtype=torch.int64))
