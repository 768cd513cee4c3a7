"""How routing is called: backends, messages for wrong arguments, ready-made votes, autocast."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.ops import dynamic_routing, route_votes
from torchcaps.ops.dispatch import requested, using
from torchcaps.ops.dynamic import chunked, reference

U, WEIGHT = torch.zeros(2, 6, 4), torch.zeros(6, 3, 5, 4)  # B 2, I 6, K 4, J 3, D 5


@pytest.mark.parametrize(
    ("name", "used"), [(None, "chunked"), ("", "chunked"), ("chunked", "chunked"), ("reference", "reference")]
)
def test_backend_is_the_one_asked_for(monkeypatch, name, used):
    called = []
    for module, function in ((chunked, "forward"), (reference, "dynamic_routing")):
        original = getattr(module, function)
        label = module.__name__.rpartition(".")[2]
        spy = lambda *args, label=label, original=original: (called.append(label), original(*args))[1]  # noqa: E731
        monkeypatch.setattr(module, function, spy)
    if name is not None:
        monkeypatch.setenv("TORCHCAPS_BACKEND", name)
    dynamic_routing(U, WEIGHT)
    assert called == [used]


def test_unknown_backend_suggests_the_nearest(monkeypatch):
    monkeypatch.setenv("TORCHCAPS_BACKEND", "chunky")
    with pytest.raises(UserError, match="TORCHCAPS_BACKEND=chunky is not a backend: did you mean 'chunked'"):
        dynamic_routing(U, WEIGHT)


def test_using_changes_the_backend_of_this_thread_only():
    x, seen = torch.zeros(1), []
    with using("reference"):
        thread = threading.Thread(target=lambda: seen.append(requested(x)))
        thread.start()
        thread.join()
        with using("fused"):
            seen.append(requested(x))
        seen.append(requested(x))
    assert [*seen, requested(x)] == ["chunked", "fused", "reference", "chunked"]
    assert "TORCHCAPS_BACKEND" not in os.environ


def test_using_refuses_a_name_that_is_no_backend():
    with pytest.raises(UserError, match="using: chunky is not a backend: did you mean 'chunked'"), using("chunky"):
        pass


@pytest.mark.parametrize(
    ("u", "weight", "options", "message"),
    [
        (U[0], WEIGHT, {}, r"u must be \(B, I, K\).*got \(6, 4\)"),
        (U, WEIGHT[0], {}, r"weight \(I, J, D, K\).*got .* \(3, 5, 4\)"),
        (U[:, :5], WEIGHT, {}, r"routes 6 children of 4 dimensions.*\(2, 5, 4\); it should be \(B, 6, 4\)"),
        (U[..., :3], WEIGHT, {}, r"got u of shape \(2, 6, 3\); it should be \(B, 6, 4\)"),
        (U, WEIGHT, {"iterations": 0}, "iterations must be a whole number, at least 1, got 0"),
        (U, WEIGHT, {"bias": torch.zeros(5)}, r"bias must be \(J, D\) = \(3, 5\), got \(5,\)"),
    ],
    ids=["u-axes", "weight-axes", "children", "dimensions", "iterations", "bias"],
)
def test_wrong_arguments_are_named(u, weight, options, message):
    with pytest.raises(ValueError, match="dynamic_routing: .*" + message):
        dynamic_routing(u, weight, **options)


def test_wrong_votes_are_named():
    with pytest.raises(ValueError, match=r"route_votes: votes must be \(B, I, J, D\), got \(2, 6, 4\)"):
        route_votes(U)
    with pytest.raises(ValueError, match="route_votes: iterations must be a whole number, at least 1, got -1"):
        route_votes(torch.zeros(2, 6, 3, 5), -1)
    with pytest.raises(ValueError, match=r"route_votes: bias must be \(J, D\) = \(3, 5\), got \(5, 3\)"):
        route_votes(torch.zeros(2, 6, 3, 5), bias=torch.zeros(5, 3))


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_route_votes_is_routing_of_those_votes(iterations, leaky):
    u, weight, bias = (torch.randn(s, dtype=torch.float64) for s in ((2, 6, 4), (6, 3, 5, 4), (3, 5)))
    votes = torch.einsum("ijdk,bik->bijd", weight, u)
    options = {"iterations": iterations, "bias": bias, "leaky": leaky, "return_couplings": True}
    got, expected = route_votes(votes, **options), dynamic_routing(u, weight, **options)
    assert got.activation is expected.activation is None
    for one, other in ((got.poses, expected.poses), (got.couplings, expected.couplings)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert torch.equal(route_votes(votes).poses, route_votes(votes, 3, return_couplings=True).poses)


def test_autocast_does_not_narrow_routing():
    u, weight = torch.randn(2, 60, 4), torch.randn(60, 3, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        got = dynamic_routing(u, weight).poses
    assert torch.equal(got, dynamic_routing(u, weight).poses)


def test_autocast_does_not_narrow_the_backward():
    u, weight = torch.randn(2, 60, 4, requires_grad=True), torch.randn(60, 3, 5, 4)
    (expected,) = torch.autograd.grad(dynamic_routing(u, weight).poses.sum(), u)
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = torch.autograd.grad(dynamic_routing(u, weight).poses.sum(), u)
    assert torch.equal(got, expected)


def test_autocast_does_not_narrow_ready_made_votes():
    votes = torch.randn(2, 200, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        got = route_votes(votes).poses
    torch.testing.assert_close(got, route_votes(votes).poses)
