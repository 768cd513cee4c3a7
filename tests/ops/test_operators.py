"""Routing as PyTorch operators: torch.library's own checks, compile, export."""

import paths
import pytest
import torch

from torchcaps.layers import DenseCaps
from torchcaps.ops import Window, dynamic_routing, em_routing, local_routing, primary, squash_maps
from torchcaps.ops.dispatch import using
from torchcaps.ops.dynamic import operators
from torchcaps.ops.local import operators as local

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(bias=True):
    shapes = [(3, 9, 4), (9, 5, 6, 4), (5, 6)]
    u, weight, b = (torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes)
    return u, weight, b if bias else None


@pytest.mark.parametrize("couplings", [False, True], ids=["poses", "couplings"])
@pytest.mark.parametrize("operator", [operators.chunked, operators.fused], ids=["chunked", "fused"])
def test_operator_passes_opcheck(operator, couplings):
    torch.library.opcheck(operator.operator, (*inputs(), 3, True, 2.0, couplings), atol=1e-4, rtol=1e-3)


def test_backward_operators_pass_opcheck():
    u, weight, bias = (x.detach() for x in inputs())
    grad = torch.randn(3, 5, 6, device=DEVICE)
    sums = operators.chunked.forward(u, weight, bias, 3, False, 2.0, False)[2]
    saved = operators.fused.forward(u, weight, bias, 3, False, 2.0, False)[2:]
    for needs in ([True, True, True], [False, False, True]):
        torch.library.opcheck(operators.chunked.backward_operator, (grad, None, u, weight, sums, False, 2.0, needs))
        torch.library.opcheck(operators.fused.backward_operator, (grad, u, weight, *saved, False, 2.0, needs))


@pytest.mark.parametrize("backend", ["chunked", "fused"])
def test_compiles_without_a_break(monkeypatch, backend):
    monkeypatch.setenv("TORCHCAPS_BACKEND", backend)
    u, weight, bias = inputs()
    compiled = torch.compile(
        lambda u, weight, bias: dynamic_routing(u, weight, 3, bias=bias).poses.square(),
        fullgraph=True,
        backend="aot_eager",
    )
    expected, _ = paths.reference.dynamic_routing(u, weight, 3, bias, False)
    torch.testing.assert_close(compiled(u, weight, bias), expected.square(), rtol=1e-3, atol=1e-4)
    ours = torch.autograd.grad(compiled(u, weight, bias).sum(), (u, weight, bias))
    theirs = torch.autograd.grad(expected.square().sum(), (u, weight, bias))
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_layer_compiles_without_a_break_with_the_backend_in_use():
    layer, u = DenseCaps(9, 4, 5, 6), torch.randn(3, 9, 4)
    graphs = []

    def keep(graph, _):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    for backend in ("chunked", "reference"):
        torch.compiler.reset()
        with using(backend):
            poses = torch.compile(lambda u: layer(u).pose, fullgraph=True, backend=keep)(u)
        torch.testing.assert_close(poses, layer(u).pose)
    assert ["torchcaps.dynamic_routing" in graph for graph in graphs] == [True, False]


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_with_the_reference_has_no_operators_of_torchcaps(strict):
    layer = DenseCaps(9, 4, 5, 6).eval()
    with using("reference"):
        program = torch.export.export(Poses(layer), (torch.randn(3, 9, 4),), strict=strict)
    assert "torchcaps" not in str(program.graph)


class Poses(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, u):
        return self.layer(u).pose


def test_layer_exports():
    layer = DenseCaps(9, 4, 5, 6).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Poses(layer), (torch.randn(3, 9, 4),), dynamic_shapes=({0: batch},))
    u = torch.randn(7, 9, 4)
    torch.testing.assert_close(program.module()(u), layer(u).pose)


def seeded(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


ROUTES = {
    "dynamic": (lambda u, weight, bias: dynamic_routing(u, weight, 2, bias=bias), [(3, 5, 4), (5, 3, 6, 4), (3, 6)]),
    "em": (
        lambda pose, active, weight, u, a: em_routing(pose, active.sigmoid(), weight, u, a, 2),
        [(2, 5, 4), (2, 5), (5, 3, 2, 2), (3,), (3,)],
    ),
    "local": (
        lambda pose, weight, bias: local_routing(pose, weight, bias, 2, Window(padding=1)),
        [(2, 2, 4, 3, 3), (6, 4, 3, 3), (2, 3)],
    ),
    "squash_maps": (lambda maps, bias: (squash_maps(maps, bias, 3, 0.5),), [(2, 6, 3, 3), (6,)]),
}


@pytest.mark.parametrize("backend", ["chunked", "fused"])
@pytest.mark.parametrize("name", ROUTES)
def test_what_is_frozen_changes_no_other_gradient(name, backend):
    route, shapes = ROUTES[name]

    def gradients(frozen):
        inputs = [seeded(*shape).requires_grad_(i != frozen) for i, shape in enumerate(shapes)]
        with using(backend):
            sum(x.square().sum() for x in route(*inputs) if x is not None).backward()
        return [x.grad for x in inputs]

    expected = gradients(None)
    for frozen in range(len(shapes)):
        for i, (one, other) in enumerate(zip(gradients(frozen), expected)):
            assert (one is None) if i == frozen else torch.equal(one, other)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "kernels"])
def test_backwards_leave_out_what_is_not_needed(fused):
    pose, weight, bias = (seeded(*shape) for shape in ROUTES["local"][1])
    none = [False, False, False]
    grad = torch.ones(2, 2, 3, 3, 3, device=DEVICE)
    found = local.route.backward(grad, pose, weight, bias, [1, 1, 1, 0, 0], 2, fused, none)
    assert [x.numel() for x in found] == [0, 0, bias.numel()]
    maps = seeded(2, 6, 3, 3)
    found = primary._squash_maps.backward(torch.ones(2, 18, 3, device=DEVICE), maps, None, 3, 0.5, fused, none)
    assert [x.numel() for x in found] == [0, 0]
