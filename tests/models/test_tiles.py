"""Tiles: the same answer as for the whole image, from parts of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.errors import UserError
from torchcaps.models import create_model
from torchcaps.models.tiles import _blend_weights, _tile_starts, predict_tiled

SIZES = [(64, 64), (65, 64), (100, 71), (97, 203), (30, 150), (1, 90), (129, 5)]


def looks(radius, padding_mode="zeros"):
    """A network that looks exactly so far around each pixel."""
    return nn.Conv2d(2, 3, 2 * radius + 1, padding=radius, padding_mode=padding_mode)


@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("batch", [1, 3], ids="batch{}".format)
def test_the_same_as_for_the_whole_image(size, batch):
    # Everywhere: at the image's border, too, a tile is padded just as the whole image is.
    image, model = torch.rand(2, *size), looks(5)
    whole = model(image[None])[0]
    answer = predict_tiled(model, image, tile=40, margin=5, batch=batch, align=4)
    torch.testing.assert_close(answer, whole, atol=1e-5, rtol=0)


def test_the_same_where_the_model_mirrors():
    image, model = torch.rand(2, 100, 71), looks(4, "reflect")
    answer = predict_tiled(model, image, tile=40, margin=4, align=1)
    torch.testing.assert_close(answer, model(image[None])[0], atol=1e-5, rtol=0)


def test_a_margin_too_small_is_seen_at_the_cuts_only():
    image, model = torch.rand(2, 64, 100), looks(5)
    answer = predict_tiled(model, image, tile=64, margin=4, align=4)
    differ = ((answer - model(image[None])[0]).abs() > 1e-5).any(0).any(0).nonzero().flatten()
    length, starts = _tile_starts(100, 64, 4, 4)
    assert starts == [0, 36]
    assert differ.tolist() == [36 + 4, length - 5]  # the fifth pixel from a cut counts, and sees beyond it


@pytest.mark.parametrize("size", [(160, 131), (90, 161), (81, 80)], ids="{0[0]}x{0[1]}".format)
def test_the_grid_of_pooling_is_kept(size):
    model = create_model("unet", channels=4, depth=2).eval()
    image = torch.rand(1, *size)
    whole = model(image[None]).probabilities[0]

    def differs(**options):
        answer = predict_tiled(lambda tiles: model(tiles).probabilities, image, tile=90, margin=24, **options)
        return (answer - whole).abs().max().item()

    assert differs(align=4) < 1e-5
    assert size == (81, 80) or differs(align=1) > 1e-4


def test_no_tiling_where_none_is_needed():
    seen = []

    def model(tiles):
        seen.append(tuple(tiles.shape))
        return tiles[:, :1] / 3

    image = torch.rand(2, 48, 33)
    assert torch.equal(predict_tiled(model, image, tile=48, margin=8), image[:1] / 3)
    assert torch.equal(predict_tiled(model, image), image[:1] / 3)
    assert seen == [(1, 2, 48, 33)] * 2


@pytest.mark.parametrize("size", [*SIZES, (513, 1031)], ids="{0[0]}x{0[1]}".format)
def test_tiles_lie_inside_the_image_and_few_at_a_time(size):
    rows, columns = (torch.arange(n, dtype=torch.float32) for n in size)
    image = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
    corners = []

    def model(tiles):
        assert len(tiles) <= 4
        assert max(tiles.shape[2:]) <= 40
        corners.extend((tile[0, 0, 0].item(), tile[1, 0, 0].item(), *tile.shape[1:]) for tile in tiles)
        return tiles

    answer = predict_tiled(model, image, tile=40, margin=5, batch=4, align=8)
    torch.testing.assert_close(answer, image, atol=0, rtol=1e-6)
    assert all(top % 8 == left % 8 == 0 for top, left, *_ in corners)
    assert len({tuple(shape) for _, _, *shape in corners}) == 1
    assert len(corners) == len(set(corners))
    top, left, h, w = corners[-1]
    assert (top + h, left + w) == size


@pytest.mark.parametrize("size", [1, 40, 41, 48, 53, 80, 200, 1001])
@pytest.mark.parametrize(("margin", "align"), [(0, 1), (0, 8), (1, 3), (5, 8), (8, 8)])
def test_weights_sum_to_one_exactly(size, margin, align):
    length, starts = _tile_starts(size, 40, margin, align)
    weights = _blend_weights(size, length, starts, margin)
    assert (weights.sum(0) == 1).all()
    assert (weights >= 0).all()
    for weight, start in zip(weights, starts):
        end = start + length
        assert (weight[: start + margin] == 0).all() or start == 0
        assert (weight[end - margin :] == 0).all() or end == size or margin == 0


def test_weights_fall_linearly():
    length, starts = _tile_starts(68, 40, 4, 4)
    assert (length, starts) == (40, [0, 28])  # 12 pixels are shared: 4 for no use, 4 to blend, 4 for no use
    weights = _blend_weights(68, length, starts, 4)
    assert weights[0, 30:40].tolist() == [1, 1, 0.875, 0.625, 0.375, 0.125, 0, 0, 0, 0]


def test_probabilities_stay_probabilities():
    for answer in (1.0, 1 - 2**-24, 0.7):
        blended = predict_tiled(
            lambda x, p=answer: torch.full_like(x, p), torch.rand(1, 200, 173), tile=40, margin=7, align=1
        )
        assert blended.max() <= 1
        torch.testing.assert_close(blended, torch.full_like(blended, answer))
    blended = predict_tiled(torch.ones_like, torch.rand(1, 200, 173), tile=40, margin=7, align=1)
    assert (blended == 1).all()


def test_nothing_is_kept_for_a_gradient_and_sums_are_float32():
    image = torch.rand(2, 50, 50)
    assert not predict_tiled(looks(1), image, tile=40, margin=2).requires_grad
    assert predict_tiled(lambda tiles: tiles.bfloat16(), image, tile=40, margin=2).dtype == torch.float32
    assert predict_tiled(lambda tiles: tiles.double(), image, tile=40, margin=2).dtype == torch.float64


def test_mistakes_are_told():
    image = torch.rand(1, 50, 50)
    with pytest.raises(UserError, match="tiles of 40 are too small for a margin of 10: .* 46, or a smaller margin"):
        predict_tiled(torch.ones_like, image, tile=40, margin=10)
    with pytest.raises(UserError, match="batch and align must be at least 1"):
        predict_tiled(torch.ones_like, image, batch=0)
    with pytest.raises(ValueError, match=r"expected an image of shape \(C, H, W\), got \(1, 1, 50, 50\)"):
        predict_tiled(torch.ones_like, image[None])
    with pytest.raises(ValueError, match=r"returned \(1, 1, 49, 50\) for \(1, 1, 50, 50\), not \(1, K, 50, 50\)"):
        predict_tiled(lambda tiles: tiles[:, :, 1:], image)
