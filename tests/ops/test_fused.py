"""The Triton kernels: natively on a GPU where there is one, else under Triton's interpreter."""

import logging
from itertools import product
from types import SimpleNamespace

import paths
import pytest
import torch

from torchcaps.ops import dispatch, dynamic_routing, squash
from torchcaps.ops.dynamic.reference import couple

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts a float32 off where the hardware rounds it to bfloat16: up to twice the error.
BF16_TIMES = 2 if DEVICE == "cuda" else 4
SHAPES = {  # B, I, K, J, D: several tiles of children and of the batch, one of everything, sizes that fill no tile
    "tiles": (34, 9, 8, 3, 16),
    "ones": (1, 1, 1, 1, 1),
    "odd": (3, 9, 3, 5, 20),
}
WIDE = {**SHAPES, "tiles": (66, 9, 8, 2, 16)}  # for products whose tiles have 64 examples


@pytest.fixture(autouse=True)
def _no_unwritten_output():
    torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def make(shape, dtype=torch.float32, bias=True, seed=0):
    B, I, K, J, D = shape
    random = torch.Generator().manual_seed(seed)
    shapes = ((B, I, K), (I, J, D, K), (J, D))[: 3 if bias else 2]
    return [torch.randn(s, generator=random).to(DEVICE, dtype).requires_grad_() for s in shapes]


def run(path, inputs, iterations=3, leaky=False, inverse_temperature=1.0):
    """Poses, couplings, and the gradients of every input through the poses."""
    u, weight, bias = inputs if len(inputs) == 3 else (*inputs, None)
    poses, couplings = path.dynamic_routing(u, weight, iterations, bias, leaky, inverse_temperature)
    direction = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
    return [poses, couplings, *torch.autograd.grad((poses * direction).sum(), inputs)]


def plain_routing(u, weight, iterations, bias, leaky, inverse_temperature=1.0):
    """Procedure 1 in plain PyTorch with every factor of a product in u's type, as autocast would have it."""
    dtype = u.dtype
    votes = torch.einsum("ijdk,bik->bijd", weight.to(dtype), u)
    logits = votes.new_zeros(votes.shape[:3]).float()
    for _ in range(iterations):
        couplings = couple(logits, leaky)
        sums = torch.einsum("bij,bijd->bjd", couplings.to(dtype), votes).float()
        poses = squash(sums if bias is None else sums + bias.float())
        logits = logits + inverse_temperature * torch.einsum("bijd,bjd->bij", votes, poses.to(dtype)).float()
    out = torch.promote_types(dtype, weight.dtype)
    return poses.to(out), couplings.to(out)


def assert_precise(inputs, iterations=3, leaky=False, plain=paths.reference, times=2):
    """Flash-attention's rule: at most twice the error of plain PyTorch in the same precision."""
    exact = run(paths.reference, [x.detach().double().requires_grad_() for x in inputs], iterations, leaky)
    plain, got = (run(path, inputs, iterations, leaky) for path in (plain, paths.fused))
    for name, true, theirs, ours in zip(("poses", "couplings", "du", "dweight", "dbias"), exact, plain, got):
        assert ours.dtype == theirs.dtype, name
        floor = 4 * torch.finfo(torch.float32).eps * true.abs().max()
        assert (ours - true).norm() <= times * (theirs - true).norm() + floor * true.numel() ** 0.5, name


@pytest.mark.parametrize(("bias", "leaky"), [(False, False), (True, True)], ids=["plain", "bias-leaky"])
@pytest.mark.parametrize(("shape", "iterations"), [("tiles", 1), ("tiles", 3), *product(("ones", "odd"), (1, 2, 3))])
def test_agrees_with_reference(shape, iterations, bias, leaky):
    assert_precise(make(SHAPES[shape], bias=bias), iterations, leaky)


@pytest.mark.parametrize("shape", WIDE.values(), ids=WIDE)
def test_tf32(shape, tf32):
    """Plain PyTorch takes TF32 or not as it sees fit; float16 has the same digits."""

    def plain(u, weight, *others):
        return [output.float() for output in plain_routing(u.half(), weight.half(), *others)]

    assert_precise(make(shape), plain=SimpleNamespace(dynamic_routing=plain))


def test_medium_precision_takes_bf16_products_of_float32():
    def plain(u, weight, *others):
        return [output.float() for output in plain_routing(u.bfloat16(), weight.bfloat16(), *others)]

    torch.set_float32_matmul_precision("medium")
    try:
        assert_precise(make(SHAPES["odd"]), plain=SimpleNamespace(dynamic_routing=plain), times=BF16_TIMES)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("dtype", "times"), [(torch.bfloat16, BF16_TIMES), (torch.float16, 2)])
