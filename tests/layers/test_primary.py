"""PrimaryCaps: which number of the convolution ends up in which capsule."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps import testing
from torchcaps.capsules import Capsules
from torchcaps.layers import PrimaryCaps
from torchcaps.ops import squash


@pytest.mark.parametrize(
    ("shape", "options", "children"),
    [
        ((2, 4, 9, 11), {}, 3 * 1 * 2),
        ((2, 4, 9, 11), {"kernel_size": 3, "stride": 1}, 3 * 7 * 9),
        ((2, 4, 9, 11), {"kernel_size": 3, "stride": 2, "padding": 1}, 3 * 5 * 6),
        ((1, 1, 9, 9), {}, 3),
        ((0, 4, 9, 9), {}, 3),
    ],
    ids=["default", "stride-1", "padded", "one-position", "empty-batch"],
)
def test_shapes(shape, options, children):
    capsules = PrimaryCaps(shape[1], 3, 5, **options)(torch.randn(shape))
    assert isinstance(capsules, Capsules)
    assert capsules.pose.shape == (shape[0], children, 5)
    assert capsules.activation.shape == (shape[0], children)


def test_order_is_type_then_row_then_column():
    layer = PrimaryCaps(2, types=3, dim=4, kernel_size=3, stride=1)
    features = torch.randn(2, 2, 6, 7)
    maps = layer.conv(features)  # (2, 12, 4, 5)
    pose = layer(features).pose.view(2, 3, 4, 5, 4)
    for t, y, x in [(0, 0, 0), (1, 2, 3), (2, 3, 4)]:
        torch.testing.assert_close(pose[:, t, y, x], squash(maps[:, 4 * t : 4 * t + 4, y, x]))


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
def test_routed_form_is_the_authors(leaky):
    # The convolution has no bias; each type's sum is divided by the number of types (one more when leaky) plus 0.1
    layer = PrimaryCaps(2, types=4, dim=3, kernel_size=3, stride=1, routed=True, leaky=leaky).double()
    features = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    assert layer.conv.bias is None
    expected = squash((layer.conv(features) / (5 if leaky else 4) + 0.1).view(2, 4, 3, 9), dim=2)
    torch.testing.assert_close(layer(features).pose, expected.mT.reshape(2, 36, 3), rtol=1e-6, atol=1e-6)
    assert layer.bias.requires_grad


def test_properties():
    layer = PrimaryCaps(2, 3, 4, kernel_size=3, routed=True)
    features = torch.randn(3, 2, 6, 6)
    testing.assert_batch_independent(layer, features)
    testing.assert_lengths_bounded(layer, features)
    testing.assert_gradcheck(layer, features[:1])


def moved(layer):
    """What the layer computes when its convolution is called as a module."""
    return squash(layer.conv(FEATURES).view(2, 3, 4, -1), dim=2).mT.reshape(2, -1, 4)


FEATURES = torch.randn(2, 2, 7, 7, generator=torch.Generator().manual_seed(0))
CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(2, 12, 3),
    "dilated": lambda: nn.Conv2d(2, 12, 3, dilation=2),
    "grouped": lambda: nn.Conv2d(2, 12, 3, groups=2),
    "circular": lambda: nn.Conv2d(2, 12, 3, padding=1, padding_mode="circular"),
    "reflected": lambda: nn.Conv2d(2, 12, 3, padding=(1, 2), padding_mode="reflect"),
    "same": lambda: nn.Conv2d(2, 12, 3, padding="same"),
    "valid": lambda: nn.Conv2d(2, 12, (2, 3), padding="valid"),
    "no-bias": lambda: nn.Conv2d(2, 12, 3, bias=False),
    "spectral-norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 12, 3)).eval(),
    "subclass": lambda: type("Doubled", (nn.Conv2d,), {"forward": lambda self, x: 2 * nn.Conv2d.forward(self, x)})(
        2, 12, 3
    ),
    "sequence": lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.Conv2d(5, 12, 1)),
    "lazy": lambda: nn.LazyConv2d(12, 3),
}


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_any_convolution_is_called_as_it_would_call_itself(conv):
    layer = PrimaryCaps(2, 3, 4)
    layer.conv = CONVOLUTIONS[conv]()
    torch.testing.assert_close(layer(FEATURES).pose, moved(layer))


def test_what_replaces_forward_is_called():
    layer = PrimaryCaps(2, 3, 4, kernel_size=3)
    forward = layer.conv.forward
    layer.conv.forward = lambda x: 0 * forward(x)
    assert not layer(FEATURES).pose.any()


def test_what_replaces_the_convolution_inside_is_given_the_bias():
    layer = PrimaryCaps(2, 3, 4, kernel_size=3)
    convolve, given = layer.conv._conv_forward, []
    layer.conv._conv_forward = lambda x, weight, bias: given.append(bias) or convolve(x, weight, bias)
    torch.testing.assert_close(layer(FEATURES).pose, moved(layer))
    assert given[0] is layer.conv.bias


def test_maps_that_do_not_fit_are_named():
    layer = PrimaryCaps(2, 3, 4)
    layer.conv = nn.Conv2d(2, 12, (3, 5), padding=(1, 0), dilation=2)
    with pytest.raises(ValueError, match=r"\(B, 2, H, W\) of at least 3×9, got \(1, 2, 2, 9\)"):
        layer(torch.zeros(1, 2, 2, 9))
    layer.conv = nn.Conv2d(2, 8, 3)
    with pytest.raises(ValueError, match=r"conv must return maps of shape \(B, 3·4, H, W\), got .* 12 output channels"):
        layer(FEATURES)


def test_repr_names_types_and_dim():
    assert "types=3, dim=4" in repr(PrimaryCaps(2, 3, 4))
