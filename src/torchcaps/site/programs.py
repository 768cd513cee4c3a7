"""The programs that answer in a browser: each served model as ONNX files, checked in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from torchcaps.capsules import length
from torchcaps.errors import UserError
from torchcaps.exchange.check import TOLERANCE
from torchcaps.exchange.onnx_file import runner, translate
from torchcaps.exchange.program import quiet
from torchcaps.explain.require import has_placement
from torchcaps.extras import import_extra
from torchcaps.geometry import Affine
from torchcaps.models import CapsuleModel, ImageModel, Output, Placement, PoseCaps
from torchcaps.ops.dispatch import using
from torchcaps.predict import familiarity_threshold
from torchcaps.serve.requests import MAX_ITERATIONS

if TYPE_CHECKING:
    from onnx import ModelProto

BATCHES = (1, 3)  # compared with the model
MIN_HALVED_VALUES = 256  # smaller tensors are not worth another operator


class Program(nn.Module):
    """A function of tensors, the first axis of the first one free, with names for its inputs and outputs.

    Attributes:
        inputs, outputs: names.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def example(self, batch: int) -> tuple[Tensor, ...]:
        """Random inputs."""
        raise NotImplementedError

    def axes(self) -> tuple[dict[int, Any], ...]:
        """The free axes of each input, as torch.export takes them."""
        return ({0: Dim("batch", min=1)}, *({} for _ in self.inputs[1:]))


class EncodeCapsules(Program):
    """Route images (B, C, H, W), step by step.

    Returns lengths of the primary capsules (B, I), votes (B, I, J, D), and of R iterations the couplings (R, B, I, J),
    class capsules (R, B, J, D) and their lengths (R, B, J). What the first iterations give does not depend on R.
    """

    inputs = ("images",)
    outputs = ("parts", "votes", "couplings", "poses", "lengths")

    def __init__(self, model: CapsuleModel):
        super().__init__()
        self.model = model
        self.iterations = max(MAX_ITERATIONS, model.classes.iterations)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        layer = self.model.classes
        children = self.model.children_of(images)
        votes = torch.einsum("ijdk,bik->bijd", layer.weight, children.pose)
        steps = [layer(children, iterations=1 + step, return_couplings=True) for step in range(self.iterations)]
        couplings = torch.stack([coupled for _, coupled in steps])
        poses = torch.stack([parents.pose for parents, _ in steps])
        lengths = torch.stack([parents.activation for parents, _ in steps])
        return children.activation, votes, couplings, poses, lengths

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch, *self.model.image_shape),)


class EncodePoses(Program):
    """Read presence, capsules and placements from images (B, C, H, W), seen in views (G, 2, 2).

    With the G views that the model searches, the results are its own. The lengths in each view (B, G, J) are for those
    of the lattice, G at a time.
    """

    inputs = ("images", "views")

    def __init__(self, model: PoseCaps):
        super().__init__()
        self.model = model
        placement = model(torch.zeros(1, *model.image_shape)).placement
        self.parts = tuple(name for name, part in placement._asdict().items() if part is not None)
        self.outputs = ("lengths", "poses", "in_views", *self.parts)
        if familiarity_threshold(model) is not None:
            self.outputs += ("familiarity",)

    def forward(self, images: Tensor, linear: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        model = self.model
        views = model.encode_views(images, Affine(linear, torch.zeros_like(linear[..., 0])))
        weights, lengths, poses = model.aggregate(views)
        placement = model.read_placement(views, weights)
        found = [lengths, poses, length(views.capsules), *(getattr(placement, name) for name in self.parts)]
        if "familiarity" in self.outputs:
            ids = lengths.argmax(-1, keepdim=True)
            chosen = Placement._make(None if part is None else part.gather(1, ids) for part in placement)
            drawn = None if model.decoder is None else model.reconstruct(poses, chosen, ids)[:, 0]
            found.append(model.familiarity(images, Output(lengths, poses, drawn)))
        return tuple(found)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return torch.rand(batch, *self.model.image_shape), self.model.search_linear


class Encode(Program):
    """Class lengths (B, J) of images (B, C, H, W)."""

    inputs = ("images",)
    outputs = ("lengths",)

    def __init__(self, model: ImageModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return (self.model(images).lengths,)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch, *self.model.image_shape),)


