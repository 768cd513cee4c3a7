"""Similarities agree with affine maps, form a group, and have a logarithm."""

import torch

from torchcaps.geometry import Affine
from torchcaps.similarity import Similarity

F64 = torch.float64


def some(count=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, y, angle = 20 * torch.randn(3, count, generator=g, dtype=F64)
    return Similarity.of(x=x, y=y, angle=9 * angle, scale=0.5 + torch.rand(count, generator=g, dtype=F64))


def test_by_hand():
    """A quarter turn, counter-clockwise as seen: what lies to the right of the origin comes to lie above it."""
    pose = Similarity.of(x=torch.tensor(3.0, dtype=F64), y=1.0, angle=90.0, scale=2.0)
    torch.testing.assert_close(pose(torch.tensor([1.0, 0.0], dtype=F64)), torch.tensor([3.0, -1.0], dtype=F64))
    torch.testing.assert_close(pose.numbers, torch.tensor([3.0, 1.0, 0.0, 2.0], dtype=F64))
    logarithm = torch.tensor([3.0, 1.0, torch.pi / 2, torch.tensor(2.0).log()], dtype=F64)
    torch.testing.assert_close(pose.log(), logarithm, atol=1e-7, rtol=0)


def test_they_are_affine_maps():
    a, b = some(), some(seed=1)
    places = torch.randn(5, 2, dtype=F64)
    torch.testing.assert_close(a(places), a.affine()(places))
    torch.testing.assert_close((a @ b).affine().linear, (a.affine() @ b.affine()).linear)
    torch.testing.assert_close((a @ b).affine().shift, (a.affine() @ b.affine()).shift)
    torch.testing.assert_close(a.inverse().affine().shift, a.affine().inverse().shift)
    parts = a.affine().parts()
    for name in ("x", "y", "angle", "scale"):
        torch.testing.assert_close(getattr(a, name), getattr(parts, name))
    back = Similarity.of_affine(Affine.of(x=a.x, y=a.y, angle=a.angle, scale=a.scale))
    torch.testing.assert_close(back.numbers, a.numbers)


def test_they_are_a_group_with_a_logarithm():
    a, b = some(), some(seed=1)
    none = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=F64).expand(5, 4)
    torch.testing.assert_close((a @ a.inverse()).numbers, none)
    torch.testing.assert_close((a.inverse() @ a).numbers, none)
    torch.testing.assert_close(Similarity.exp(a.log()).numbers, a.numbers)
    torch.testing.assert_close(((a @ b) @ a).numbers, (a @ (b @ a)).numbers)
    assert not Similarity(none).log().any()
    assert a[:2][None].numbers.shape == (1, 2, 4)


def test_gradients():
    numbers = some().numbers.requires_grad_()
    assert torch.autograd.gradcheck(lambda n: (Similarity(n).inverse() @ some(seed=1)).log(), (numbers,))
    assert torch.autograd.gradcheck(
        lambda n: Similarity.exp(n).numbers, (Similarity(numbers).log().detach().requires_grad_(),)
    )
