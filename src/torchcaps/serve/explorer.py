"""The questions the explorer answers, about models loaded once: pictures and numbers in, answers out, no web."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.needs import needs_decoder
from torchcaps.explain.perturb import affine
from torchcaps.explain.sweep import SWEEP
from torchcaps.explain.votes import Debate, debate, needs_votes, view
from torchcaps.models import CapsuleModel, ImageModel, PixelModel, SynthesisModel, load, shipped_models
from torchcaps.models.files import beside
from torchcaps.serve import answers, pictures
from torchcaps.serve import requests as asked

Role = Literal["main", "overlap", "comparison"]
MAIN = "capsnet-mnist"
COMPANIONS: tuple[tuple[str, Role], ...] = (("capsnet-multimnist", "overlap"), ("cnn-mnist", "comparison"))
RANGES = {"rotate": (-180.0, 180.0), "shift_x": (-14.0, 14.0), "shift_y": (-14.0, 14.0), "scale": (0.25, 4.0)} | {
    "shear": (-1.0, 1.0)
}
PICTURED = 7  # points of a curve that are shown as pictures
AT_ONCE = 8  # images of a curve that go through a model before others get their turn


@dataclass(frozen=True)
class Exhibit:
    """A model that visitors may ask, and what is known of it."""

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

    def describe(self) -> answers.ModelAnswer:
        channels, height, width = self.model.image_shape
        shape = answers.ImageShape(channels=channels, height=height, width=width)
        common: dict[str, Any] = {
            "name": self.name,
            "classes": list(self.model.class_names),
            "image": shape,
            "role": self.role,
            "card": self.card,
            "meanings": self.meanings,
        }
        if not isinstance(self.model, CapsuleModel):
            return answers.ModelAnswer(kind="cnn", pose=None, iterations=None, grid=None, **common)
        layer, (rows, columns), seen = self.model.classes, self.model.grid, view(self.model, 0)
        grid = answers.Grid(
            types=layer.in_capsules // (rows * columns),
            rows=rows,
            columns=columns,
            stride=seen.stride,
            field=seen.field,
            offset=seen.start,
        )
        return answers.ModelAnswer(
            kind="capsules", pose=layer.out_dim, iterations=layer.iterations, grid=grid, **common
        )


class Explorer:
    """Stateless: every answer depends on its question alone, whatever was asked before or at the same time."""

    def __init__(self, exhibits: Sequence[Exhibit]):
        self.exhibits = {exhibit.name: exhibit for exhibit in exhibits}
        self.default = exhibits[0].name
        self._turn = Lock()  # one question at a time: two would only take the cores from each other

    def models(self) -> answers.ModelsAnswer:
        return answers.ModelsAnswer(
            default=self.default, models=[exhibit.describe() for exhibit in self.exhibits.values()]
        )

    def predict(self, request: asked.PredictRequest) -> answers.PredictAnswer:
        """What a picture shows, and the picture again as its capsules describe it."""
        exhibit = self._exhibit(request.model)
        image = read_image(request.image, exhibit.model)
        seen = pictures.data_url(image)
        if not isinstance(exhibit.model, CapsuleModel):
            if request.decode is not None or request.iterations is not None:
                exhibit.capsules  # noqa: B018 (says what it lacks)
            lengths = self._lengths(exhibit.model, image[None])[0]
            return answers.PredictAnswer(
                model=exhibit.name,
                seen=seen,
                lengths=_numbers(lengths),
                winners=_longest(lengths, request.top),
                decoded=[],
                together=None,
                missing=None,
                error=None,
            )
        model = exhibit.capsules
        _check_classes(request.decode or [], model)
        with self._asking():
            children = model.children_of(image[None])
            parents, _ = model.classes.route(children, request.iterations or model.classes.iterations)
            lengths = parents.activation[0]
            winners = _longest(lengths, request.top)
            chosen = request.decode or winners
            redrawn = model.reconstruct_each(parents, torch.tensor([chosen]))
        assert redrawn is not None  # a model without a decoder is never exhibited
        greys = redrawn[0].mean(1)
        colours = [pictures.coloured(grey, index) for index, grey in enumerate(greys)]
        whole = redrawn[0].sum(0).clamp(max=1)
        decoded = [
            answers.Decoded(
                class_=index,
                length=_numbers(lengths[index]),
                pose=_numbers(parents.pose[0, index]),
                reconstruction=pictures.data_url(picture),
                coloured=pictures.data_url(colour),
            )
            for index, picture, colour in zip(chosen, redrawn[0], colours)
        ]
        return answers.PredictAnswer(
            model=exhibit.name,
            seen=seen,
            lengths=_numbers(lengths),
            winners=winners,
            decoded=decoded,
            together=pictures.data_url(torch.stack(colours).sum(0)),
            missing=pictures.data_url(pictures.missing(image.mean(0), whole.mean(0))),
            error=_numbers((image - whole).square().mean()),
        )

    def reconstruct(self, request: asked.ReconstructRequest) -> answers.ReconstructAnswer:
        """The picture that a pose stands for; when asked, with each dimension changed in turn."""
        exhibit = self._exhibit(request.model)
        model = exhibit.capsules
        _check_classes([request.class_], model)
        D = model.classes.out_dim
        if len(request.pose) != D:
            raise UserError(f"pose: a capsule of {exhibit.name} has {D} dimensions, got {len(request.pose)}")
        pose = torch.tensor(request.pose)
        shifts = torch.zeros(1, D)
        if request.sweep:
            changes = torch.tensor(SWEEP)[None, :, None] * torch.eye(D)[:, None]
            shifts = torch.cat([shifts, changes.flatten(0, 1)])
        masked = torch.zeros(len(shifts), model.num_classes, D)
        masked[:, request.class_] = pose + shifts
        with self._asking():
            drawn = model.decoder(masked)  # type: ignore[misc]
        difference = None
        if request.compare is not None:
            image = read_image(request.compare, model)
            difference = pictures.data_url(pictures.missing(image.mean(0), drawn[0].mean(0)))
        return answers.ReconstructAnswer(
            reconstruction=pictures.data_url(drawn[0]),
            difference=difference,
            sweep=_strip(drawn[1:], D) if request.sweep else None,
        )

    def routing(self, request: asked.RoutingRequest) -> answers.RoutingAnswer:
        """Which parts speak for which class, iteration by iteration."""
        exhibit = self._exhibit(request.model)
        model = exhibit.capsules
        rows, columns = model.grid
        types = model.classes.in_capsules // (rows * columns)
        part = request.part
        if part is not None and not (part.type < types and part.row < rows and part.column < columns):
            raise UserError(f"part: {exhibit.name} has {types} types of parts in {rows} rows and {columns} columns")
        image = read_image(request.image, model)
        with self._asking():
            said = debate(model, image, request.iterations)

        def on_grid(values_RIJ: Tensor) -> Tensor:
            return values_RIJ.unflatten(1, (types, rows, columns)).movedim(-1, 1)  # R, J, T, H, W

        support, couplings = on_grid(said.support), on_grid(said.couplings)
        weights_THW = said.parts.view(types, rows, columns)
        mean = (couplings * weights_THW).sum(2) / weights_THW.sum(0).clamp_min(1e-12)
        steps = [
            answers.Step(lengths=lengths, entropy=entropy, support=places, types=kinds, coupling=coupled)
            for lengths, entropy, places, kinds, coupled in zip(
                *map(_numbers, (said.lengths, said.entropy, support.sum(2), support.sum((3, 4)), mean))
            )
        ]
        return answers.RoutingAnswer(
            model=exhibit.name,
            seen=pictures.data_url(image),
            lengths_of_parts=_numbers(weights_THW),
            steps=steps,
            part=None if part is None else _part(model, said, part),
        )

    def transform(self, request: asked.TransformRequest) -> answers.TransformAnswer:
        """The picture moved, what the models then answer, and their answers all along one of the moves."""
        exhibit = self._exhibit(request.model)
        image = read_image(request.image, exhibit.model)[None]
        given = {name: getattr(request, name) for name in RANGES}
        moved = affine(image, **given)
        rival = self._rival(exhibit)
        probabilities = None if rival is None else _numbers(self._lengths(rival.model, moved)[0])
        return answers.TransformAnswer(
            model=exhibit.name,
            seen=pictures.data_url(moved[0]),
            lengths=_numbers(self._lengths(exhibit.model, moved)[0]),
            comparison=None if rival is None else answers.Comparison(name=rival.name, probabilities=probabilities),
            curve=None if request.along is None else self._curve(exhibit, rival, image, given, request),
        )

    def _curve(
        self,
        exhibit: Exhibit,
        rival: Exhibit | None,
        image: Tensor,
        given: dict[str, float],
        request: asked.TransformRequest,
    ) -> answers.Curve:
        assert request.along is not None
        values = torch.linspace(*RANGES[request.along], request.steps, dtype=torch.float64).tolist()
        moved = torch.cat([affine(image, **{**given, request.along: value}) for value in values])
        shown = torch.linspace(0, len(values) - 1, min(PICTURED, len(values))).round().int().tolist()
        return answers.Curve(
            along=request.along,
            values=values,
            lengths=_numbers(self._lengths(exhibit.model, moved)),
            comparison=None if rival is None else _numbers(self._lengths(rival.model, moved)),
            pictures=[pictures.data_url(moved[index]) for index in shown],
            pictured=[values[index] for index in shown],
        )

    def _exhibit(self, name: str | None) -> Exhibit:
        chosen = self.exhibits.get(name or self.default)
        if chosen is None:
            raise UserError(f"model: none is called {name!r:.60}; {did_you_mean(name or '', self.exhibits)}")
        return chosen

    def _rival(self, exhibit: Exhibit) -> Exhibit | None:
        """The model to compare with, if it sees pictures of the same size and knows the same classes."""
        for other in self.exhibits.values():
            same = other.model.image_shape == exhibit.model.image_shape
            if other.role == "comparison" and same and other is not exhibit:
                return other
        return None

    def _lengths(self, model: ImageModel, images: Tensor) -> Tensor:
        """(B, J), a few images at a time, so that nobody waits for the whole of a curve."""
        found = []
        for some in images.split(AT_ONCE):
            with self._asking():
                if isinstance(model, CapsuleModel):  # its decoder is not asked
                    found.append(model.classes(model.children_of(some)).activation)
                else:
                    found.append(model(some).lengths)
        return torch.cat(found)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._turn, torch.inference_mode():
            yield


def open_explorer(name: str = MAIN) -> Explorer:
    """An explorer of one model, and of what is shipped to compare it with."""
    main = _open(name, "main")
    check_explorable(main.name, main.model)
    exhibits = [main]
    for companion, role in COMPANIONS:
        if companion != main.name and companion in shipped_models() and _source(main.model) == "mnist":
            other = _open(companion, role)
            if role == "overlap" or other.model.image_shape == main.model.image_shape:
                exhibits.append(other)
    return Explorer(exhibits)


def check_explorable(name: str, model: ImageModel) -> None:
    """Whether there is anything to look into: class capsules on a grid of parts, votes that are vectors, a decoder."""
    try:
        if isinstance(model, (PixelModel, SynthesisModel)):
            raise UserError("it finds masks or draws images: the explorer shows networks that name a class")
        needs_decoder(model, "explorer")
        needs_votes(model, "explorer")
    except UserError as error:
        raise UserError(f"{name} cannot be explored: {error}") from None
    blank = torch.zeros(1, *model.image_shape)
    with torch.inference_mode():
        if not all(model(picture).lengths.isfinite().all() for picture in (blank, blank + 1)):
            raise UserError(f"{name} answers NaN: it was not trained to the end, or its weights are damaged")


def read_image(image: asked.Picture | asked.Pixels, model: ImageModel) -> Tensor:
    """What a client sent as this model sees it: (C, H, W) in [0, 1]."""
    channels, height, width = model.image_shape
    if isinstance(image, asked.Pixels):
        if {len(row) for row in image.pixels} != {width} or len(image.pixels) != height:
            raise UserError(f"pixels: the model takes {height} rows of {width} values")
        grey = torch.tensor(image.pixels)
    else:
        drawn = pictures.white_on_black(pictures.decode_picture(pictures.decode_base64(image.png)))
        grey = (pictures.centre if image.centre else pictures.fit)(drawn, height, width)
    return grey.expand(channels, height, width)


def _open(name: str, role: Role) -> Exhibit:
    model = load(name)
    card, meanings = (beside(name, file) for file in ("card.json", "meanings.json"))
    return Exhibit(
        name.rstrip("/").rsplit("/", 1)[-1],
        model,
        role,
        json.loads(card.read_text(encoding="utf-8")) if card else {},
        json.loads(meanings.read_text(encoding="utf-8"))["meanings"] if meanings else None,
    )


def _source(model: ImageModel) -> str | None:
    return model.trained_by.get("data", {}).get("source")


def _check_classes(classes: Sequence[int], model: ImageModel) -> None:
    if any(index >= model.num_classes for index in classes):
        raise UserError(f"class: the model has {model.num_classes} classes, numbered from 0")


def _longest(lengths_J: Tensor, top: int) -> list[int]:
    return lengths_J.argsort(descending=True, stable=True)[:top].tolist()


def _strip(drawn: Tensor, dimensions: int) -> answers.Sweep:
    _, channels, height, width = drawn.shape
    grid = drawn.view(dimensions, len(SWEEP), channels, height, width).permute(2, 0, 3, 1, 4)
    strip = grid.reshape(channels, dimensions * height, len(SWEEP) * width)
    picture = pictures.data_url(strip)
    return answers.Sweep(values=list(SWEEP), dimensions=dimensions, picture=picture, height=height, width=width)


def _part(model: CapsuleModel, said: Debate, part: asked.Part) -> answers.PartAnswer:
    rows, columns = model.grid
    index = (part.type * rows + part.row) * columns + part.column
    _, height, width = model.image_shape
    (top, bottom), (left, right) = view(model, 0).of(part.row, height), view(model, 1).of(part.column, width)
    votes = _numbers(said.votes[index].norm(dim=-1))
    return answers.PartAnswer(
        type=part.type,
        row=part.row,
        column=part.column,
        length=_numbers(said.parts[index]),
        box=[top, left, bottom, right],
        steps=[
            answers.PartStep(couplings=_numbers(couplings), votes=votes, agreement=_numbers(agreement))
            for couplings, agreement in zip(said.couplings[:, index], said.agreement[:, index])
        ],
    )


def _numbers(values: Tensor) -> Any:
    """As plain numbers of six decimals: more would be noise, and twice as many bytes."""
    return values.double().round(decimals=6).tolist()