@pytest.mark.parametrize("shape", [WIDE["tiles"], WIDE["odd"]], ids=["tiles", "odd"])
@pytest.mark.parametrize("wide_weight", [False, True], ids=["same", "wide-weight"])
def test_half_precision(dtype, times, shape, wide_weight):
    u, weight, bias = make(shape, dtype)
    inputs = [u, weight.detach().float().requires_grad_() if wide_weight else weight, bias]
    assert_precise(inputs, plain=SimpleNamespace(dynamic_routing=plain_routing), times=times)


@pytest.mark.parametrize("inverse_temperature", [0.2, 4.0])
def test_agrees_at_any_temperature(inverse_temperature):
    """Sharp couplings enlarge rounding, of which three TF32 products have a little more than one of float32."""
    settings = (3, True, inverse_temperature)
    inputs = make(SHAPES["odd"])
    exact = run(paths.reference, [x.detach().double().requires_grad_() for x in inputs], *settings)
    for name, true, ours in zip(
        ("poses", "couplings", "du", "dweight", "dbias"), exact, run(paths.fused, inputs, *settings)
    ):
        assert (ours - true).norm() <= 2e-4 * true.norm(), name


def test_two_runs_agree_bit_for_bit():
    inputs = make(SHAPES["tiles" if DEVICE == "cuda" else "odd"])  # the interpreter runs one program after the other
    for one, two in zip(run(paths.fused, inputs), run(paths.fused, inputs)):
        assert torch.equal(one, two)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e4])
def test_extreme_children_stay_finite(scale):
    u, weight, bias = make(SHAPES["odd"])
    inputs = [(u.detach() * scale).requires_grad_(), weight, bias]
    assert all(output.isfinite().all() for output in run(paths.fused, inputs))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_nan_of_any_kind_is_not_lost(precision):
    u, weight = make(SHAPES["odd"], bias=False)
    u.detach().view(torch.int32)[0, 0, :] = 0x7FFFFFFF  # what a GPU's own arithmetic gives
    torch.set_float32_matmul_precision(precision)
    try:
        poses, _ = paths.fused.dynamic_routing(u, weight, 3, None, False)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert poses[0].isnan().all()
    assert poses[1:].isfinite().all()


def test_setting_that_changes_before_the_backward():
    inputs = make(SHAPES["odd"])
    exact = run(paths.fused, inputs)
    u, weight, bias = inputs
    poses, _ = paths.fused.dynamic_routing(u, weight, 3, bias, False)
    direction = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
    torch.set_float32_matmul_precision("medium")
    try:
        gradients = torch.autograd.grad((poses * direction).sum(), inputs)
    finally:
        torch.set_float32_matmul_precision("highest")
    for ours, theirs in zip(gradients, exact[2:]):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_bias_that_is_a_view():
    u, weight, bias = make(SHAPES["odd"])
    poses = [paths.fused.dynamic_routing(u, weight, 3, b, False)[0] for b in (bias, bias.T.contiguous().T)]
    assert torch.equal(*poses)


def test_gradient_through_the_couplings():
    inputs = make(SHAPES["odd"])
    gradients = []
    for path in (paths.reference, paths.fused):
        _, couplings = path.dynamic_routing(*inputs[:2], 3, inputs[2], True)
        gradients.append(torch.autograd.grad(couplings.square().sum(), inputs))
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_children_that_are_a_view():
    u, weight = make(SHAPES["odd"], bias=False)
    view = torch.stack([u, -u], dim=-1)[..., 0]
    assert torch.equal(
        paths.fused.dynamic_routing(view, weight, 3, None, False)[0],
        paths.fused.dynamic_routing(u, weight, 3, None, False)[0],
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((2, 3, 65, 2, 4), torch.float32, "K=65"),
        ((2, 3, 4, 2, 129), torch.float32, "D=129"),
        ((0, 3, 4, 2, 4), torch.float32, "the batch is empty"),
        ((2, 3, 4, 2, 4), torch.float64, "float64"),
    ],
)
def test_what_does_not_fit_runs_chunked_and_says_why(monkeypatch, caplog, shape, dtype, reason):
    monkeypatch.setenv("TORCHCAPS_BACKEND", "fused")
    dispatch._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "torchcaps"):
        poses = dynamic_routing(*make(shape, dtype, bias=False)).poses
    assert poses.shape == (shape[0], shape[3], shape[4])
    assert reason in caplog.text
