"""Convolutional capsules: shapes, what they equal in simple cases, and what a shift does."""

import pytest
import torch
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import ConvCaps2d, DeconvCaps2d, DenseCaps, MatrixConvCaps2d, PrimaryCaps
from torchcaps.ops import local_routing, squash
from torchcaps.ops.dispatch import using


def test_sizes_by_default():
    pose = torch.randn(2, 3, 4, 10, 8)
    assert ConvCaps2d(3, 4, 2, 5)(pose).pose.shape == (2, 2, 5, 10, 8)
    assert ConvCaps2d(3, 4, 2, 5, stride=2)(pose).pose.shape == (2, 2, 5, 5, 4)
    assert ConvCaps2d(3, 4, 2, 5, kernel=3, dilation=2)(pose).pose.shape == (2, 2, 5, 10, 8)
    assert DeconvCaps2d(3, 4, 2, 5)(Capsules(pose)).pose.shape == (2, 2, 5, 20, 16)
    assert DeconvCaps2d(3, 4, 2, 5, kernel=3, output_padding=1)(pose).pose.shape == (2, 2, 5, 20, 16)


def test_one_type_and_one_iteration_is_a_convolution_and_a_squash():
    pose, layer = torch.randn(2, 1, 4, 7, 7), ConvCaps2d(1, 4, 1, 6, kernel=3, iterations=1)
    plain = functional.conv2d(pose[:, 0], layer.weight, layer.bias[0], padding=1)
    torch.testing.assert_close(layer(pose).pose[:, 0], squash(plain, dim=1))
    back = DeconvCaps2d(1, 4, 1, 6, iterations=1)
    plain = functional.conv_transpose2d(pose[:, 0], back.weight, back.bias[0], stride=2, padding=1)
    torch.testing.assert_close(back(pose).pose[:, 0], squash(plain, dim=1))


def test_several_parents_share_a_child():
    pose, layer = torch.randn(1, 1, 2, 5, 5), ConvCaps2d(1, 2, 3, 2, kernel=3, iterations=1, bias=False)
    plain = functional.conv2d(pose[:, 0], layer.weight, padding=1).unflatten(1, (3, 2)) / 3
    parents, couplings = layer(pose, return_couplings=True)
    torch.testing.assert_close(parents.pose, squash(plain, dim=2))
    torch.testing.assert_close(couplings, torch.full((1, 1, 3, 5, 5), 1 / 3))


def test_uniform_routing_is_one_iteration_and_own_weights_are_one_for_each_type():
    pose = torch.randn(1, 2, 3, 6, 6)
    layer = ConvCaps2d(2, 3, 2, 4, routing="uniform", shared=False)
    assert layer.weight.shape == (2, 8, 3, 5, 5)
    once = ConvCaps2d(2, 3, 2, 4, iterations=1, shared=False)
    once.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(pose).pose, once(pose).pose)
    order = [1, 0]  # types with their weights in another order say the same
    once.weight.data = once.weight.data[order]
    torch.testing.assert_close(once(pose[:, order]).pose, layer(pose).pose)


@pytest.mark.parametrize(("layer", "step", "shift"), [("conv", 1, 1), ("conv", 2, 2), ("deconv", 2, 1)])
def test_shifting_children_shifts_parents(layer, step, shift):
    children = torch.randn(1, 2, 3, 16, 16)
    if layer == "conv":
        made, out = ConvCaps2d(2, 3, 2, 4, kernel=3, stride=step), shift // step
    else:
        made, out = DeconvCaps2d(2, 3, 2, 4), shift * step
    before, after = (made(x).pose for x in (children, children.roll(shift, -1)))
    edge = 4
    torch.testing.assert_close(after[..., edge:-edge], before.roll(out, -1)[..., edge:-edge])


def test_training_reaches_every_weight():
    layer = torch.nn.Sequential(ConvCaps2d(2, 3, 2, 4, stride=2), DeconvCaps2d(2, 4, 1, 3))
    layer(torch.randn(2, 2, 3, 8, 8)).pose.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())


