"""A model as a program of plain tensor operations, which every exporter starts from."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.models import ImageModel, SegmentationModel, SynthesisModel
from torchcaps.models.files import make_config
from torchcaps.models.segmentation import to_mask
from torchcaps.ops.dispatch import using

CHATTY = ("torch.__trace", "torch.onnx", "torch.export", "torch._inductor", "onnxscript", "onnx_ir")


class Answers(nn.Module):
    """A model with a tuple of tensors for an answer, each with a name.

    inputs   images, float (B, C, H, W) in [0, 1]; of a model that draws masks, int64 (B, H, W), and noise (B, Z)
    outputs  lengths (B, J), and the reconstruction if there is a decoder; of a model that says how classes stand also
             x, y, angle, scale, spread and, where it tells them, stretch, shear and thickness, each (B, J); of a model
             that measures it the familiarity (B,) of the image; of a model that segments lengths (B, K, H, W) and
             masks, int64 (B, H, W); of a model that draws images
    """

    inputs: tuple[str, ...] = ("images",)
    outputs: tuple[str, ...]

    def __init__(self, model: ImageModel):
        super().__init__()
        self.model = model.eval()
        self.outputs = ("lengths", "masks") if isinstance(model, SegmentationModel) else ("lengths",)
        if getattr(model, "decoder", None) is not None:
            self.outputs += ("reconstruction",)
        self.outputs += _placement_names(model)
        if callable(getattr(model, "familiarity", None)):
            self.outputs += ("familiarity",)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        out = self.model(images)
        found = {"lengths": out.lengths, "reconstruction": out.reconstruction}
        if "masks" in self.outputs:
            found["masks"] = to_mask(out.lengths)
        if out.placement is not None:
            found |= out.placement._asdict()
        if "familiarity" in self.outputs:
            measure: Any = self.model.familiarity
            found["familiarity"] = measure(images, out)
        return tuple(found[name] for name in self.outputs)

    def example(self, batch: int, scale: int = 0) -> tuple[Tensor, ...]:
        """Inputs to try it with. Independent pixels: of smooth maps routing at each position is all but undecided, and
        rounding shows.

        scale  adds so many multiples of what a size must be a multiple of, where sizes are free
        """
        return (torch.rand(batch, *self._size(scale)),)

    def axes(self) -> tuple[dict[int, Any], ...]:
        """Which axes of each input are free, as torch.export wants to know it."""
        return ({0: Dim("batch", min=1), **self._sides(2)},)

    @property
    def multiple(self) -> int | None:
        """Height and width are any multiples of this; None if they are fixed."""
        if isinstance(self.model, SegmentationModel):
            return self.model.multiple
        return self.model.multiple if isinstance(self.model, SynthesisModel) and not self.model.fixed_size else None

    def _size(self, scale: int) -> tuple[int, int, int]:
        channels, *sides = self.model.image_shape
        if self.multiple is not None:  # at least three: sizes of 0 and 1 are special to a tracer
            sides = [(max(3, -(-side // self.multiple)) + scale) * self.multiple for side in sides]
        return channels, sides[0], sides[1]

    def _sides(self, first: int) -> dict[int, Any]:
        if self.multiple is None:
            return {}
        rows, columns = Dim("rows", min=1), Dim("columns", min=1)
        if self.multiple == 1:
            return {first: rows, first + 1: columns}
        return {first: self.multiple * rows, first + 1: self.multiple * columns}


class Drawings(Answers):
    """The same of a model that draws."""

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
    """Ask about one black image which numbers the model tells about how a class stands."""
    if isinstance(model, SegmentationModel | SynthesisModel):
        return ()
    placement = model(torch.zeros(1, *model.image_shape, device=model.device)).placement
    return () if placement is None else tuple(name for name, value in placement._asdict().items() if value is not None)


class Traced(NamedTuple):
    answers: Answers
    program: ExportedProgram


def answers_of(model: ImageModel) -> Answers:
    """The model with named inputs and outputs."""
    if not isinstance(model, SynthesisModel):
        return Answers(model)
    if not model.has_noise:
        raise UserError(
            "this model draws by dropout, which other runtimes leave away: it cannot be exported; train one with "
            "model.noise=broadcast"
        )
    return Drawings(model)


def trace(model: ImageModel) -> Traced:
    """The model as a program of plain operations, the routing loop among them, for any batch."""
    answers = answers_of(model)
    with quiet(), torch.no_grad(), using("reference"):
        program = torch.export.export(answers, answers.example(2), dynamic_shapes=answers.axes(), strict=False)
    return Traced(answers, program)


def facts_about(answers: Answers) -> dict[str, Any]:
    """What a program without torchcaps has to know to feed an exported file and to read its answer."""
    model = answers.model
    about = make_config(model)
    facts: dict[str, Any] = {
        "architecture": about["architecture"],
        "class_names": model.class_names,
        "image_shape": model.image_shape,
        "preprocessing": about["preprocessing"],  # mean and std are applied inside
        "trained_by": model.trained_by,
    }
    if answers.multiple is not None:
        facts["multiple"] = answers.multiple  # of height and width
    if "noise" in answers.inputs:
        facts["noise"] = model.z
    if "familiarity" in answers.outputs and model.none_below is not None:
        facts["none_below"] = model.none_below  # an image less familiar than this is none of the classes
    return facts


def metadata(answers: Answers) -> dict[str, str]:
    """The same for formats that hold text only: what is not text is JSON."""
    facts = facts_about(answers)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the deprecations and hints of exporters, which are for those who develop them."""
    levels = {name: logging.getLogger(name).level for name in CHATTY}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in CHATTY:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
