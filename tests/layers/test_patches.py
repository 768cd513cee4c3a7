"""A convolution as patches times a matrix is the convolution."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchcaps.layers.patches import PatchConv2d, convolve_patches


@pytest.mark.parametrize(
    ("channels", "kernel", "padding", "bias"),
    [(1, 9, 0, True), (3, 5, 2, True), (2, 1, 0, False), (4, 3, 1, False)],
    ids=["CapsNet's own", "colours, padded", "one pixel", "no bias"],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["channels first", "last"])
def test_result_and_gradients_are_those_of_a_convolution(channels, kernel, padding, bias, layout):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 7, kernel, padding=padding, bias=bias).double().to(memory_format=layout)
    images = torch.randn(3, channels, 11, 10, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    inputs = [images, *conv.parameters()]
    found, expected = convolve_patches(images, conv.weight, conv.bias, padding), conv(images)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous(memory_format=torch.channels_last)
    directions = torch.randn_like(expected)
    for got, wanted in zip(
        torch.autograd.grad(found, inputs, directions), torch.autograd.grad(expected, inputs, directions)
    ):
        assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_under_autocast_patches_are_small_numbers_and_so_is_the_result():
    conv = PatchConv2d(1, 4, 3)
    images = torch.rand(2, 1, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolve_patches(images, conv.weight, conv.bias)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), conv(images), atol=0.02)


def test_a_layer_with_the_weights_of_a_plain_one_gives_the_same():
    torch.manual_seed(0)
    plain, layer = nn.Conv2d(1, 4, 3, padding=1), PatchConv2d(1, 4, 3, padding=1)
    layer.load_state_dict(plain.state_dict())
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(layer(images), plain(images))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_few_channels_go_by_patches():
    torch.manual_seed(0)
    layer = PatchConv2d(1, 16, 9).cuda()
    images = torch.rand(4, 1, 28, 28, device="cuda")
    exact = functional.conv2d(images.double(), layer.weight.double(), layer.bias.double())
    assert torch.allclose(layer(images).double(), exact, atol=5e-3)
    assert layer(images).is_contiguous(memory_format=torch.channels_last)