@pytest.mark.parametrize("kind", [ConvCaps2d, DeconvCaps2d])
def test_couplings_carry_no_gradient(kind):
    parents, couplings = kind(2, 3, 2, 4)(torch.randn(1, 2, 3, 6, 6), return_couplings=True)
    assert parents.pose.requires_grad
    assert not couplings.requires_grad


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_couplings_of_every_path_carry_no_gradient(backend):
    with using(backend):
        layer, children = ConvCaps2d(2, 3, 2, 4), torch.randn(1, 2, 3, 6, 6)
        assert not layer(children, return_couplings=True)[1].requires_grad
        routed = local_routing(children, layer.weight, layer.bias, return_couplings=True)
        assert routed.poses.requires_grad
        assert not routed.couplings.requires_grad


@pytest.mark.parametrize(("T", "J", "E"), [(8, 8, 16), (32, 4, 8), (16, 32, 16)])
@pytest.mark.parametrize("kind", [ConvCaps2d, DeconvCaps2d])
@pytest.mark.parametrize("routing", ["dynamic", "uniform"])
def test_parents_start_about_half_long(kind, T, J, E, routing):
    torch.manual_seed(0)
    children = torch.randn(2, T, 8, 12, 12)
    children = 0.7 * children / children.norm(dim=2, keepdim=True)
    lengths = kind(T, 8, J, E, routing=routing, bias=False)(children).activation[..., 4:-4, 4:-4]
    assert 0.3 < lengths.mean() < 0.65


def test_an_activation_of_the_children_is_their_length():
    pose, activation, layer = torch.randn(1, 2, 3, 6, 6), torch.rand(1, 2, 6, 6), ConvCaps2d(2, 3, 2, 4)
    vectors = pose / pose.norm(dim=2, keepdim=True) * activation[:, :, None]
    torch.testing.assert_close(layer(Capsules(pose, activation)).pose, layer(vectors).pose)


def test_primary_convolutional_and_dense_capsules_are_stacked_as_they_are():
    stack = torch.nn.Sequential(
        PrimaryCaps(4, 3, 16, 3, maps=True),
        ConvCaps2d(3, 16, 2, 16, kernel=3),
        MatrixConvCaps2d(2, 5, kernel=3),
        ConvCaps2d(5, 16, 2, 8, kernel=3, stride=2),
        DenseCaps(2 * 2 * 2, 8, 6, 16),
        DenseCaps(6, 16, 3, 16, routing="em"),
    )
    features = torch.randn(2, 4, 14, 14)
    assert stack(features).pose.shape == (2, 3, 16)
    stack(features).activation.square().sum().backward()
    assert all(layer.weight.grad.abs().max() > 0 for layer in stack[1:])
    primary = PrimaryCaps(4, 3, 16, 3)
    primary.load_state_dict(stack[0].state_dict())
    dense = DenseCaps(3 * 6 * 6, 16, 2, 4)
    assert torch.equal(dense(stack[0](features)).pose, dense(primary(features)).pose)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations must be a whole number, at least 1"),
        (
            {"routing": "em"},
            "ConvCaps2d supports dynamic or uniform routing, got .em.; MatrixConvCaps2d uses EM routing",
        ),
        ({"routing": "self_attention"}, "supports dynamic or uniform routing, got .self_attention."),
        ({"stride": 0}, "stride must be a whole number, at least 1, got 0"),
    ],
)
def test_impossible_layers_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        ConvCaps2d(2, 3, 2, 4, **options)


def test_a_wrong_pose_is_named():
    with pytest.raises(ValueError, match=r"expected a pose of shape \(B, 2, 3, H, W\), got \(1, 3, 3, 4, 4\)"):
        ConvCaps2d(2, 3, 2, 4)(torch.zeros(1, 3, 3, 4, 4))
    with pytest.raises(ValueError, match=r"got \(1, 6, 3\); PrimaryCaps\(…, maps=True\) returns maps"):
        ConvCaps2d(2, 3, 2, 4)(torch.zeros(1, 6, 3))
