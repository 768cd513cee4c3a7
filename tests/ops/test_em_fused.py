"""The Triton kernels of EM routing: natively on a GPU where there is one, else under Triton's interpreter."""

import pytest
import torch

from torchcaps.ops import em_routing, em_routing_conv
from torchcaps.ops.em import operators
from torchcaps.ops.em.reference import Reach

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _no_unwritten_output():
    torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN
    yield
    torch.use_deterministic_algorithms(False)


def random(*shape, seed=0, low=None):
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=g) if low is None else torch.rand(shape, generator=g)
    return values.to(DEVICE).requires_grad_()


def both(monkeypatch, route, inputs):
    """Results and gradients of the kernels, and of PyTorch in double precision."""
    found = []
    for backend, dtype in (("fused", torch.float32), ("reference", torch.float64)):
        monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
        given = [x.detach().to(dtype).requires_grad_() for x in inputs]
        outputs = route(*given)
        probes = [torch.linspace(-1, 1, x.numel(), device=DEVICE).view_as(x).to(x.dtype) for x in outputs]
        found.append([*outputs, *torch.autograd.grad(outputs, given, probes)])
    return found


def assert_close(got, expected, tolerance=2e-5):
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        error = (one.double() - other).abs().max() / other.abs().max().clamp_min(1e-6)
        assert error < tolerance


CONV = {  # B, T, P, H, W, kernel, stride, J, iterations: more than one tile of parents or spots, and sizes of 1
    "stride": (2, 1, 4, 5, 3, 3, 2, 2, 2),
    "overlap": (2, 1, 2, 3, 3, 2, 1, 3, 3),
    "numbers": (9, 2, 1, 2, 2, 2, 1, 2, 2),
    "parents": (1, 1, 4, 2, 2, 2, 1, 9, 2),
    "spots": (1, 5, 2, 3, 4, 3, 1, 2, 3),
    "ones": (1, 1, 1, 1, 1, 1, 1, 1, 1),
}


@pytest.mark.parametrize("shape", CONV.values(), ids=CONV)
def test_kernels_agree_with_the_reference(shape, monkeypatch):
    B, T, P, H, W, kernel, stride, J, iterations = shape
    inputs = [
        random(B, T, P * P, H, W),
        random(B, T, H, W, low=0),
        random(kernel * kernel * T, J, P, P, seed=1),
        random(J, seed=2),
        random(J, seed=3),
    ]

    def route(*x):
        return em_routing_conv(*x, iterations, stride=stride, inverse_temperature=0.5)[:2]

    assert_close(*both(monkeypatch, route, inputs))


@pytest.mark.parametrize(("iterations", "small"), [(1, {}), (2, {}), (3, {"epsilon": 1e-2, "floor": 0.1})])
def test_dense_kernels_agree_with_an_offset_and_a_loss_on_couplings(iterations, small, monkeypatch):
    inputs = [random(2, 5, 4), random(2, 5, low=0), random(5, 3, 2, 2, seed=1), random(3, seed=2), random(3, seed=3)]
    offset = random(5, 4, seed=4).detach()

    def route(*x):
        options = {"offset": offset, "inverse_temperature": 0.5, "return_couplings": True}
        found = em_routing(*x, iterations, **options, **small)
        return found if iterations > 1 else found[:2]  # the first couplings are constants

    assert_close(*both(monkeypatch, route, inputs))


@pytest.mark.parametrize("epsilon", [1e-4, 1e-12])
@pytest.mark.parametrize("case", ["zero", "equal", "huge", "silent"])
def test_kernels_never_give_nan(case, epsilon, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_BACKEND", "fused")
    pose, activation, weight = random(2, 3, 4), random(2, 3, low=0), random(3, 2, 2, 2, seed=1)
    with torch.no_grad():
        pose *= {"zero": 0.0, "huge": 1e4}.get(case, 1.0)
        activation *= case != "silent"
        if case == "equal":
            pose.fill_(1)
            weight.fill_(0.5)
    inputs = [pose, activation, weight, random(2, seed=2), random(2, seed=3)]
    outputs = em_routing(*inputs, 3, inverse_temperature=0.5, epsilon=epsilon, return_couplings=True)
    gradients = torch.autograd.grad(sum((x * x).sum() for x in outputs), inputs)
    assert all(x.isfinite().all() for x in (*outputs, *gradients))


def test_poses_of_another_size_go_the_other_way(monkeypatch, caplog):
    monkeypatch.setenv("TORCHCAPS_BACKEND", "fused")
    inputs = [random(1, 2, 9), random(1, 2, low=0), random(2, 2, 3, 3), random(2), random(2)]
    em_routing(*inputs)
    assert "EM routing runs on the chunked path, not the fused one: poses are 3×3" in caplog.text


def test_an_activation_of_any_layout_gets_the_gradient_that_was_announced():
    pose, activation, weight = random(2, 3, 4), random(3, 2, low=0).detach().T.requires_grad_(), random(3, 2, 2, 2)
    given = pose, activation, weight, random(2), random(2), torch.tensor(0.5, device=DEVICE)
    reach = Reach.everything(3, torch.device(DEVICE))
    torch.library.opcheck(operators.route.operator, (*given, *reach, None, 2, False, True, 1e-4, 1e-4))


@pytest.mark.parametrize("couplings", [False, True])
@pytest.mark.parametrize("fused", [False, True], ids=["chunked", "fused"])
def test_operators_keep_pytorchs_rules(fused, couplings):
    inputs = [random(2, 3, 4), random(2, 3, low=0), random(3, 2, 2, 2), random(2), random(2)]
    temperature, reach = torch.tensor(0.5, device=DEVICE), Reach.everything(3, torch.device(DEVICE))
    settings = 2, couplings, fused, 1e-4, 1e-4
    torch.library.opcheck(operators.route.operator, (*inputs, temperature, *reach, None, *settings))
