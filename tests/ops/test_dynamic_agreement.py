"""The chunked path is the reference path: every output and every gradient, in float64 to 1e-10."""

from __future__ import annotations

import paths
import pytest
import torch

from torchcaps.ops import dynamic_routing, native
from torchcaps.ops.dynamic import by_votes, chunked

K, D = 3, 5


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def _many_chunks_and_no_unwritten_output(monkeypatch, request):
    if request.param == "plain":
        monkeypatch.setattr(native, "_native", None)
    elif native._native is None:
        pytest.skip("installed without a C compiler")
    monkeypatch.setattr(native, "LEAST", 1)  # several threads for more than one vote
    monkeypatch.setitem(chunked.SCRATCH, "cpu", 1)  # the smallest chunks there are: 16 children
    monkeypatch.setattr(by_votes, "CHUNK", 1)
    for limit in ("MAX_VOTES", "MAX_VOTES_OF_FEW", "MAX_VOTES_OF_ONE_THREAD"):
        monkeypatch.setattr(by_votes, limit, 0)  # by votes only if B ≤ K
    torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN
    yield
    torch.use_deterministic_algorithms(False)


def make(B, I, J, D=D, K=K, dtype=torch.float64, bias=True):
    shapes = ((B, I, K), (I, J, D, K), (J, D))[: 3 if bias else 2]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def run(module, inputs, iterations, leaky, through="both", inverse_temperature=1.0):
    """Poses, couplings and the gradients of every input through poses, couplings or both."""
    u, weight, bias = inputs if len(inputs) == 3 else (*inputs, None)
    poses, couplings = module.dynamic_routing(u, weight, iterations, bias, leaky, inverse_temperature)
    random = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=poses.dtype)
    for name, output in (("poses", poses), ("couplings", couplings)):
        direction = torch.randn(output.shape, generator=random, dtype=torch.float64).to(output.dtype)
        if through in (name, "both"):
            loss = loss + (output * direction).sum()
    if not loss.requires_grad:  # the couplings of one iteration depend on nothing
        return [poses, couplings, *map(torch.zeros_like, inputs)]
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [poses, couplings, *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients))]


def assert_agree(inputs, iterations, leaky, through="both", inverse_temperature=1.0):
    names = ("poses", "couplings", "gradient of u", "gradient of weight", "gradient of bias")
    got, expected = (
        run(module, inputs, iterations, leaky, through, inverse_temperature)
        for module in (paths.chunked, paths.reference)
    )
    for name, a, b in zip(names, got, expected):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5], ids="r{}".format)
@pytest.mark.parametrize("J", [1, 2, 10], ids="J{}".format)
@pytest.mark.parametrize("I", [1, 7, 40], ids="I{}".format)
@pytest.mark.parametrize("B", [0, 1, 3, 5, 70], ids="B{}".format)
def test_agrees_with_reference(B, I, J, iterations, bias, leaky):
    assert B != 70 or B > chunked.BLOCK
    assert_agree(make(B, I, J, bias=bias), iterations, leaky)


@pytest.mark.parametrize("inverse_temperature", [0.1, 7.0])
@pytest.mark.parametrize("iterations", [1, 2, 4], ids="r{}".format)
@pytest.mark.parametrize("B", [1, 70], ids="B{}".format)
def test_agrees_at_any_temperature(B, iterations, inverse_temperature):
    assert_agree(make(B, 40, 3), iterations, True, inverse_temperature=inverse_temperature)


@pytest.mark.parametrize("limit", ["MAX_VOTES", "CHUNK", "CACHED", "SMALL_PRODUCT"])
@pytest.mark.parametrize("B", [1, 2, 5])
def test_agrees_on_both_sides_of_each_limit_of_small_batches(monkeypatch, limit, B):
    monkeypatch.setattr(by_votes, "MAX_VOTES", 2**17)
    for value in (0, 2**30):
        monkeypatch.setattr(by_votes, limit, value)
        assert_agree(make(B, 40, 4), 3, True)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30], ids=["zero", "tiny", "huge"])
def test_agrees_for_any_length(scale):
    inputs = make(2, 7, 4)
    with torch.no_grad():
        inputs[0] *= scale
        inputs[2] *= 0
    # Lengths of a huge sum differ by one rounding, which the logits multiply by 1e30: one iteration has no logits.
    assert_agree(inputs, 1 if scale > 1 else 3, False)


@pytest.mark.parametrize("scale", [1e-30, 1e18], ids=["tiny", "huge"])
def test_a_small_batch_squashes_any_length_in_float32(scale):
    u, weight = (x.detach().float() for x in make(2, 7, 4, bias=False))
    got = paths.chunked.dynamic_routing(scale * u, weight, 1, None, False)[0]
    assert got.isfinite().all()
    torch.testing.assert_close(got.norm(dim=-1), torch.full((2, 4), float(scale > 1)))


