"""Matrix capsule layers: shapes, shared weights, places, mistakes."""

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import ClassCaps, DenseCaps, MatrixConvCaps2d, MatrixPrimaryCaps, anneal
from torchcaps.testing import assert_batch_independent, assert_gradcheck


def maps(B=2, T=3, P=2, H=5, W=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Capsules(torch.randn(B, T, P * P, H, W, generator=g), torch.rand(B, T, H, W, generator=g))


def test_primary_capsules_are_a_convolution_read_as_matrices():
    layer = MatrixPrimaryCaps(7, types=3, size=2)
    features = torch.randn(2, 7, 4, 5)
    capsules = layer(features)
    assert capsules.pose.shape == (2, 3, 4, 4, 5)
    assert capsules.activation.shape == (2, 3, 4, 5)
    torch.testing.assert_close(capsules.pose[:, 1, 2], layer.pose(features)[:, 1 * 4 + 2])
    torch.testing.assert_close(capsules.activation, layer.activation(features).sigmoid())


@pytest.mark.parametrize(
    ("kernel", "stride", "sides"), [(3, 1, (3, 4)), (3, 2, (2, 2)), (1, 1, (5, 6)), (5, 1, (1, 2))]
)
def test_convolutional_capsules_at_any_resolution(kernel, stride, sides):
    layer = MatrixConvCaps2d(3, 4, size=2, kernel=kernel, stride=stride, iterations=2)
    parents = layer(maps())
    assert parents.pose.shape == (2, 4, 4, *sides)
    assert parents.activation.shape == (2, 4, *sides)
    assert ((parents.activation > 0) & (parents.activation < 1)).all()


def test_what_happens_at_one_place_moves_with_it():
    layer = MatrixConvCaps2d(3, 4, size=2, kernel=3, stride=1, iterations=3)
    small = maps(H=5, W=5)
    pose, activation = torch.zeros(2, 3, 4, 12, 12), torch.zeros(2, 3, 12, 12)
    found = []
    for y, x in ((2, 2), (4, 5)):  # as far from the edge as a window reaches
        pose.zero_()[..., y : y + 5, x : x + 5] = small.pose
        activation.zero_()[..., y : y + 5, x : x + 5] = small.activation
        parents = layer(Capsules(pose, activation))
        found.append(parents.pose[..., y : y + 3, x : x + 3])
    torch.testing.assert_close(*found)


def test_class_capsules_know_where_a_child_is():
    layer = ClassCaps(3, 5, size=2, iterations=1)
    places = layer.places(2, 4).view(2, 4, 3, 2, 2)
    assert torch.equal(places[..., 0], torch.zeros(2, 4, 3, 2))
    assert places[:, 0, 0, 0, 1].tolist() == [0.25, 0.75]
    assert places[0, :, 0, 1, 1].tolist() == [0.125, 0.375, 0.625, 0.875]
    # One active child: the class's pose is its vote, the same matrix wherever it stands, and its place.
    for y, x in ((0, 0), (1, 3)):
        pose, activation = torch.randn(1, 3, 4, 2, 4), torch.zeros(1, 3, 2, 4)
        activation[0, 1, y, x] = 1
        parents = layer(Capsules(pose, activation))
        vote = pose[0, 1, :, y, x].view(2, 2) @ layer.weight[1, 4]
        torch.testing.assert_close(parents.pose[0, 4], (vote + places[y, x, 1]).flatten(), rtol=2e-3, atol=2e-3)


def test_class_capsules_give_couplings_when_asked():
    parents, couplings = ClassCaps(3, 5, size=2)(maps(), return_couplings=True)
    assert parents.pose.shape == (2, 5, 4)
    assert parents.activation.shape == (2, 5)
    assert couplings.shape == (2, 5 * 6 * 3, 5)
    torch.testing.assert_close(couplings.sum(2), torch.ones(2, 90))


def test_the_inverse_temperature_is_kept_with_the_weights():
    layer = ClassCaps(3, 5, size=2, inverse_temperature=0.01)
    layer.inverse_temperature.fill_(5.0)
    again = ClassCaps(3, 5, size=2, inverse_temperature=0.02)
    before = again(maps()).activation
    again.load_state_dict(layer.state_dict())
    assert float(again.inverse_temperature) == 5
    assert not torch.allclose(before, again(maps()).activation)


@pytest.mark.parametrize("make", [lambda **k: MatrixConvCaps2d(3, 4, size=2, **k), lambda **k: ClassCaps(3, 5, 2, **k)])
def test_a_plain_tensor_is_as_active_as_it_is_long(make):
    layer, pose = make(), maps().pose / 10
    torch.testing.assert_close(layer(pose), layer(Capsules(pose, pose.norm(dim=2))))


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: MatrixConvCaps2d(3, 4, size=2, **k),
        lambda **k: ClassCaps(3, 5, 2, **k),
        lambda **k: DenseCaps(6, 4, 3, 4, routing="em", **k),
    ],
    ids=["conv", "class", "dense"],
)
def test_any_module_with_em_layers_can_anneal(make):
    layer = make(inverse_temperature=(0.01, 0.1))
    stack = torch.nn.ModuleList([layer, make(inverse_temperature=0.05), DenseCaps(2, 2, 2, 2)])
    anneal(stack, 0.5)
    assert float(layer.inverse_temperature) == pytest.approx(0.055)
    assert float(stack[1].inverse_temperature) == pytest.approx(0.05)
    again = make(inverse_temperature=(0.01, 0.1))
    again.load_state_dict(layer.state_dict())
    assert float(again.inverse_temperature) == pytest.approx(0.055)
    children = maps() if not isinstance(layer, DenseCaps) else torch.rand(2, 6, 4) / 4
    before = layer(children).activation
    anneal(stack, 1)
    assert not torch.equal(before, layer(children).activation)


