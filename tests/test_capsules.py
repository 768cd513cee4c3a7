"""Capsules: pose and activation, together."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchcaps.capsules import Capsules, as_capsules, length

POSE = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
GIVEN = torch.rand(2, 3, generator=torch.Generator().manual_seed(1))
both = pytest.mark.parametrize("capsules", [Capsules(POSE), Capsules(POSE, GIVEN)], ids=["lengths", "given"])


class Doubled(nn.Module):
    def forward(self, capsules: Capsules) -> Capsules:
        capsules = as_capsules(capsules)
        return Capsules(2 * capsules.pose, capsules.activation)


def test_activation_is_the_length_unless_given():
    pose = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    assert Capsules(pose).activation.tolist() == [[5.0, 1.0]]
    assert Capsules(pose, torch.tensor([[0.3, 0.4]])).activation.tolist() == [[pytest.approx(0.3), pytest.approx(0.4)]]


def test_convolutional_activation_has_no_pose_axis():
    pose = torch.randn(2, 3, 4, 5, 6)  # (B, T, D, H, W)
    activation = Capsules(pose).activation
    assert activation.shape == (2, 3, 5, 6)
    torch.testing.assert_close(activation, pose.square().sum(2).sqrt())


def test_a_plain_tensor_is_a_pose():
    pose, capsules = torch.randn(2, 3, 4), Capsules(torch.randn(1, 2, 3))
    assert as_capsules(pose).pose is pose
    assert as_capsules(capsules) is capsules


def test_repr_tells_the_shape():
    assert repr(Capsules(torch.zeros(2, 3, 4))) == "Capsules(pose=(2, 3, 4), dtype=torch.float32, device=cpu)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_length_at_zero_has_zero_gradient(dtype):
    pose = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    lengths = length(pose)
    lengths.sum().backward()
    assert lengths.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(pose.grad, torch.zeros_like(pose))


def test_the_length_follows_a_pose_that_changes_in_place():
    capsules = Capsules(POSE.clone())
    before = capsules.activation
    capsules.pose.mul_(3)
    torch.testing.assert_close(capsules.activation, 3 * before)


@both
def test_is_an_immutable_tuple_of_what_it_holds(capsules):
    assert capsules[0] is capsules.pose
    assert len(capsules) == 1 or capsules[1] is capsules.activation
    with pytest.raises(AttributeError):
        capsules.pose = POSE


@both
def test_a_tree_map_reaches_the_stored_tensors_only(capsules):
    leaves, spec = pytree.tree_flatten(capsules)
    halves = pytree.tree_map(lambda x: x / 2, capsules)
    assert len(leaves) == (1 if torch.equal(capsules.activation, length(POSE)) else 2)
    assert torch.equal(pytree.tree_unflatten(leaves, spec).activation, capsules.activation)
    assert isinstance(halves, Capsules)
    torch.testing.assert_close(halves.activation, capsules.activation / 2)


@both
@pytest.mark.parametrize("given", [list, tuple, iter])
def test_is_rebuilt_from_what_it_holds_as_other_tuples_are(capsules, given):
    other = type(capsules)(given(capsules))
    assert isinstance(other, Capsules)
    assert all(one is same for one, same in zip(other, capsules, strict=True))


@both
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "deepcopy", "pickle"]
)
def test_copies_hold_the_same_values(capsules, copied):
    other = copied(capsules)
    assert torch.equal(other.pose, capsules.pose)
    assert torch.equal(other.activation, capsules.activation)


@both
def test_export_compile_and_vmap_take_and_return_capsules(capsules):
    expected = Doubled()(capsules)
    exported = torch.export.export(Doubled(), (capsules,)).module()(capsules)
    compiled = torch.compile(Doubled(), fullgraph=True, backend="eager")(capsules)
    mapped = torch.func.vmap(Doubled())(pytree.tree_map(lambda x: x[None], capsules))
    for found in (exported, compiled, pytree.tree_map(lambda x: x[0], mapped)):
        assert isinstance(found, Capsules)
        torch.testing.assert_close(tuple(found), tuple(expected))


def test_backward_hooks_see_the_gradients_of_both():
    seen, layer, pose = [], Doubled(), POSE.clone().requires_grad_()
    layer.register_full_backward_hook(lambda module, given, found: seen.append([x.shape for x in found]))
    parents = layer(pose)
    (parents.pose.sum() + parents.activation.sum()).backward()
    assert seen == [[POSE.shape, GIVEN.shape]]


def test_a_plain_pair_becomes_capsules():
    assert torch.equal(as_capsules((POSE, GIVEN)).activation, GIVEN)
    assert torch.equal(as_capsules((POSE,)).activation, length(POSE))


@pytest.mark.parametrize(
    ("pose", "activation"), [((2, 3, 4), (2, 5)), ((2, 3, 4), (2, 3, 1)), ((2, 3, 4, 5, 5), (2, 3, 5))]
)
def test_an_activation_of_other_capsules_is_refused(pose, activation):
    with pytest.raises(ValueError, match=r"DenseCaps: expected one activation for each capsule, \(2, 3.*, got \(2, "):
        as_capsules(Capsules(torch.randn(pose), torch.rand(activation)), "DenseCaps")


def test_an_array_is_refused_with_the_fix():
    with pytest.raises(TypeError, match="got ndarray; convert arrays with torch.as_tensor"):
        as_capsules(np.zeros((2, 3, 4)))
