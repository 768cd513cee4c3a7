"""Trace a model to a program of plain tensor operations, from which every exporter starts."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.models import ImageModel, SynthesisModel
from torchcaps.models.files import make_config
from torchcaps.models.segmentation import to_mask
from torchcaps.ops.dispatch import using

NOISY_LOGGERS = ("torch.__trace", "torch.onnx", "torch.export", "torch._inductor", "onnxscript", "onnx_ir")


class ExportWrapper(nn.Module):
    """Wrap a model so that it returns a tuple of tensors, each with a name.

    Classification models return lengths (B, J); with a decoder the reconstruction; with a placement x, y, angle, scale,
    spread and, if available, stretch, shear and thickness, each (B, J); and the familiarity (B,) if they measure it.
    Segmentation models return lengths (B, K, H, W) and masks, int64 (B, H, W).

    Args:
        model: is set to evaluation mode.

    Attributes:
        inputs: names: images, float (B, C, H, W) in [0, 1].
        outputs: names.
    """

    inputs: tuple[str, ...] = ("images",)
    outputs: tuple[str, ...]

    def __init__(self, model: ImageModel):
        super().__init__()
        self.model: Any = model.eval()
        self.outputs = ("lengths", "masks") if model.task == "segmentation" else ("lengths",)
        if getattr(model, "decoder", None) is not None:
            self.outputs += ("reconstruction",)
        self.outputs += _placement_names(model)
        if callable(getattr(model, "familiarity", None)):
            self.outputs += ("familiarity",)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        out = self.model(images)
        if "masks" in self.outputs:
            masks = to_mask(out.probabilities)
            found = {"lengths": out.probabilities, "masks": masks, "reconstruction": out.reconstruction}
            return tuple(found[name] for name in self.outputs)
        found = {"lengths": out.lengths, "reconstruction": out.reconstruction}
        if out.placement is not None:
            found |= out.placement._asdict()
        if "familiarity" in self.outputs:
            measure: Any = self.model.familiarity
            found["familiarity"] = measure(images, out)
        return tuple(found[name] for name in self.outputs)

    def example(self, batch: int, scale: int = 0) -> tuple[Tensor, ...]:
        """Random inputs. Pixels are independent: on smooth maps routing is nearly undecided, and rounding is amplified.

        Args:
            batch: number of inputs.
            scale: where sizes are free, adds this many times `multiple` to them.
        """
        return (torch.rand(batch, *self._size(scale)),)

    def axes(self) -> tuple[dict[int, Any], ...]:
        """The free axes of each input, as torch.export takes them."""
        return ({0: Dim("batch", min=1), **self._sides(2)},)

    @property
    def multiple(self) -> int | None:
        """Height and width may be any multiple of this; None if they are fixed."""
        free = self.model.task == "segmentation" or (self.model.task == "synthesis" and not self.model.fixed_size)
        return self.model.multiple if free else None

    def _size(self, scale: int) -> tuple[int, int, int]:
        channels, *sides = self.model.image_shape
        if self.multiple is not None:  # at least three: a tracer specialises on sizes of 0 and 1
            sides = [(max(3, -(-side // self.multiple)) + scale) * self.multiple for side in sides]
        return channels, sides[0], sides[1]

    def _sides(self, first: int) -> dict[int, Any]:
        if self.multiple is None:
            return {}
        rows, columns = Dim("rows", min=1), Dim("columns", min=1)
        if self.multiple == 1:
            return {first: rows, first + 1: columns}
        return {first: self.multiple * rows, first + 1: self.multiple * columns}


class SynthesisWrapper(ExportWrapper):
    """Wrap a synthesis model, which returns images (B, C, H, W).

    Args:
        model: is set to evaluation mode.

    Attributes:
        inputs: names: masks, int64 (B, H, W), and noise (B, Z).
        outputs: names.
    """

    inputs = ("masks", "noise")
    model: SynthesisModel

    def __init__(self, model: SynthesisModel):
        super().__init__(model)
        self.outputs = ("images",)

    def forward(self, masks: Tensor, noise: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return (self.model(masks, noise),)

    def example(self, batch: int, scale: int = 0) -> tuple[Tensor, ...]:
        _, height, width = self._size(scale)
        classes = self.model.num_classes
        coarse = torch.randint(classes, (batch, 1, height // 8 or 1, width // 8 or 1)).float()
        masks = functional.interpolate(coarse, (height, width), mode="nearest")[:, 0].long()
        return masks, torch.randn(batch, self.model.z)

    def axes(self) -> tuple[dict[int, Any], ...]:
        batch = Dim("batch", min=1)
        return {0: batch, **self._sides(1)}, {0: batch}


@torch.no_grad()
def _placement_names(model: ImageModel) -> tuple[str, ...]:
    """Run the model on one black image to learn which parts of a placement it predicts."""
    if model.task != "classification":
        return ()
    placement = model(torch.zeros(1, *model.image_shape, device=model.device)).placement
    return () if placement is None else tuple(name for name, value in placement._asdict().items() if value is not None)


class Traced(NamedTuple):
    """A model and its program."""

    wrapper: ExportWrapper
    program: ExportedProgram


def export_wrapper(model: ImageModel) -> ExportWrapper:
    """Wrap a model so that its inputs and outputs have names."""
    if model.task == "detection":
        raise UserError("models that find objects cannot be exported: use `torchcaps detect`, or torchcaps.detect")
    if model.task != "synthesis":
        return ExportWrapper(model)
    synthesis = cast(SynthesisModel, model)
    if not synthesis.has_noise:
        raise UserError(
            "this model draws by dropout, which other runtimes omit: it cannot be exported; train one with "
            "model.noise=broadcast"
        )
    return SynthesisWrapper(synthesis)


def trace(model: ImageModel) -> Traced:
    """Trace a model, including its routing loop, for any batch size."""
    wrapper = export_wrapper(model)
    with quiet(), torch.no_grad(), using("reference"):
        program = torch.export.export(wrapper, wrapper.example(2), dynamic_shapes=wrapper.axes(), strict=False)
    return Traced(wrapper, program)


def model_metadata(wrapper: ExportWrapper) -> dict[str, Any]:
    """What a program without torchcaps needs to prepare the input of an exported model and to read its output."""
    model = wrapper.model
    config = make_config(model)
    metadata: dict[str, Any] = {
        "architecture": config["architecture"],
        "class_names": model.class_names,
        "image_shape": model.image_shape,
        "preprocessing": config["preprocessing"],  # mean and std are applied inside
        "trained_by": model.trained_by,
    }
    if wrapper.multiple is not None:
        metadata["multiple"] = wrapper.multiple  # of height and width
    if "noise" in wrapper.inputs:
        metadata["noise"] = model.z
    if "familiarity" in wrapper.outputs and model.none_below is not None:
        metadata["none_below"] = model.none_below  # an image less familiar than this belongs to no class
    return metadata


def text_metadata(wrapper: ExportWrapper) -> dict[str, str]:
    """The same metadata as text; values that are not text become JSON."""
    metadata = model_metadata(wrapper)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the deprecation warnings and hints of the exporters, which are for their developers."""
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in NOISY_LOGGERS:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
