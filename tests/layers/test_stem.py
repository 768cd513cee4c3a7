"""Convolutions that halve a map twice: by hand, their sizes, and what a shift of the image does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.layers.stem import STRIDE, BlurPool, ConvStem


def test_blur_pool_by_hand():
    image = torch.tensor([[16.0, 0.0, 0.0], [0.0, 32.0, 0.0], [0.0, 0.0, 48.0]])
    # At each corner: 4 of 16 parts of itself, 1 of the middle one.
    expected = torch.tensor([[4.0 + 2.0, 2.0], [2.0, 12.0 + 2.0]])
    found = BlurPool(2)(torch.stack([image, 10 * image])[None])
    torch.testing.assert_close(found, torch.stack([expected, 10 * expected])[None])


def test_blur_pool_keeps_what_is_flat_away_from_the_border():
    assert BlurPool(1)(torch.ones(1, 1, 8, 8))[0, 0, 1:, 1:].eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "pooled"), [((7, 8), (4, 4)), ((1, 2), (1, 1)), ((9, 5), (5, 3))], ids=str)
def test_blur_pool_sizes(size, pooled, dtype):
    found = BlurPool(3)(torch.ones(2, 3, *size, dtype=dtype))
    assert found.shape == (2, 3, *pooled)
    assert found.dtype == dtype


@pytest.mark.parametrize(
    ("size", "places"), [((28, 28), (7, 7)), ((29, 31), (8, 8)), ((33, 36), (9, 9)), ((1, 5), (1, 2))], ids=str
)
def test_stem_sizes(size, places):
    stem = ConvStem(3, 4)
    assert stem(torch.rand(2, 3, *size)).shape == (2, stem.out_channels, *places)
    assert [layer.out_channels for layer in stem if isinstance(layer, nn.Conv2d)] == [2, 4, 8, 8, 16, 16]


def test_shift_by_the_stride_moves_the_map_by_one_place():
    stem = ConvStem(1, 4).double()
    image = torch.rand(1, 1, 64, 64, dtype=torch.float64)
    for norm in (layer for layer in stem if isinstance(layer, nn.BatchNorm2d)):
        norm.momentum = 1.0  # takes the statistics of this image
    stem(image)
    stem.eval()
    before, after = stem(image), stem(image.roll((STRIDE, -STRIDE), (2, 3)))
    # A place sees 17 pixels in every direction; those whose pixels are all in both images are compared.
    torch.testing.assert_close(after[..., 6:11, 5:10], before[..., 5:10, 6:11])
    other = stem(image.roll(STRIDE - 1, 2))
    assert (other[..., 6:11, 5:10] - before[..., 5:10, 5:10]).abs().max() > 1e-3
    assert before[..., 5:10, 6:11].std() > 0.01
