"""squash: Eq. 1 of the paper, and what it does at the ends of each dtype's range."""

from __future__ import annotations

import pytest
import torch

from torchcaps.ops import squash
from torchcaps.ops.squash import squash_backward

# The largest and smallest magnitudes asked of each dtype: their squares are near the ends of its range, or beyond.
EXTREMES = [
    *((torch.float32, magnitude) for magnitude in (1.8e19, 1e10, 1e-10, 1e-30)),
    *((torch.bfloat16, magnitude) for magnitude in (1.8e19, 1e-30)),
    *((torch.float16, magnitude) for magnitude in (250.0, 1e-7)),
    *((torch.float64, magnitude) for magnitude in (1e154, 1e-200)),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def test_by_hand():
    # |x|² = 25, so the length becomes 25/26 in the direction (0.6, 0.8)
    squashed = squash(torch.tensor([3.0, 4.0], dtype=torch.float64))
    expected = torch.tensor([0.6 * 25 / 26, 0.8 * 25 / 26], dtype=torch.float64)
    torch.testing.assert_close(squashed, expected, rtol=1e-15, atol=0)


def test_keeps_direction_and_maps_length():
    x = torch.randn(50, 7, dtype=torch.float64) * torch.logspace(-3, 3, 50, dtype=torch.float64)[:, None]
    length, squashed = x.norm(dim=-1), squash(x)
    torch.testing.assert_close(squashed.norm(dim=-1), length**2 / (1 + length**2))
    torch.testing.assert_close(squashed / squashed.norm(dim=-1, keepdim=True), x / length[:, None])


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_dim_is_the_pose_axis(dim):
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(squash(x, dim), squash(x.movedim(dim, -1)).movedim(-1, dim))
    assert not torch.allclose(squash(x, dim), squash(x, (dim + 1) % 3))
    grad = torch.randn_like(x)
    expected = squash_backward(x.movedim(dim, -1), grad.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(squash_backward(x, grad, dim), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_stays_zero_with_zero_gradient(dtype):
    x = torch.zeros(2, 4, dtype=dtype)
    x[1] = 1  # a neighbour that is not zero
    x.requires_grad_()
    y = squash(x)
    y.sum().backward()
    assert y.dtype == dtype
    assert torch.equal(y[0], torch.zeros(4, dtype=dtype))
    assert torch.equal(x.grad[0], torch.zeros(4, dtype=dtype))
    assert x.grad[1].gt(0).all()


@pytest.mark.parametrize("shape_dim", [((3, 4), -1), ((2, 3, 4), 1), ((5, 1), -1)], ids=str)
def test_gradcheck(shape_dim):
    shape, dim = shape_dim
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: squash(x, dim), x)


@pytest.mark.parametrize("magnitude", [0.0, 1e-8, 1e-2, 1.0, 1e3, 1e8], ids=str)
def test_written_backward_is_autograds(magnitude):
    x = (torch.randn(20, 5, dtype=torch.float64) * magnitude).requires_grad_()
    grad = torch.randn_like(x)
    (expected,) = torch.autograd.grad(squash(x), x, grad)
    torch.testing.assert_close(squash_backward(x.detach(), grad), expected, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize(("dtype", "magnitude"), EXTREMES, ids=lambda value: str(value))
def test_finite_at_extremes(dtype, magnitude):
    x = (torch.randn(9, 16).to(dtype).sign() * magnitude).requires_grad_()
    y = squash(x)
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert y.isfinite().all()
    assert gradient.isfinite().all()
    if magnitude > 1:  # all the way to length 1, in the same direction
        torch.testing.assert_close(y.detach(), x.detach().sign() / 4, rtol=1e-3, atol=0)
    if dtype in (torch.float32, torch.float64):
        assert squash_backward(x.detach(), torch.randn_like(x)).isfinite().all()


def test_written_backward_where_squares_underflow():
    # |x|² underflows to 0 here while x does not: x/|x| must not be formed as x/tiny
    x = torch.full((16,), 6e-21)
    assert squash_backward(x, torch.full((16,), 100.0)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    x = torch.randn(100, 16).to(dtype)
    assert torch.equal(squash(x), squash(x.float()).to(dtype))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_empty(shape):
    assert squash(torch.empty(shape)).shape == shape