class Decode(Program):
    """Images (B, C, H, W) from class capsules (B, J, D), all but one of each zero; of pose capsules upright."""

    inputs = ("capsules",)
    outputs = ("pictures",)
    decoder: nn.Module

    def __init__(self, model: CapsuleModel | PoseCaps, dimensions: int):
        super().__init__()
        assert model.decoder is not None
        self.decoder, self.shape = model.decoder, model.image_shape
        self.placed = has_placement(model)
        self.classes, self.dimensions = model.num_classes, dimensions

    def forward(self, capsules: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        if self.placed:
            return (torch.sigmoid(self.decoder(capsules.flatten(1))).view(-1, *self.shape),)
        return (self.decoder(capsules),)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        shown = functional.one_hot(torch.randint(self.classes, (batch,)), self.classes)[..., None]
        return (shown * torch.randn(batch, self.classes, self.dimensions) / self.dimensions**0.5,)


def programs_of(model: ImageModel) -> dict[str, Program]:
    """The programs of a model, by name."""
    if familiarity_threshold(model) is not None and not has_placement(model):
        raise UserError("only pose capsules can measure familiarity in a browser; remove none_below")
    with torch.no_grad():
        if has_placement(model):
            found: dict[str, Program] = {"encode": EncodePoses(model)}
            return found if model.decoder is None else found | {"decode": Decode(model, model.class_dim)}
        if isinstance(model, CapsuleModel):
            return {"encode": EncodeCapsules(model), "decode": Decode(model, model.classes.out_dim)}
        return {"encode": Encode(model)}


def write_program(program: Program, path: Path) -> float:
    """Write a program as an ONNX file and compare it with the model.

    Args:
        program: is set to evaluation mode.
        path: of the file.

    Returns:
        The largest difference, over all outputs.
    """
    onnx, *_ = import_extra("export", "onnx", "onnxruntime", "onnxscript")
    try:
        with quiet(), torch.no_grad(), using("reference"):
            traced = torch.export.export(
                program.eval(), program.example(2), dynamic_shapes=program.axes(), strict=False
            )
        proto = translate(traced, program.inputs, program.outputs)
    except UserError:
        raise
    except Exception as error:  # what a model of someone else's does may end in any exception of the tracer
        kind = type(program).__name__
        raise UserError(f"this model cannot be exported for a browser ({kind}: {_first_line(error)})") from error
    halve(proto)
    onnx.save_model(proto, path)
    return compare(program, path)


def halve(proto: ModelProto) -> None:
    """Store weights in half precision where that loses nothing, as for shipped models; a runtime widens them once."""
    from onnx import TensorProto, helper, numpy_helper

    graph = proto.graph
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if values.size < MIN_HALVED_VALUES or not np.array_equal(half.astype(np.float32), values):
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        graph.node.insert(0, helper.make_node("Cast", [f"{name}.half"], [name], f"{name}.wide", to=TensorProto.FLOAT))
    del graph.value_info[:]


@torch.no_grad()
def compare(program: Program, path: Path) -> float:
    """Return the largest difference between a program and its file; raise a UserError if it exceeds TOLERANCE."""
    run, worst = runner(path), 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch in BATCHES:
            inputs = program.example(batch)
            with using("reference"):
                expected: Sequence[Tensor] = program(*inputs)
            for name, own, exported in zip(program.outputs, expected, run(inputs)):
                gap = (own - exported).abs()
                if name == "angle":
                    gap = torch.minimum(gap, 360 - gap).deg2rad()
                largest = gap.max().item() if own.shape == exported.shape else float("nan")
                if not largest <= TOLERANCE:  # also if it is NaN
                    raise UserError(
                        f"the exported program's {name} differs from the model's by up to {largest:.2g}, more than the "
                        f"{TOLERANCE:g} that rounding explains"
                    )
                worst = max(worst, largest)
    return worst


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
