"""The models that visitors may ask: which they are, what is known of them, how they see what a client sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.needs import needs_decoder
from torchcaps.explain.placement import has_placement
from torchcaps.explain.votes import needs_votes, view
from torchcaps.models import CapsuleModel, ImageModel, PoseCaps, SegmentationModel, SynthesisModel, load, shipped_models
from torchcaps.models.files import file_beside
from torchcaps.predict import familiarity_threshold
from torchcaps.serve import answers, pictures, requests

Role = Literal["main", "overlap", "comparison"]
PAIRS = "multimnist"  # the data that has two digits in each image
COMPANIONS: tuple[tuple[str, Role], ...] = (("capsnet-multimnist", "overlap"), ("cnn-mnist", "comparison"))


class Look(NamedTuple):
    """How the images of a data source show a digit.

    Attributes:
        box: share of the image's side that the digit takes.
        brush: width of a stroke, as a share of the digit's box.
        side: pixels a side of the images before they were enlarged for the model; None if they were not.
    """

    box: float = pictures.BOX
    brush: float = 0.085
    side: int | None = None


MNIST = Look()
IN_40 = Look(box=20 / 40)
LOOKS = {"digits": Look(box=1.0, brush=0.1, side=8), "mnist-expanded": IN_40, "affnist-like": IN_40}


@dataclass(frozen=True)
class ServedModel:
    """A model, and what lies beside its weights."""

    name: str
    model: ImageModel
    role: Role = "main"
    card: dict[str, Any] = field(default_factory=dict)
    meanings: list[list[dict[str, Any]]] | None = None

    @property
    def capsules(self) -> CapsuleModel:
        if not isinstance(self.model, CapsuleModel):
            raise UserError(f"{self.name} has no capsules that are routed: ask a model whose kind is capsules")
        return self.model

    @property
    def poses(self) -> PoseCaps:
        if not has_placement(self.model):
            raise UserError(f"{self.name} does not say how a class stands: ask a model whose kind is poses")
        return self.model

    @property
    def views(self) -> int:
        """How many times the model looks at a picture: through each pose that it searches, or once."""
        return self.model.search_linear.shape[:-2].numel() if has_placement(self.model) else 1

    @property
    def source(self) -> str | None:
        """The data that it was trained on."""
        found = self.model.trained_by.get("data", {}).get("source")
        return found if isinstance(found, str) else None

    @property
    def look(self) -> Look:
        return LOOKS.get(self.source or "", MNIST)

    @property
    def parts(self) -> tuple[int, int, int]:
        """Types, rows and columns of the primary capsules."""
        rows, columns = self.capsules.grid
        return self.capsules.classes.in_capsules // (rows * columns), rows, columns

    def see(self, image: requests.Picture | requests.Pixels) -> Tensor:
        """What a client sent, as the model sees it: (C, H, W) in [0, 1]."""
        channels, height, width = self.model.image_shape
        if isinstance(image, requests.Pixels):
            if len(image.pixels) != height or any(len(row) != width for row in image.pixels):
                raise UserError(f"pixels: {self.name} sees {height} rows of {width} values")
            grey = torch.tensor(image.pixels)
        else:
            drawn = pictures.white_on_black(pictures.decode_picture(pictures.decode_base64(image.png)))
            box, _, side = self.look
            # As coarse as the training images were before they were enlarged; a picture of the model's size is kept.
            finer = side is not None and max(drawn.shape) > max(height, width)
            size = (side, side) if side is not None and finer else (height, width)
            grey = pictures.centre(pictures.ink(drawn), *size, box) if image.centre else pictures.fit(drawn, *size)
            grey = pictures.fit(grey, height, width)
        return grey.expand(channels, height, width)

    def describe(self) -> answers.ModelAnswer:
        channels, height, width = self.model.image_shape
        kind: Literal["capsules", "poses", "cnn"] = "cnn"
        pose = iterations = grid = lattice = parts = None
        if has_placement(self.model):
            kind, pose, parts = "poses", self.model.class_dim, ["x", "y", *self.model.pose_parts]
            views = self.model.lattice
            lattice = answers.Lattice(
                angles=list(views.angles),
                scales=list(views.scales),
                full_circle=views.full_circle,
                searched=self.views,
            )
        elif isinstance(self.model, CapsuleModel):
            kind = "capsules"
            pose, iterations = self.model.classes.out_dim, self.model.classes.iterations
            types, rows, columns = self.parts
            seen = view(self.model, axis=0)
            places = {"stride": seen.stride, "field": seen.field, "offset": seen.start}
            grid = answers.Grid(types=types, rows=rows, columns=columns, **places)
        return answers.ModelAnswer(
            name=self.name,
            kind=kind,
            classes=list(self.model.class_names),
            image=answers.ImageShape(channels=channels, height=height, width=width),
            pose=pose,
            iterations=iterations,
            grid=grid,
            lattice=lattice,
            placement=parts,
            decoder=getattr(self.model, "decoder", None) is not None,
            none_below=familiarity_threshold(self.model),
            drawing=answers.Drawing(box=self.look.box, brush=self.look.brush),
            role=self.role,
            pairs=self.source == PAIRS,
            card=self.card,
            meanings=self.meanings,
        )


def open_models(name: str) -> list[ServedModel]:
    """A model to explore, and what is shipped to stand beside one that knows the digits of MNIST."""
    main = open_model(name, "main")
    check_explorable(main)
    served_models = [main]
    if main.source == "mnist":
        shipped = [(other, role) for other, role in COMPANIONS if other in shipped_models() and other != main.name]
        companions = [open_model(other, role) for other, role in shipped]
        shape = main.model.image_shape
        served_models += [each for each in companions if each.role == "overlap" or each.model.image_shape == shape]
    return served_models


def open_model(name: str, role: Role) -> ServedModel:
    model = load(name)
    card, meanings = (_read(file_beside(name, file)) for file in ("card.json", "meanings.json"))
    return ServedModel(Path(name).resolve().name, model, role, card or {}, meanings["meanings"] if meanings else None)


def check_explorable(served: ServedModel) -> None:
    """Whether there is anything to look into, and no NaN.

    That is how classes stand; or class capsules over a grid of parts, their votes and a decoder.
    """
    model, what = served.model, f"{served.name} cannot be explored"
    if isinstance(model, (SegmentationModel, SynthesisModel)):
        raise UserError(f"{what}: it finds masks or draws images, and the explorer shows networks that name a class")
    if not has_placement(model):
        needs_decoder(model, what)
        needs_votes(model, what)
    familiarity_threshold(model)  # a mistake in it is told once, not with every answer
    blank = torch.zeros(1, *model.image_shape)
    with torch.inference_mode():
        found = [model(picture) for picture in (blank, blank + 1)]
        numbers = [part for output in found for part in (output.lengths, *(output.placement or ()))]
        if not all(part.isfinite().all() for part in numbers if part is not None):
            raise UserError(f"{what}: it answers NaN; it was not trained to the end, or its weights are damaged")


def _read(path: Path | None) -> Any:
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))
