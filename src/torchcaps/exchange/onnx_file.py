"""Export models as ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps._version import __version__
from torchcaps.errors import UserError
from torchcaps.exchange.check import Agreement, Run, check
from torchcaps.exchange.program import ExportWrapper, Traced, quiet, text_metadata, trace
from torchcaps.extras import import_extra
from torchcaps.models import ImageModel

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20
MIN_OPSET = 18  # written by the exporter; newer ones are converted from it
MAX_PROTOBUF_BYTES = 2**31 - 2**20  # of the weights; the rest of the limit is for the graph


def write_onnx(model: ImageModel, path: Path, opset: int = OPSET) -> Agreement:
    """Write the model to `path`, with weights beyond 2 GB in `path` + ".data", and check it in onnxruntime.

    Args:
        model: to write.
        path: of the file.
        opset: version of ONNX's operators.
    """
    onnx, *_ = import_extra("export", "onnx", "onnxruntime", "onnxscript")
    newest = onnx.defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= newest:
        raise UserError(f"--opset {opset}: choose from {MIN_OPSET} to {newest}")
    traced = trace(model)
    proto = _translate(traced, opset)
    _name_axes(proto, traced.wrapper)
    onnx.helper.set_model_props(proto, text_metadata(traced.wrapper))
    external = (
        {"save_as_external_data": True, "location": path.name + ".data"}
        if proto.ByteSize() > MAX_PROTOBUF_BYTES
        else {}
    )
    onnx.save_model(proto, path, **external)
    onnx.checker.check_model(path, full_check=True)
    return check(traced.wrapper, runner(path))


def runner(path: Path) -> Run:
    """Load an ONNX file; the returned function runs it on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # spinning threads would slow PyTorch down
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.from_numpy(each) for each in session.run(None, dict(zip(names, map(Tensor.numpy, inputs))))]

    return run


def _translate(traced: Traced, opset: int) -> ModelProto:
    wrapper, program = traced
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        torch.ops.aten.hypot.default: _hypot(),
        torch.ops.aten.median.dim: _median(),
    }
    with quiet(), torch.no_grad():
        made = torch.onnx.export(
            program,
            input_names=wrapper.inputs,
            output_names=wrapper.outputs,
            opset_version=opset,
            custom_translation_table=table,
            dynamo=True,
            verbose=False,
        )
    assert made is not None  # it returns None only if it is given a path
    proto = made.model_proto
    if proto.opset_import[0].version != opset:
        raise UserError(f"--opset {opset}: the exporter cannot write it; omit --opset for {OPSET}")
    return proto


def _hypot() -> Any:
    """√(a² + b²) without overflow, for which ONNX has no operator."""
    from onnxscript import opset18

    op: Any = opset18

    def hypot(a: Any, b: Any) -> Any:
        large, small = op.Max(op.Abs(a), op.Abs(b)), op.Min(op.Abs(a), op.Abs(b))
        ratio = op.Div(small, large)
        return op.Mul(large, op.Sqrt(op.Add(op.Mul(ratio, ratio), op.CastLike(op.Constant(value_float=1.0), ratio))))

    return hypot


def _median() -> Any:
    """The lower median and its index, for which ONNX has no operator."""
    from onnxscript import opset18

    op: Any = opset18

    def median(values: Any, dim: int, keepdim: bool = False) -> Any:
        count = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        half = op.Div(op.Add(count, op.Constant(value_ints=[1])), op.Constant(value_ints=[2]))
        smallest, places = op.TopK(values, half, axis=dim, largest=0, sorted=1)
        last = op.Constant(value_ints=[-1]) if keepdim else op.Constant(value_int=-1)
        return op.Gather(smallest, last, axis=dim), op.Gather(places, last, axis=dim)

    return median


def _name_axes(proto: ModelProto, wrapper: ExportWrapper) -> None:
    """Name the free axes batch, height and width."""
    graph, names = proto.graph, {}
    for axes, value in zip(wrapper.axes(), graph.input):
        for axis, name in zip(axes, ("batch", "height", "width")):
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
    del graph.value_info[:]  # intermediate shapes under other names; a runtime infers them
    proto.producer_name, proto.producer_version = "torchcaps", __version__
