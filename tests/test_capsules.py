"""Capsules: pose and activation, together."""

from __future__ import annotations

import pytest
import torch

from torchcaps.capsules import Capsules, as_capsules, length


def test_activation_is_the_length_unless_given():
    pose = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    assert Capsules(pose).activation.tolist() == [[5.0, 1.0]]
    assert Capsules(pose, torch.tensor([[0.3, 0.4]])).activation.tolist() == [[pytest.approx(0.3), pytest.approx(0.4)]]


def test_convolutional_activation_has_no_pose_axis():
    pose = torch.randn(2, 3, 4, 5, 6)  # (B, T, D, H, W)
    activation = Capsules(pose).activation
    assert activation.shape == (2, 3, 5, 6)
    torch.testing.assert_close(activation, pose.square().sum(2).sqrt())


def test_unpacks_into_pose_and_activation():
    pose = torch.randn(2, 3, 4)
    unpacked_pose, activation = Capsules(pose)
    assert unpacked_pose is pose
    torch.testing.assert_close(activation, pose.norm(dim=-1))


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