def test_one_default_temperature_everywhere():
    """It follows from all children and all parents, at every position: here 90 and 5, 90 and 4·5·4."""
    for make, expected in (
        (lambda **k: ClassCaps(3, 5, 2, **k), 5 / 90),
        (lambda **k: MatrixConvCaps2d(3, 5, 2, kernel=2, **k), 1.0),
        (lambda **k: MatrixConvCaps2d(3, 5, 2, kernel=5, **k), 5 * 2 / 90),
    ):
        layer = make()
        again = make(inverse_temperature=expected)
        again.load_state_dict({**layer.state_dict(), "inverse_temperature": again.inverse_temperature})
        torch.testing.assert_close(layer(maps()).activation, again(maps()).activation, rtol=0, atol=0)


def test_epsilon_and_floor_reach_the_routing():
    children = maps()
    for make in (
        lambda **k: MatrixConvCaps2d(3, 4, size=2, **k),
        lambda **k: ClassCaps(3, 5, 2, **k),
        lambda **k: DenseCaps(90, 4, 3, 4, routing="em", **k),
    ):
        layer = make()
        for change in ({"epsilon": 0.1}, {"floor": 0.1}):
            other = make(**change)
            other.load_state_dict(layer.state_dict())
            assert not torch.allclose(layer(children).pose, other(children).pose)


def test_children_of_one_pose_send_nearly_the_same_vote_to_all_parents_at_first():
    layer = MatrixConvCaps2d(3, 8)
    torch.testing.assert_close(layer.weight.mean((0, 1)), torch.eye(4), atol=0.02, rtol=0)
    assert 0.02 < (layer.weight - torch.eye(4)).std() < 0.1


def test_a_dense_layer_of_matrix_capsules():
    layer = DenseCaps(6, 4, 3, 4, routing="em")
    assert layer.weight.shape == (6, 3, 2, 2)
    parents, couplings = layer(torch.randn(2, 6, 4), return_couplings=True)
    assert (parents.pose.shape, parents.activation.shape) == ((2, 3, 4), (2, 3))
    torch.testing.assert_close(couplings.sum(2), torch.ones(2, 6))
    assert not torch.allclose(parents.activation, parents.pose.norm(dim=2))  # its own, not the length
    assert_batch_independent(layer, torch.randn(3, 6, 4))
    assert_gradcheck(layer, torch.randn(2, 6, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DenseCaps(6, 5, 3, 5, routing="em"), "same square number"),
        (lambda: DenseCaps(6, 4, 3, 9, routing="em"), "same square number"),
        (lambda: DenseCaps(6, 4, 3, 4, routing="em", bias=True), "supports neither bias nor leaky"),
        (lambda: DenseCaps(6, 4, 3, 4, routing="em", leaky=True), "supports neither bias nor leaky"),
        (lambda: MatrixConvCaps2d(3, 4, iterations=0), "iterations must be a whole number, at least 1"),
        (lambda: ClassCaps(0, 4), "in_types must be a whole number, at least 1, got 0"),
    ],
)
def test_layers_that_cannot_be_made(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_maps_that_do_not_fit_are_named():
    layer = MatrixConvCaps2d(3, 4, size=2)
    with pytest.raises(ValueError, match=r"expected poses of shape \(B, 3, 4, H, W\)"):
        layer(maps(T=2))
    with pytest.raises(ValueError, match=r"expected poses of shape \(B, 3, 4, H, W\)"):
        layer(maps(P=3))
    with pytest.raises(ValueError, match="a window of 3 does not fit on maps of 2×6"):
        layer(maps(H=2))
