"""What holds for every routing, tried on random sizes, scales and options, for both backends."""

from __future__ import annotations

from functools import partial
from unittest import mock

import paths
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps import testing
from torchcaps.ops.dynamic import chunked

BACKENDS = pytest.mark.parametrize("backend", [paths.reference, paths.chunked], ids=["reference", "chunked"])


@st.composite
def cases(draw, leaky=None):
    """u, weight and the options of a routing, in float64."""
    B, I, J = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 5))
    D, K = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    u, weight, bias = (
        torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((B, I, K), (I, J, D, K), (J, D))
    )
    options = {"iterations": draw(st.integers(1, 4)), "leaky": draw(st.booleans()) if leaky is None else leaky}
    options["bias_JD"] = bias if draw(st.booleans()) else None
    options["inverse_temperature"] = draw(st.sampled_from([1.0, 0.3, 5.0]))
    return u * draw(st.sampled_from([0.01, 1.0, 10.0])), weight, options


def small_chunks():
    """Chunks of 16 children and blocks of 3 examples, so that small sizes cross their edges."""
    return mock.patch.multiple(chunked, SCRATCH={"cpu": 1}, BLOCK=3)


@BACKENDS
@pytest.mark.parametrize(
    "holds",
    [testing.assert_lengths_bounded, testing.assert_children_permute, testing.assert_batch_independent],
    ids=lambda holds: holds.__name__.removeprefix("assert_"),
)
@given(case=cases())
def test_property(backend, holds, case):
    u, weight, options = case
    with small_chunks():
        holds(partial(backend.dynamic_routing, **options), u, weight)


@BACKENDS
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@given(data=st.data())
def test_couplings_normalised(backend, leaky, data):
    u, weight, options = data.draw(cases(leaky))
    options["inverse_temperature"] = 1.0  # sharp couplings leave nothing to the leak
    with small_chunks():
        routing = partial(backend.dynamic_routing, **options)
        testing.assert_couplings_normalised(routing, u.clamp(-2, 2), weight, leaky=leaky)


@BACKENDS
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_gradcheck(backend, iterations, leaky):
    u, weight, bias = torch.randn(2, 18, 2), torch.randn(18, 2, 2, 2), torch.randn(2, 2, dtype=torch.float64)
    with small_chunks():
        routing = partial(backend.dynamic_routing, iterations=iterations, bias_JD=bias, leaky=leaky)
        testing.assert_gradcheck(routing, u, weight, every_entry=True)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("iterations", [1, 3])
def test_finite_gradients(backend, dtype, iterations):
    u, weight = torch.randn(3, 20, 8).to(dtype), torch.randn(20, 4, 16, 8).to(dtype)
    routing = partial(backend.dynamic_routing, iterations=iterations, bias_JD=None, leaky=False)
    testing.assert_finite_gradients(routing, u, weight)
