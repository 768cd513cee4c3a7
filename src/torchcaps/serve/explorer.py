"""The questions the explorer answers: pictures and numbers in, answers out, and nothing of the web."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.perturb import affine
from torchcaps.explain.sweep import SWEEP, shifts
from torchcaps.explain.votes import Debate, debate, view
from torchcaps.models import CapsuleModel, ImageModel
from torchcaps.serve import answers, requests
from torchcaps.serve.exhibits import Exhibit
from torchcaps.serve.pictures import coloured, data_url, missing

PICTURED = 7  # points of a curve that are shown as pictures
AT_ONCE = 8  # images of a curve that go through a model before others get their turn


class Explorer:
    """Stateless: an answer depends on its question alone, whatever was asked before or is asked at the same time."""

    def __init__(self, exhibits: Sequence[Exhibit]):
        self.exhibits = {exhibit.name: exhibit for exhibit in exhibits}
        self.default = exhibits[0].name
        self._turn = Lock()  # a model uses all cores: two questions at once would only be in each other's way

    def models(self) -> answers.ModelsAnswer:
        models = [exhibit.describe() for exhibit in self.exhibits.values()]
        return answers.ModelsAnswer(default=self.default, models=models)

    def predict(self, question: requests.PredictRequest) -> answers.PredictAnswer:
        """What a picture shows, and the picture again as its capsules describe it."""
        exhibit = self._exhibit(question.model)
        plain = question.decode is None and question.iterations is None
        if plain and not isinstance(exhibit.model, CapsuleModel):
            return self._classify(exhibit, question)
        model = exhibit.capsules
        _check_classes(question.decode or [], model)
        image = exhibit.see(question.image)
        with self._asking():
            parents, _ = model.classes.route(
                model.children_of(image[None]), question.iterations or model.classes.iterations
            )
            lengths = parents.activation[0]
            winners = _longest(lengths, question.top)
            chosen = question.decode or winners
            redrawn = model.reconstruct_each(parents, torch.tensor([chosen]))[0]  # type: ignore[index]
        colours = [coloured(picture.mean(0), index) for index, picture in enumerate(redrawn)]
        whole = redrawn.sum(0).clamp(max=1)
        return answers.PredictAnswer(
            model=exhibit.name,
            seen=data_url(image),
            lengths=_numbers(lengths),
            winners=winners,
            decoded=[
                answers.Decoded(
                    class_=index,
                    length=_numbers(lengths[index]),
                    pose=_numbers(parents.pose[0, index]),
                    reconstruction=data_url(picture),
                    coloured=data_url(colour),
                )
                for index, picture, colour in zip(chosen, redrawn, colours)
            ],
            together=data_url(torch.stack(colours).sum(0)),
            missing=data_url(missing(image.mean(0), whole.mean(0))),
            error=_numbers((image - whole).square().mean()),
        )

    def _classify(self, exhibit: Exhibit, question: requests.PredictRequest) -> answers.PredictAnswer:
        image = exhibit.see(question.image)
        chances = self._lengths(exhibit, image[None])[0]
        return answers.PredictAnswer(
            model=exhibit.name,
            seen=data_url(image),
            lengths=_numbers(chances),
            winners=_longest(chances, question.top),
            decoded=[],
            together=None,
            missing=None,
            error=None,
        )

    def reconstruct(self, question: requests.ReconstructRequest) -> answers.ReconstructAnswer:
        """The picture that a pose stands for; when asked, with each dimension changed in turn."""
        exhibit = self._exhibit(question.model)
        model, D = exhibit.capsules, exhibit.capsules.classes.out_dim
        _check_classes([question.class_], model)
        if len(question.pose) != D:
            raise UserError(f"pose: a capsule of {exhibit.name} has {D} dimensions, got {len(question.pose)}")
        image = None if question.compare is None else exhibit.see(question.compare)
        changes = torch.zeros(1, D)
        if question.sweep:
            changes = torch.cat([changes, shifts(SWEEP, D).flatten(0, 1)])
        masked = torch.zeros(len(changes), model.num_classes, D)
        masked[:, question.class_] = torch.tensor(question.pose) + changes
        with self._asking():
            drawn = model.decoder(masked)  # type: ignore[misc]
        return answers.ReconstructAnswer(
            reconstruction=data_url(drawn[0]),
            difference=None if image is None else data_url(missing(image.mean(0), drawn[0].mean(0))),
            sweep=_strip(drawn[1:], D) if question.sweep else None,
        )

    def routing(self, question: requests.RoutingRequest) -> answers.RoutingAnswer:
        """Which parts speak for which class, iteration by iteration."""
        exhibit = self._exhibit(question.model)
        (types, rows, columns), part = exhibit.parts, question.part
        if part is not None and not (part.type < types and part.row < rows and part.column < columns):
            raise UserError(f"part: {exhibit.name} has {types} types of parts in {rows} rows and {columns} columns")
        image = exhibit.see(question.image)
        with self._asking():
            said = debate(exhibit.capsules, image, question.iterations)
        support_RJTHW, couplings_RJTHW = (
            values_RIJ.unflatten(1, (types, rows, columns)).movedim(-1, 1)
            for values_RIJ in (said.support, said.couplings)
        )
        lengths_THW = said.parts.view(types, rows, columns)
        coupling_RJHW = (couplings_RJTHW * lengths_THW).sum(2) / lengths_THW.sum(0).clamp_min(1e-12)
        told = (said.lengths, said.entropy, support_RJTHW.sum(2), support_RJTHW.sum((3, 4)), coupling_RJHW)
        return answers.RoutingAnswer(
            model=exhibit.name,
            seen=data_url(image),
            lengths_of_parts=_numbers(lengths_THW),
            steps=[
                answers.Step(lengths=lengths, entropy=entropy, support=support, types=by_type, coupling=coupling)
                for lengths, entropy, support, by_type, coupling in zip(*map(_numbers, told))
            ],
            part=None if part is None else _part(exhibit, said, part),
        )

    def transform(self, question: requests.TransformRequest) -> answers.TransformAnswer:
        """The picture moved, what the models then answer, and their answers all along one of the moves."""
        exhibit = self._exhibit(question.model)
        rival = self._rival(exhibit)
        image = exhibit.see(question.image)[None]
        moves = {name: getattr(question, name) for name in requests.MOVES}
        values = [] if question.along is None else _along(question.along, question.steps)
        path = [moves, *({**moves, question.along: value} for value in values)]
        moved = torch.cat([affine(image, **each) for each in path])
        lengths = _numbers(self._lengths(exhibit, moved))  # in one go: an image alone takes twice as long
        chances = None if rival is None else _numbers(self._lengths(rival, moved))
        curve = None
        if question.along is not None:
            shown = torch.linspace(0, len(values) - 1, min(PICTURED, len(values))).round().int().tolist()
            curve = answers.Curve(
                along=question.along,
                values=values,
                lengths=lengths[1:],
                comparison=chances and chances[1:],
                pictures=[data_url(moved[1 + index]) for index in shown],
                pictured=[values[index] for index in shown],
            )
        return answers.TransformAnswer(
            model=exhibit.name,
            seen=data_url(moved[0]),
            lengths=lengths[0],
            comparison=rival and chances and answers.Comparison(name=rival.name, probabilities=chances[0]),
            curve=curve,
        )

    def _exhibit(self, name: str | None) -> Exhibit:
        found = self.exhibits.get(self.default if name is None else name)
        if found is None:
            raise UserError(f"model: {did_you_mean(name or '', self.exhibits)}")
        return found

    def _rival(self, exhibit: Exhibit) -> Exhibit | None:
        """The model to compare with, if it sees pictures of the same size."""
        others = (other for other in self.exhibits.values() if other.role == "comparison" and other is not exhibit)
        return next((other for other in others if other.model.image_shape == exhibit.model.image_shape), None)

    def _lengths(self, exhibit: Exhibit, images: Tensor) -> Tensor:
        """(B, J), a few images at a time, so that nobody waits for the whole of a curve."""
        model, found = exhibit.model, []
        for some in images.split(AT_ONCE):
            with self._asking():
                if isinstance(model, CapsuleModel):  # whose decoder would draw for nobody
                    found.append(model.classes(model.children_of(some)).activation)
                else:
                    found.append(model(some).lengths)
        return torch.cat(found)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._turn, torch.inference_mode():
            yield


def _check_classes(classes: Sequence[int], model: ImageModel) -> None:
    if any(index >= model.num_classes for index in classes):
        raise UserError(f"class: the model has {model.num_classes} classes, numbered from 0")


def _longest(lengths_J: Tensor, top: int) -> list[int]:
    return lengths_J.argsort(descending=True, stable=True)[:top].tolist()


def _along(move: str, steps: int) -> list[float]:
    """Evenly from end to end; scales by equal factors, so that twice is as far from once as half."""
    low, high = requests.MOVES[move]
    if move == "scale":
        return torch.logspace(-2, 2, steps, base=2, dtype=torch.float64).tolist()
    return torch.linspace(low, high, steps, dtype=torch.float64).tolist()


def _strip(drawn: Tensor, dimensions: int) -> answers.Sweep:
    """A row for each dimension, a column for each value."""
    channels, height, width = drawn.shape[1:]
    grid_CDHVW = drawn.view(dimensions, len(SWEEP), channels, height, width).permute(2, 0, 3, 1, 4)
    strip = grid_CDHVW.reshape(channels, dimensions * height, len(SWEEP) * width)
    return answers.Sweep(values=list(SWEEP), dimensions=dimensions, picture=data_url(strip), height=height, width=width)


def _part(exhibit: Exhibit, said: Debate, part: requests.Part) -> answers.PartAnswer:
    model, (_, rows, columns) = exhibit.capsules, exhibit.parts
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
