"""Bias, scale, squash and re-ordering in one pass: against the plain expression, on every layout of the maps."""

import pytest
import torch

from torchcaps.ops import primary, squash_maps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS = {
    "contiguous": lambda maps: maps,
    "channels_last": lambda maps: maps.contiguous(memory_format=torch.channels_last),
    "rows_apart": lambda maps: torch.cat([maps, maps], dim=3)[..., : maps.shape[3]],  # no single stride of positions
    "one_column": lambda maps: maps[..., :1, :].transpose(2, 3),  # strides of an axis of one mean nothing
    "sideways": lambda maps: maps.transpose(2, 3).contiguous().transpose(2, 3),
}
SHAPES = {"mnist": (3, 32, 8, 6, 6), "odd": (2, 3, 5, 3, 7), "ones": (1, 1, 1, 1, 1), "blocks": (9, 2, 4, 5, 5)}


@pytest.fixture(autouse=True, params=["fused", "chunked"])
def _kernels(request, monkeypatch):
    if request.param == "fused":
        pytest.importorskip("triton")
    monkeypatch.setenv("TORCHCAPS_BACKEND", request.param)
    torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN
    yield
    torch.use_deterministic_algorithms(False)


def make(shape, dtype=torch.float32, layout="contiguous"):
    B, T, D, H, W = shape
    random = torch.Generator().manual_seed(0)
    maps = LAYOUTS[layout](torch.randn(B, T * D, H, W, generator=random).to(DEVICE, dtype)).requires_grad_()
    bias = torch.randn(T * D, generator=random).to(DEVICE).requires_grad_()
    return maps, bias, torch.randn(B, T * H * W, D, generator=random).to(DEVICE, dtype)


def run(function, maps, bias, direction, dim, scale):
    poses = function(maps, bias, dim, scale)
    inputs = [x for x in (maps, bias) if x is not None]
    return [poses, *torch.autograd.grad(poses, inputs, direction.to(poses.dtype))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_agrees_with_the_plain_expression(shape, layout):
    maps, bias, direction = make(shape, layout=layout)
    direction = direction[:, : maps.shape[1] // shape[2] * maps.shape[2] * maps.shape[3]]
    ours, plain = (run(f, maps, bias, direction, shape[2], 0.25) for f in (squash_maps, primary.reference))
    for one, two in zip(ours, plain):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_without_gradients_it_is_the_same():
    maps, bias, _ = make(SHAPES["odd"])
    with torch.no_grad():
        plain = squash_maps(maps, bias, 5, 0.5)
    assert torch.equal(plain, squash_maps(maps, bias, 5, 0.5).detach())


def test_bias_that_is_a_view():
    maps, bias, _ = make(SHAPES["odd"])
    view = torch.stack([bias, -bias], dim=1)[:, 0]
    assert torch.equal(squash_maps(maps, view, 5), squash_maps(maps, bias, 5))


def test_bias_of_another_size():
    with pytest.raises(ValueError, match=r"bias must be \(8,\)"):
        squash_maps(torch.zeros(1, 8, 2, 2), torch.zeros(4), 4)


def test_without_bias():
    maps, _, direction = make(SHAPES["odd"])
    ours, plain = (run(f, maps, None, direction, 5, 1.0) for f in (squash_maps, primary.reference))
    for one, two in zip(ours, plain):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_type_and_the_layout(dtype):
    maps, bias, direction = make(SHAPES["mnist"], dtype, "channels_last")
    poses, dmaps, dbias = run(squash_maps, maps, bias, direction, 8, 1.0)
    assert poses.dtype == dmaps.dtype == dtype
    assert dbias.dtype == bias.dtype
    assert dmaps.is_contiguous(memory_format=torch.channels_last)
    exact = run(primary.reference, maps.detach().double().requires_grad_(), bias, direction.double(), 8, 1.0)
    for got, true in zip((poses, dmaps), exact):
        assert (got - true).norm() <= 2 * (true.to(dtype) - true).norm() * (1 if DEVICE == "cuda" else 2)
    assert (dbias - exact[2]).norm() <= 1e-3 * exact[2].norm()


def test_zero_maps_have_no_gradient():
    maps = torch.zeros(2, 8, 3, 3, device=DEVICE, requires_grad=True)
    poses = squash_maps(maps, None, 4)
    (gradient,) = torch.autograd.grad(poses.sum(), maps)
    assert torch.equal(poses, torch.zeros_like(poses))
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_two_runs_agree_bit_for_bit():
    arguments = make(SHAPES["blocks"])
    for one, two in zip(run(squash_maps, *arguments, 4, 1.0), run(squash_maps, *arguments, 4, 1.0)):
        assert torch.equal(one, two)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "kernels"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_operator_is_well_behaved(layout, fused):
    maps, bias, _ = make(SHAPES["odd"], layout=layout)
    torch.library.opcheck(primary._squash_maps.operator, (maps, bias, 5, 0.5, fused))


def test_compiles_in_one_graph():
    maps, bias, _ = make(SHAPES["odd"])
    compiled = torch.compile(lambda x: squash_maps(x, bias, 5), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(maps), squash_maps(maps, bias, 5))


def test_float64_stays_float64():
    maps, bias, _ = (x.detach().double() for x in make(SHAPES["odd"]))
    maps.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, b: squash_maps(x, b, 5, 0.5), (maps, bias.requires_grad_()))


def test_empty_batch():
    maps = torch.zeros(0, 8, 3, 3, device=DEVICE, requires_grad=True)
    poses = squash_maps(maps, None, 4)
    assert poses.shape == (0, 18, 4)
    assert torch.autograd.grad(poses.sum(), maps)[0].shape == maps.shape


def test_channels_that_make_no_capsules():
    with pytest.raises(ValueError, match=r"\(B, T·3, H, W\)"):
        squash_maps(torch.zeros(1, 8, 2, 2), None, 3)
