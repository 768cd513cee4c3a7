"""The models that visitors may ask: which they are, what is known of them, how they see what a client sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.needs import needs_decoder
from torchcaps.explain.votes import needs_votes, view
from torchcaps.models import CapsuleModel, ImageModel, PixelModel, SynthesisModel, load, shipped_models
from torchcaps.models.files import beside
from torchcaps.serve import answers, pictures, requests

Role = Literal["main", "overlap", "comparison"]
PAIRS = "multimnist"  # the data that has two digits in each image
COMPANIONS: tuple[tuple[str, Role], ...] = (("capsnet-multimnist", "overlap"), ("cnn-mnist", "comparison"))


@dataclass(frozen=True)
class Exhibit:
    """A model, and what lies beside its weights."""

    name: str
    model: ImageModel
    role: Role = "main"
    card: dict[str, Any] = field(default_factory=dict)
    meanings: list[list[dict[str, Any]]] | None = None

    @property
    def capsules(self) -> CapsuleModel:
        if not isinstance(self.model, CapsuleModel):
            raise UserError(f"{self.name} has no capsules: ask one of the models whose kind is capsules")
        return self.model

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
            if image.centre:
                grey = pictures.centre(pictures.ink(drawn), height, width)
            else:
                grey = pictures.fit(drawn, height, width)
        return grey.expand(channels, height, width)

    def describe(self) -> answers.ModelAnswer:
        channels, height, width = self.model.image_shape
        pose = iterations = grid = None
        if isinstance(self.model, CapsuleModel):
            pose, iterations = self.model.classes.out_dim, self.model.classes.iterations
            types, rows, columns = self.parts
            seen = view(self.model, axis=0)
            places = {"stride": seen.stride, "field": seen.field, "offset": seen.start}
            grid = answers.Grid(types=types, rows=rows, columns=columns, **places)
        return answers.ModelAnswer(
            name=self.name,
            kind="cnn" if grid is None else "capsules",
            classes=list(self.model.class_names),
            image=answers.ImageShape(channels=channels, height=height, width=width),
            pose=pose,
            iterations=iterations,
            grid=grid,
            role=self.role,
            pairs=self.model.trained_by.get("data", {}).get("source") == PAIRS,
            card=self.card,
            meanings=self.meanings,
        )


def open_exhibits(name: str) -> list[Exhibit]:
    """A model to explore, and what is shipped to stand beside one that knows the digits of MNIST."""
    main = open_exhibit(name, "main")
    check_explorable(main)
    exhibits = [main]
    if main.model.trained_by.get("data", {}).get("source") == "mnist":
        shipped = [(other, role) for other, role in COMPANIONS if other in shipped_models() and other != main.name]
        companions = [open_exhibit(other, role) for other, role in shipped]
        shape = main.model.image_shape
        exhibits += [each for each in companions if each.role == "overlap" or each.model.image_shape == shape]
    return exhibits


def open_exhibit(name: str, role: Role) -> Exhibit:
    model = load(name)
    card, meanings = (_read(beside(name, file)) for file in ("card.json", "meanings.json"))
    return Exhibit(Path(name).resolve().name, model, role, card or {}, meanings["meanings"] if meanings else None)


def check_explorable(exhibit: Exhibit) -> None:
    """Whether there is anything to look into: class capsules over a grid of parts, votes, a decoder; and no NaN."""
    model, what = exhibit.model, f"{exhibit.name} cannot be explored"
    if isinstance(model, (PixelModel, SynthesisModel)):
        raise UserError(f"{what}: it finds masks or draws images, and the explorer shows networks that name a class")
    needs_decoder(model, what)
    needs_votes(model, what)
    blank = torch.zeros(1, *model.image_shape)
    with torch.inference_mode():
        if not all(model(picture).lengths.isfinite().all() for picture in (blank, blank + 1)):
            raise UserError(f"{what}: it answers NaN; it was not trained to the end, or its weights are damaged")


def _read(path: Path | None) -> Any:
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))