@pytest.mark.parametrize("through", ["poses", "couplings"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_agrees_through_one_output(iterations, through):
    assert_agree(make(3, 40, 4), iterations, True, through)


@pytest.mark.parametrize("D", [1, 7, 16])
@pytest.mark.parametrize("K", [1, 4, 9])
def test_agrees_for_any_pose(K, D):
    assert_agree(make(2, 20, 3, D, K), 3, False)


def test_agrees_on_views():
    u, weight = torch.randn(4, 20, 3, dtype=torch.float64).mT, torch.randn(5, 20, 4, 3, dtype=torch.float64)
    weight = weight.permute(3, 2, 0, 1)  # (I 3, J 4, D 5, K 20)
    assert_agree([u.requires_grad_(), weight.requires_grad_()], 3, False)


def test_couplings_are_only_computed_when_asked_for():
    inputs = make(3, 40, 4)
    poses = dynamic_routing(*inputs[:2], bias=inputs[2]).poses
    gradients = torch.autograd.grad(poses.square().sum(), inputs)
    expected = dynamic_routing(*inputs[:2], bias=inputs[2], return_couplings=True).poses
    assert torch.equal(poses, expected)
    for a, b in zip(gradients, torch.autograd.grad(expected.square().sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
def test_no_less_precise_than_reference(dtype, leaky):
    """Flash-attention's rule: at most twice the error that plain PyTorch makes in the same precision."""
    inputs = make(4, 100, 5, 16, 8, dtype)
    exact = run(paths.reference, [x.detach().double().requires_grad_() for x in inputs], 3, leaky)
    for true, got, plain in zip(exact, run(paths.chunked, inputs, 3, leaky), run(paths.reference, inputs, 3, leaky)):
        assert got.dtype == plain.dtype == dtype
        floor = 2 * torch.finfo(torch.float32).eps * true.abs().max()
        assert (got - true).abs().max() <= 2 * (plain - true).abs().max() + floor


def test_narrow_children_with_a_wide_weight_give_wide_poses():
    u, weight = torch.randn(2, 5, 3).bfloat16(), torch.randn(5, 4, 6, 3)
    for module in (paths.chunked, paths.reference):
        assert module.dynamic_routing(u, weight, 2, None, False)[0].dtype == torch.float32


def test_a_single_child_with_a_weight_that_is_a_view():
    """A chunk of one child is a view with strides of its own: what is added to a copy of it would be lost."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(1, 5, 3, 4, dtype=torch.float64, generator=random).transpose(1, 2).requires_grad_()
    for B in (3, 6):
        u = torch.randn(B, 1, 4, dtype=torch.float64, generator=random)
        gradients = []
        for path in (paths.reference, paths.chunked):
            poses, _ = path.dynamic_routing(u, weight, 3, None, False)
            gradients.append(torch.autograd.grad(poses.square().sum(), weight)[0])
        torch.testing.assert_close(*gradients)


def test_without_gradients_the_answer_is_the_same():
    random = torch.Generator().manual_seed(0)
    u, weight = torch.randn(9, 7, 4, generator=random), torch.randn(7, 3, 5, 4, generator=random).requires_grad_()
    with torch.no_grad():
        plain, _ = paths.chunked.dynamic_routing(u, weight, 3, None, False)
    assert torch.equal(plain, paths.chunked.dynamic_routing(u, weight, 3, None, False)[0].detach())


def test_vectorised_without_gradients():
    random = torch.Generator().manual_seed(0)
    u, weight = torch.randn(2, 9, 7, 4, generator=random), torch.randn(7, 3, 5, 4, generator=random)
    with torch.no_grad():
        together = torch.vmap(lambda x: dynamic_routing(x, weight).poses)(u)
        torch.testing.assert_close(together, torch.stack([dynamic_routing(x, weight).poses for x in u]))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)], ids=str)
@pytest.mark.parametrize("B", [2, 5], ids=["by votes", "by products"])
def test_computes_only_the_gradients_that_are_needed(B, wanted):
    inputs = make(B, 40, 4)
    some = [x.detach().requires_grad_(n in wanted) for n, x in enumerate(inputs)]
    poses, couplings = paths.chunked.dynamic_routing(some[0], some[1], 3, some[2], True)
    sums = poses.grad_fn.saved_tensors[-1]
    needs = [n in wanted for n in range(3)]
    grads = torch.randn_like(poses), None, *(x.detach() for x in inputs[:2]), sums.detach(), True, 1.0
    everything = chunked.backward(*grads, [True] * 3)
    for n, (got, whole) in enumerate(zip(chunked.backward(*grads, needs), everything)):
        assert torch.equal(got, whole if n in wanted else whole.new_empty(0))
    (poses.sum() + couplings.square().sum()).backward()
    assert [x.grad is not None for x in some] == needs
