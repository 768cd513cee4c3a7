"""Models as ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps._version import __version__
from torchcaps.errors import UserError
from torchcaps.exchange.check import Agreement, Run, check
from torchcaps.exchange.needs import needed
from torchcaps.exchange.program import Answers, Traced, metadata, quiet, trace
from torchcaps.models import ImageModel

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20
OLDEST = 18  # what the exporter itself writes; newer ones are converted to
MAX_PROTOBUF_BYTES = 2**31 - 2**20  # bytes of a protobuf, less some for what is not weights


def write_onnx(model: ImageModel, path: Path, opset: int = OPSET) -> Agreement:
    """Write the model to `path`; weights beyond what one file can hold go to `path` + ".data" beside it.

    The file is checked before this returns, against the model, by onnxruntime.
    """
    onnx, *_ = needed("export", "onnx", "onnxruntime", "onnxscript")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise UserError(f"--opset {opset}: there are {OLDEST} to {newest} to choose from")
    traced = trace(model)
    proto = _translate(traced, opset)
    _name_axes(proto, traced.answers)
    onnx.helper.set_model_props(proto, metadata(traced.answers))
    apart = (
        {"save_as_external_data": True, "location": path.name + ".data"}
        if proto.ByteSize() > MAX_PROTOBUF_BYTES
        else {}
    )
    onnx.save_model(proto, path, **apart)
    onnx.checker.check_model(path, full_check=True)
    return check(traced.answers, runner(path))


def runner(path: Path) -> Run:
    """The file as onnxruntime runs it on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # PyTorch takes turns with it
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.from_numpy(each) for each in session.run(None, dict(zip(names, map(Tensor.numpy, inputs))))]

    return run


def _translate(traced: Traced, opset: int) -> ModelProto:
    answers, program = traced
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        torch.ops.aten.hypot.default: _hypot(),
        torch.ops.aten.median.dim: _median(),
    }
    with quiet(), torch.no_grad():
        made = torch.onnx.export(
            program,
            input_names=answers.inputs,
            output_names=answers.outputs,
            opset_version=opset,
            custom_translation_table=table,
            dynamo=True,
            verbose=False,
        )
    assert made is not None  # without a path it returns what it made
    proto = made.model_proto
    if proto.opset_import[0].version != opset:
        raise UserError(f"--opset {opset}: the exporter cannot write it; {OPSET} is what it writes by default")
    return proto


def _hypot() -> Any:
    """√(a² + b²) without a square that overflows: ONNX has no operator for it."""
    from onnxscript import opset18

    op: Any = opset18

    def hypot(a: Any, b: Any) -> Any:
        large, small = op.Max(op.Abs(a), op.Abs(b)), op.Min(op.Abs(a), op.Abs(b))
        ratio = op.Div(small, large)
        return op.Mul(large, op.Sqrt(op.Add(op.Mul(ratio, ratio), op.CastLike(op.Constant(value_float=1.0), ratio))))

    return hypot


def _median() -> Any:
    """The largest of the smaller half, and where it is: ONNX has no operator for it."""
    from onnxscript import opset18

    op: Any = opset18

    def median(values: Any, dim: int, keepdim: bool = False) -> Any:
        count = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        half = op.Div(op.Add(count, op.Constant(value_ints=[1])), op.Constant(value_ints=[2]))
        smallest, places = op.TopK(values, half, axis=dim, largest=0, sorted=1)
        last = op.Constant(value_ints=[-1]) if keepdim else op.Constant(value_int=-1)
        return op.Gather(smallest, last, axis=dim), op.Gather(places, last, axis=dim)

    return median


def _name_axes(proto: ModelProto, answers: Answers) -> None:
    """Give free axes names that a reader understands, instead of the tracer's."""
    graph, names = proto.graph, {}
    for axes, value in zip(answers.axes(), graph.input):
        for axis, name in zip(axes, ("batch", "height", "width")):
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
    del graph.value_info[:]  # shapes in between, in the tracer's names; a runtime infers them
    proto.producer_name, proto.producer_version = "torchcaps", __version__
