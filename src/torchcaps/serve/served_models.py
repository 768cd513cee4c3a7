"""The served models: which ones are loaded, how they are described, and how images are preprocessed for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.images import resize_images
from torchcaps.errors import UserError
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.require import has_placement, require_decoder
from torchcaps.explain.votes import require_vector_votes
from torchcaps.models import CapsuleModel, ImageModel, PoseCaps, SegmentationModel, SynthesisModel, load, shipped_models
from torchcaps.models.files import file_beside
from torchcaps.predict import familiarity_threshold
from torchcaps.serve import pictures, requests, responses
from torchcaps.serve.examples import DIGIT_SOURCES, NOT_LOADED, ExampleImages, find_examples

Role = Literal["main", "overlap", "comparison", "routing"]
PAIRS_SOURCE = "multimnist"  # the data source with two digits per image
EXTRA_MODELS: tuple[tuple[str, Role], ...] = (("capsnet-multimnist", "overlap"), ("cnn-mnist", "comparison"))
UNDECIDED = "capsnet-mnist"  # its couplings stay nearly equal, so another network shows what routing is
ROUTING_MODEL: tuple[str, Role] = ("capsnet-mnist-routing", "routing")


class DigitStyle(NamedTuple):
    """How digits look in the images of a data source.

    Attributes:
        box: Size of a digit, as a share of the image's side.
        brush: Width of a stroke, as a share of the digit's size.
        original_side: Side of the images in pixels before they were enlarged for the model; None if they were not.
    """

    box: float = pictures.MNIST_BOX
    brush: float = 0.085
    original_side: int | None = None


MNIST_STYLE = DigitStyle()
STYLE_IN_40 = DigitStyle(box=20 / 40)
DIGIT_STYLES = {
    "digits": DigitStyle(box=1.0, brush=0.1, original_side=8),
    "mnist-expanded": STYLE_IN_40,
    "affnist-like": STYLE_IN_40,
}


@dataclass(frozen=True)
class ServedModel:
    """A model with the metadata stored beside its weights.

    Attributes:
        name: Its name in the API.
        model: The model, in evaluation mode.
        role: main, overlap (for two digits), comparison, or routing (on the panel of that name).
        card: Its model card.
        meanings: For each class and dimension, the image property that the dimension correlates with.
        examples: Images of the kind that it was trained on.
    """

    name: str
    model: ImageModel
    role: Role = "main"
    card: dict[str, Any] = field(default_factory=dict)
    meanings: list[list[dict[str, Any]]] | None = None
    examples: ExampleImages = NOT_LOADED

    @property
    def capsules(self) -> CapsuleModel:
        if not isinstance(self.model, CapsuleModel):
            raise UserError(f"{self.name} has no routed capsules; use a model of kind capsules")
        return self.model

    @property
    def poses(self) -> PoseCaps:
        if not has_placement(self.model):
            raise UserError(f"{self.name} does not predict placements; use a model of kind poses")
        return self.model

    @property
    def num_views(self) -> int:
        """Number of views that the model computes for each image."""
        return self.model.search_linear.shape[:-2].numel() if has_placement(self.model) else 1

    @property
    def source(self) -> str | None:
        """The data source that it was trained on."""
        found = self.model.trained_by.get("data", {}).get("source")
        return found if isinstance(found, str) else None

    @property
    def style(self) -> DigitStyle:
        return DIGIT_STYLES.get(self.source or "", MNIST_STYLE)

    @property
    def part_grid(self) -> tuple[int, int, int]:
        """Types, rows and columns of the primary capsules."""
        rows, columns = self.capsules.grid
        return self.capsules.classes.in_capsules // (rows * columns), rows, columns

    @property
    def draws(self) -> bool:
        """Whether it takes white ink on black. If nothing is recorded about its data, grey images are taken for ink."""
        return self.source in DIGIT_SOURCES or (self.source is None and self.model.image_shape[0] == 1)

    def preprocess(self, image: requests.ImageFile | requests.PixelArray | requests.ExampleImage) -> Tensor:
        """Convert a client's image to the model's input: (C, H, W) in [0, 1]."""
        channels, height, width = self.model.image_shape
        if isinstance(image, requests.ExampleImage):
            if image.example >= len(self.examples.images):
                raise UserError(f"example: {self.name} has {len(self.examples.images)} examples, numbered from 0")
            return self.examples.images[image.example]
        if isinstance(image, requests.PixelArray):
            if len(image.pixels) != height or any(len(row) != width for row in image.pixels):
                raise UserError(f"pixels: {self.name} needs {height} rows of {width} values")
            return torch.tensor(image.pixels).expand(channels, height, width)
        data = pictures.decode_base64(image.png)
        if not self.draws:
            colours = pictures.decode_picture(data, 3 if channels == 3 else 1).expand(channels, -1, -1)
            height, width = self.model.resize_to
            return self.model.prepare(resize_images(colours[None], (height, width)))[0]
        drawn = pictures.white_on_black(pictures.decode_picture(data)[0] / 255)
        box, _, side = self.style
        # Reduce to the training images' original resolution, unless the image is no larger than the model's input.
        finer = side is not None and max(drawn.shape) > max(height, width)
        size = (side, side) if side is not None and finer else (height, width)
        grey = pictures.centre(pictures.ink(drawn), *size, box) if image.centre else pictures.fit(drawn, *size)
        return pictures.fit(grey, height, width).expand(channels, height, width)

    def describe(self) -> responses.ModelResponse:
        """Describe the model for `/api/model`."""
        channels, height, width = self.model.image_shape
        kind: Literal["capsules", "poses", "cnn"] = "cnn"
        pose = part_pose = part_types = iterations = grid = lattice = parts = None
        if has_placement(self.model):
            kind, pose, parts = "poses", self.model.class_dim, ["x", "y", *self.model.pose_parts]
            poses, part_pose, part_types = self.model.lattice, self.model.dim, self.model.types
            lattice = responses.Lattice(
                angles=list(poses.angles),
                scales=list(poses.scales),
                full_circle=poses.full_circle,
                searched=self.num_views,
            )
        elif isinstance(self.model, CapsuleModel):
            kind = "capsules"
            pose, iterations = self.model.classes.out_dim, self.model.classes.iterations
            part_pose = self.model.classes.in_dim
            part_types, rows, columns = self.part_grid
            field = receptive_field(self.model, axis=0)
            sizes = {"stride": field.stride, "field": field.field, "offset": field.start}
            grid = responses.Grid(types=part_types, rows=rows, columns=columns, **sizes)
        return responses.ModelResponse(
            name=self.name,
            kind=kind,
            classes=list(self.model.class_names),
            image=responses.ImageShape(channels=channels, height=height, width=width),
            pose=pose,
            part_pose=part_pose,
            part_types=part_types,
            iterations=iterations,
            grid=grid,
            lattice=lattice,
            placement=parts,
            decoder=getattr(self.model, "decoder", None) is not None,
            none_below=familiarity_threshold(self.model),
            drawing=responses.Drawing(box=self.style.box, brush=self.style.brush),
            draws=self.draws,
            examples=self.examples.describe(self.model.class_names),
            role=self.role,
            pairs=self.source == PAIRS_SOURCE,
            card=self.card,
            meanings=self.meanings,
        )


def load_models(name: str) -> list[ServedModel]:
    """Load a model; if it was trained on MNIST, also the shipped models for overlapping digits and comparison.

    With the shipped network whose couplings decide little, also one whose couplings decide.
    """
    main = load_model(name, "main")
    check_explorable(main)
    main = replace(main, examples=find_examples(main.model, main.source))
    served_models = [main]
    if main.source == "mnist":
        wanted = (*EXTRA_MODELS, ROUTING_MODEL) if name == UNDECIDED else EXTRA_MODELS
        shipped = [(other, role) for other, role in wanted if other in shipped_models() and other != main.name]
        extra = [load_model(other, role) for other, role in shipped]
        shape = main.model.image_shape
        served_models += [each for each in extra if each.role == "overlap" or each.model.image_shape == shape]
    return served_models


def load_model(name: str, role: Role) -> ServedModel:
    model = load(name)
    card, meanings = (_read(file_beside(name, file)) for file in ("card.json", "meanings.json"))
    return ServedModel(Path(name).resolve().name, model, role, card or {}, meanings["meanings"] if meanings else None)


def check_explorable(served: ServedModel) -> None:
    """Raise unless the explorer can show the model and its output is finite.

    It can show models that predict placements, and capsule networks with a grid of parts, vector votes and a decoder.
    """
    model, what = served.model, f"{served.name} cannot be explored"
    if isinstance(model, (SegmentationModel, SynthesisModel)):
        raise UserError(f"{what}: it segments or generates images; the explorer shows classifiers")
    if not has_placement(model):
        require_decoder(model, what)
        require_vector_votes(model, what)
    familiarity_threshold(model)  # fail now rather than with every request
    blank = torch.zeros(1, *model.image_shape)
    with torch.inference_mode():
        outputs = [model(image) for image in (blank, blank + 1)]
        parts = [part for output in outputs for part in (output.lengths, *(output.placement or ()))]
        if not all(part.isfinite().all() for part in parts if part is not None):
            raise UserError(f"{what}: its output is NaN or inf; training diverged, or the weights are damaged")


def _read(path: Path | None) -> Any:
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))
