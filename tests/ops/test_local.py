"""Routing at each position of a map: against dense routing, at its edges, and without keeping votes."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from torchcaps.ops import dynamic_routing, local_routing, squash
from torchcaps.ops.local import chunked, operators, reference
from torchcaps.ops.local.reference import Window

F64 = torch.float64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(B=2, T=3, D=2, J=2, E=3, size=(5, 4), kernel=3, own=False, transposed=False, dtype=F64, seed=0):
    g = torch.Generator().manual_seed(seed)
    pose = torch.randn(B, T, D, *size, generator=g, dtype=dtype)
    votes = (D, J * E) if transposed else (J * E, D)
    weight = torch.randn(*([T] if own else []), *votes, kernel, kernel, generator=g, dtype=dtype) * 0.5
    return pose, weight, torch.randn(J, E, generator=g, dtype=dtype) * 0.1


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_a_window_of_one_pixel_is_dense_routing_at_every_position(iterations):
    pose, weight, bias = made(kernel=1, own=True)
    poses, _, couplings = local_routing(pose, weight, bias, iterations, return_couplings=True)
    J, E = bias.shape
    matrices = weight.view(3, J, E, 2)
    for y in range(5):
        for x in range(4):
            expected = dynamic_routing(pose[..., y, x], matrices, iterations, bias=bias, return_couplings=True)
            torch.testing.assert_close(poses[..., y, x], expected.poses)
            torch.testing.assert_close(couplings[..., y, x], expected.couplings)


@pytest.mark.parametrize("J", [1, 4])
def test_one_iteration_is_a_convolution_and_a_squash(J):
    """With one child type; with J parents each gets 1/J of it."""
    pose, weight, bias = made(T=1, J=J)
    plain = functional.conv2d(pose[:, 0], weight, padding=1, stride=2).unflatten(1, (J, 3)) / J + bias[..., None, None]
    got = local_routing(pose, weight, bias, 1, Window(stride=2, padding=1)).poses
    torch.testing.assert_close(got, squash(plain, dim=2))


WINDOWS = [
    Window(),
    Window(stride=2, padding=1),
    Window(padding=2, dilation=2),
    Window(stride=2, padding=1, transposed=True, output_padding=1),
]


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("scratch", [1, 10**9])
def test_parts_of_a_batch_give_what_the_whole_does_and_its_gradients(window, own, scratch):
    inputs = [x.requires_grad_() for x in made(own=own, transposed=window.transposed)]
    pose, weight, bias = inputs
    poses, couplings = reference.local_routing(pose, weight, 3, bias, window)
    assert tuple(poses.shape[3:]) == window.size(pose, weight)
    probe = torch.randn_like(poses)
    expected = torch.autograd.grad(poses, inputs, probe)
    with torch.no_grad():
        got = chunked.forward(pose, weight, bias, 3, window, True, chunked.Plain(), scratch)
        torch.testing.assert_close(got, (poses, couplings))
        got = chunked.backward(probe, pose, weight, bias, 3, window, chunked.Plain(), scratch)
    torch.testing.assert_close(got, expected)


def test_gradients_agree_with_finite_differences():
    inputs = [x.requires_grad_() for x in made(B=1, T=2, D=1, E=2, size=(3, 3), kernel=2)]
    assert torch.autograd.gradcheck(lambda *x: local_routing(*x, 3).poses, inputs)


def test_couplings_are_over_parents_and_examples_do_not_mix():
    pose, weight, bias = made()
    poses, _, couplings = local_routing(pose, weight, bias, 3, return_couplings=True)
    torch.testing.assert_close(couplings.sum(2), torch.ones_like(couplings[:, :, 0]))
    for b in range(2):
        torch.testing.assert_close(local_routing(pose[b : b + 1], weight, bias, 3).poses, poses[b : b + 1])
    assert local_routing(pose[:0], weight, bias, 3).poses.shape == (0, 2, 3, 3, 2)


def test_no_votes_are_kept_for_the_backward():
    kept = []
    pose, weight, bias = (x.requires_grad_() for x in made(B=4, T=6, J=5, size=(12, 12)))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        poses = local_routing(pose, weight, bias, 3).poses
    assert 0 < max(kept) <= max(pose.numel(), poses.numel())


@pytest.mark.parametrize("case", ["zero", "huge", "tiny"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_becomes_nan(case, dtype):
    pose, weight, bias = made(dtype=torch.float32)
    inputs = [pose * {"zero": 0.0, "huge": 1e4, "tiny": 1e-20}[case], weight, bias * 0]
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    poses = local_routing(*inputs, 3).poses
    assert poses.dtype == dtype
    poses.float().sum().backward()
    assert all(x.isfinite().all() for x in (poses, *(x.grad for x in inputs)))


def test_autocast_takes_products_in_its_type():
    pose, weight, bias = made(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        poses = local_routing(pose, weight, bias, 3).poses
    assert poses.dtype == torch.bfloat16
    torch.testing.assert_close(poses.float(), local_routing(pose, weight, bias, 3).poses, atol=0.03, rtol=0.03)


def test_autocast_leaves_double_precision_alone_and_the_widest_type_is_kept():
    pose, weight, bias = made()
    with torch.autocast("cpu", torch.bfloat16):
        poses = local_routing(pose, weight, bias, 3).poses
    assert poses.dtype == F64
    torch.testing.assert_close(poses, local_routing(pose, weight, bias, 3).poses, rtol=0, atol=0)
    assert local_routing(pose, weight, bias.float(), 3).poses.dtype == F64


def test_double_precision_is_not_left_to_the_kernels(monkeypatch, caplog):
    pytest.importorskip("triton")
    inputs = made()
    expected = local_routing(*inputs, 3).poses
    monkeypatch.setenv("TORCHCAPS_BACKEND", "fused")
    torch.testing.assert_close(local_routing(*inputs, 3).poses, expected, rtol=0, atol=0)
    assert "local routing runs on the chunked path" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pose": torch.zeros(2, 3, 2, 5)}, r"pose must be \(B, T, D, H, W\)"),
        ({"weight": torch.zeros(6, 3, 3, 3)}, "children have 2 dimensions"),
        ({"weight": torch.zeros(4, 6, 2, 3, 3)}, "weights for 4 child types, but 3"),
        ({"bias": torch.zeros(6)}, r"bias must be \(J, E\)"),
        ({"iterations": 0}, "iterations must be a whole number, at least 1"),
        ({"window": Window(dilation=3)}, "does not fit"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    pose, weight, bias = made(dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        local_routing(**{"pose": pose, "weight": weight, "bias": bias, **change})


SHAPES = {  # B, T, D, J, E, size: several stretches of positions, sizes that fill no tile, one of everything; and own
    "stretches": (2, 2, 2, 2, 16, (4, 7), False),
    "odd": (1, 2, 3, 3, 5, (4, 5), False),
    "ones": (1, 1, 1, 1, 1, (1, 1), False),
    "own": (1, 2, 3, 3, 5, (4, 5), True),  # then maps lie in memory with their positions last
}


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kernels_agree_with_the_reference(shape, iterations, monkeypatch):
    pytest.importorskip("triton")
    from torchcaps.ops.local import fused

    monkeypatch.setattr(fused, "TILE", 256 if DEVICE == "cpu" else fused.TILE)
    B, T, D, J, E, size, own = shape
    found = []
    torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN
    for backend, dtype in (("fused", torch.float32), ("reference", F64)):
        monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
        inputs = [x.to(DEVICE, dtype).requires_grad_() for x in made(B, T, D, J, E, size, own=own)]
        poses, _, couplings = local_routing(*inputs, iterations, Window(padding=1), return_couplings=True)
        probe = torch.linspace(-1, 1, poses.numel(), device=DEVICE, dtype=dtype).view_as(poses)
        found.append([poses, couplings, *torch.autograd.grad(poses, inputs, probe)])
    torch.use_deterministic_algorithms(False)
    for one, other in zip(*found):
        assert (one.double() - other).abs().max() < 5e-5 * other.abs().max().clamp_min(1e-3)


@pytest.mark.parametrize("fused", [False, True])
def test_the_operator_keeps_pytorchs_rules(fused):
    inputs = [x.to(DEVICE).requires_grad_() for x in made(B=1, T=2, size=(3, 3), dtype=torch.float32)]
    torch.library.opcheck(operators.route.operator, (*inputs, [1, 1, 1, 0, 0], 2, True, fused))


@pytest.mark.parametrize("fused", [False, True])
def test_results_and_gradients_lie_as_announced_whatever_the_layout_of_the_weight(fused):
    pose, weight, bias = (x.to(DEVICE) for x in made(B=1, T=2, size=(4, 4), dtype=torch.float32))
    weight = weight.to(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    window = [1, 1, 1, 0, 0]
    needs = [True, True, True]
    poses, couplings = operators.route(pose, weight, bias, window, 2, True, fused)
    gradients = operators.route.backward(torch.ones_like(poses), pose, weight, bias, window, 2, fused, needs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        *inputs, grad = (mode.from_tensor(x) for x in (pose, weight, bias, torch.ones_like(poses)))
        announced = operators.route(*inputs, window, 2, True, fused)
        announced += operators.route.backward_operator(grad, *inputs, window, 2, fused, needs)
    assert [x.stride() for x in (poses, couplings, *gradients)] == [x.stride() for x in announced]
