"""Tracers and compilers, with a free batch size. One module holds every case: compilations take long."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Together, close, loss
from torch._dynamo import compiled_autograd
from torch.export import Dim, export
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from torchcaps.ops.dispatch import using

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # compilers warn of what they do themselves
SIZES = (1, 5)


@pytest.fixture(scope="module")
def together():
    return Together()


def assert_agrees(run, module):
    for batch in SIZES:
        inputs = module.inputs(batch)
        found = tree_leaves(run(*inputs))
        for name, one, other in zip(CASES, zip(found[::2], found[1::2]), module(*inputs), strict=True):
            close(one, other, msg=lambda text, name=name: f"{name}: {text}")


def traced(module, **options):
    batch = Dim("batch", min=1, max=64)
    shapes = (tuple({0: batch} for _ in CASES),)
    return export(module, tuple(module.inputs(3)), dynamic_shapes=shapes, **options)


def ours(program):
    """Names of our operators in a program, also inside blocks such as those without autocast."""
    graphs = [each.graph for each in program.graph_module.modules() if isinstance(each, GraphModule)]
    targets = [str(node.target).split(".") for graph in graphs for node in graph.nodes]
    return {rest[0] for namespace, *rest in targets if namespace == "torchcaps"}


@pytest.mark.parametrize("strict", [False, True])
def test_export_makes_a_program_of_pytorchs_own_operators(together, strict):
    program = traced(together, strict=strict)
    assert ours(program) == set()
    assert_agrees(program.module(), together)


def test_a_program_keeps_the_operators_of_the_backend_in_use(together):
    with using("chunked"):
        program = traced(together)
    assert ours(program) == {"squash_maps", "dynamic_routing_chunked", "em_routing", "local_routing"}
    assert_agrees(program.module(), together)


def test_onnx_runs_a_module_of_the_users(together, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = str(tmp_path / "model.onnx")
    shapes = (tuple({0: Dim("batch", min=1, max=64)} for _ in CASES),)
    inputs = tuple(together.inputs(3))
    torch.onnx.export(together, inputs, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*inputs):
        given = {each.name: x.numpy() for each, x in zip(session.get_inputs(), inputs, strict=True)}
        return [torch.from_numpy(each) for each in session.run(None, given)]

    with torch.no_grad():
        assert_agrees(run, together)


def test_aotinductor_compiles_to_a_library(together, tmp_path):
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(traced(together), package_path=str(tmp_path / "model.pt2"))
        assert_agrees(torch._inductor.aoti_load_package(path), together)


def test_compile_makes_one_graph_forward_and_backward(together):
    torch.compiler.reset()
    compiled = torch.compile(together, fullgraph=True)
    parameters = list(together.parameters())
    for batch in (3, 5):
        inputs = together.inputs(batch)
        for each in inputs:
            torch._dynamo.mark_dynamic(each, 0)
        slopes = [torch.autograd.grad(sum(map(loss, run(*inputs))), parameters) for run in (compiled, together)]
        close(*slopes, rtol=1e-4, atol=1e-5)
    assert_agrees(compiled, together)


def test_compiled_autograd_makes_one_graph_of_an_eager_step(together):
    torch.compiler.reset()
    inputs, parameters = together.inputs(3), list(together.parameters())
    expected = torch.autograd.grad(sum(map(loss, together(*inputs))), parameters)
    together.zero_grad()
    value = sum(map(loss, together(*inputs)))
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        value.backward()
    close([each.grad for each in parameters], expected)
