"""The questions the explorer answers: pictures and numbers in, answers out, and nothing of the web."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.placement import lattice_lengths, read_poses
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.require import has_placement
from torchcaps.explain.sweep import SWEEP
from torchcaps.explain.votes import RoutingTrace, routing_trace
from torchcaps.models import CapsuleModel, ImageModel, Placement
from torchcaps.robustness.perturb import affine
from torchcaps.serve import answers, requests
from torchcaps.serve.answers import numbers
from torchcaps.serve.pictures import coloured, data_url, missing, strip
from torchcaps.serve.poses import placements_of
from torchcaps.serve.reading import answered, decoded, draw, longest, look
from torchcaps.serve.served_models import ServedModel

PICTURED = 7  # points of a curve that are shown as pictures
AT_ONCE = 8  # images of a curve that go through a model before others get their turn
VIEWS = 24  # of images, the same: a model may look at each of them many times


class Explorer:
    """Stateless: an answer depends on its question alone, whatever was asked before or is asked at the same time."""

    def __init__(self, served_models: Sequence[ServedModel]):
        self.served_models = {served.name: served for served in served_models}
        self.default = served_models[0].name
        self._turn = Lock()  # a model uses all cores: two questions at once would only be in each other's way

    def models(self) -> answers.ModelsAnswer:
        models = [served.describe() for served in self.served_models.values()]
        return answers.ModelsAnswer(default=self.default, models=models)

    def predict(self, question: requests.PredictRequest) -> answers.PredictAnswer:
        """What a picture shows, and the picture again as its capsules describe it."""
        served = self._exhibit(question.model)
        _check_classes(question.decode or [], served.model)
        image = served.see(question.image)
        with self._asking():
            seen = look(served, image, question)
            classes, familiarity = answered(served.model, image, seen.output, question.reject)
        lengths, placement = seen.output.lengths[0], seen.output.placement
        together = lacking = error = None
        if seen.redrawn is not None:
            whole = seen.redrawn.sum(0).clamp(max=1)
            colours = [coloured(picture.mean(0), index) for index, picture in enumerate(seen.redrawn)]
            together = data_url(torch.stack(colours).sum(0))
            lacking = data_url(missing(image.mean(0), whole.mean(0)))
            error = numbers((image - whole).square().mean())
        return answers.PredictAnswer(
            model=served.name,
            seen=data_url(image),
            lengths=numbers(lengths),
            winners=longest(lengths, question.top),
            classes=classes,
            familiarity=familiarity,
            placements=None if placement is None else placements_of(placement)[0],
            decoded=decoded(seen),
            together=together,
            missing=lacking,
            error=error,
        )

    def reconstruct(self, question: requests.ReconstructRequest) -> answers.ReconstructAnswer:
        """The picture that a pose stands for; when asked, with each dimension changed in turn."""
        served = self._exhibit(question.model)
        _check_classes([question.class_], served.model)
        image = None if question.compare is None else served.see(question.compare)
        with self._asking():
            drawn = draw(served, question)
        picture = drawn.pictures[0]
        return answers.ReconstructAnswer(
            reconstruction=data_url(picture),
            upright=None if drawn.upright is None else data_url(drawn.upright),
            difference=None if image is None else data_url(missing(image.mean(0), picture.mean(0))),
            sweep=_sweep(drawn.pictures[1:], len(question.pose), drawn.parts) if question.sweep else None,
        )

    def lattice(self, question: requests.LatticeRequest) -> answers.LatticeAnswer:
        """How long the class capsules are in each view of a picture."""
        served = self._exhibit(question.model)
        model, image = served.poses, served.see(question.image)
        with self._asking():
            lengths_ASJ, seen = lattice_lengths(model, image), read_poses(model, image[None])
        return answers.LatticeAnswer(
            model=served.name,
            seen=data_url(image),
            angles=list(model.lattice.angles),
            scales=list(model.lattice.scales),
            lengths=numbers(lengths_ASJ.movedim(-1, 0)),
            presence=numbers(seen.lengths[0]),
            placements=placements_of(seen.placement)[0],
        )

    def routing(self, question: requests.RoutingRequest) -> answers.RoutingAnswer:
        """Which parts speak for which class, iteration by iteration."""
        served = self._exhibit(question.model)
        (types, rows, columns), part = served.parts, question.part
        if part is not None and not (part.type < types and part.row < rows and part.column < columns):
            raise UserError(f"part: {served.name} has {types} types of parts in {rows} rows and {columns} columns")
        image = served.see(question.image)
        with self._asking():
            said = routing_trace(served.capsules, image, question.iterations)
        support_RJTHW, couplings_RJTHW = (
            values_RIJ.unflatten(1, (types, rows, columns)).movedim(-1, 1)
            for values_RIJ in (said.support, said.couplings)
        )
        lengths_THW = said.parts.view(types, rows, columns)
        coupling_RJHW = (couplings_RJTHW * lengths_THW).sum(2) / lengths_THW.sum(0).clamp_min(1e-12)
        told = (said.lengths, said.entropy, support_RJTHW.sum(2), support_RJTHW.sum((3, 4)), coupling_RJHW)
        return answers.RoutingAnswer(
            model=served.name,
            seen=data_url(image),
            lengths_of_parts=numbers(lengths_THW),
            steps=[
                answers.Step(lengths=lengths, entropy=entropy, support=support, types=by_type, coupling=coupling)
                for lengths, entropy, support, by_type, coupling in zip(*map(numbers, told))
            ],
            part=None if part is None else _part(served, said, part),
        )

    def transform(self, question: requests.TransformRequest) -> answers.TransformAnswer:
        """The picture moved, what the models then answer, and their answers all along one of the moves."""
        served = self._exhibit(question.model)
        rival = self._rival(served)
        image = served.see(question.image)[None]
        moves = {name: getattr(question, name) for name in requests.MOVES}
        values = [] if question.along is None else _along(question.along, question.steps)
        path = [moves, *({**moves, question.along: value} for value in values)]
        moved = torch.cat([affine(image, **each) for each in path])
        lengths_BJ, placement = self._read(served, moved)  # in one go: an image alone takes twice as long
        lengths, placements = numbers(lengths_BJ), None if placement is None else placements_of(placement)
        chances = None if rival is None else numbers(self._read(rival, moved)[0])
        curve = None
        if question.along is not None:
            shown = torch.linspace(0, len(values) - 1, min(PICTURED, len(values))).round().int().tolist()
            curve = answers.Curve(
                along=question.along,
                values=values,
                lengths=lengths[1:],
                comparison=chances and chances[1:],
                placements=placements and placements[1:],
                pictures=[data_url(moved[1 + index]) for index in shown],
                pictured=[values[index] for index in shown],
            )
        return answers.TransformAnswer(
            model=served.name,
            seen=data_url(moved[0]),
            lengths=lengths[0],
            placements=placements and placements[0],
            comparison=rival and chances and answers.Comparison(name=rival.name, probabilities=chances[0]),
            curve=curve,
        )

    def _exhibit(self, name: str | None) -> ServedModel:
        found = self.served_models.get(self.default if name is None else name)
        if found is None:
            raise UserError(f"model: {did_you_mean(name or '', self.served_models)}")
        return found

    def _rival(self, served: ServedModel) -> ServedModel | None:
        """The model to compare with, if it sees pictures of the same size."""
        others = (other for other in self.served_models.values() if other.role == "comparison" and other is not served)
        return next((other for other in others if other.model.image_shape == served.model.image_shape), None)

    def _read(self, served: ServedModel, images: Tensor) -> tuple[Tensor, Placement | None]:
        """Lengths and placements, each (B, J); a few images at a time, so that nobody waits for a whole curve."""
        model, found, placed = served.model, [], []
        for some in images.split(max(1, min(AT_ONCE, VIEWS // served.views))):
            with self._asking():  # no decoder draws: nobody looks at it
                if has_placement(model):
                    seen = read_poses(model, some)
                    found.append(seen.lengths)
                    placed.append(seen.placement)
                elif isinstance(model, CapsuleModel):
                    found.append(model.classes(model.children_of(some)).activation)
                else:
                    found.append(model(some).lengths)
        parts = [None if part[0] is None else torch.cat(part) for part in zip(*placed)]
        return torch.cat(found), Placement._make(parts) if placed else None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._turn, torch.inference_mode():
            yield


def _check_classes(classes: Sequence[int], model: ImageModel) -> None:
    if any(index >= model.num_classes for index in classes):
        raise UserError(f"class: the model has {model.num_classes} classes, numbered from 0")


def _along(move: str, steps: int) -> list[float]:
    """Evenly from end to end; scales by equal factors, so that twice is as far from once as half."""
    low, high = requests.MOVES[move]
    if move == "scale":
        return torch.logspace(-2, 2, steps, base=2, dtype=torch.float64).tolist()
    return torch.linspace(low, high, steps, dtype=torch.float64).tolist()


def _sweep(drawn: Tensor, dimensions: int, parts: list[answers.PartSweep]) -> answers.Sweep:
    """A row for each dimension, a column for each value."""
    rows = strip(drawn.unflatten(0, (dimensions, len(SWEEP))))
    height, width = drawn.shape[-2:]
    sizes = {"dimensions": dimensions, "height": height, "width": width}
    return answers.Sweep(values=list(SWEEP), picture=data_url(rows), parts=parts, **sizes)


def _part(served: ServedModel, said: RoutingTrace, part: requests.Part) -> answers.PartAnswer:
    model, (_, rows, columns) = served.capsules, served.parts
    index = (part.type * rows + part.row) * columns + part.column
    _, height, width = model.image_shape
    rows_of, columns_of = receptive_field(model, 0), receptive_field(model, 1)
    (top, bottom), (left, right) = rows_of.pixels(part.row, height), columns_of.pixels(part.column, width)
    votes = numbers(said.votes[index].norm(dim=-1))
    return answers.PartAnswer(
        type=part.type,
        row=part.row,
        column=part.column,
        length=numbers(said.parts[index]),
        box=[top, left, bottom, right],
        steps=[
            answers.PartStep(couplings=numbers(couplings), votes=votes, agreement=numbers(agreement))
            for couplings, agreement in zip(said.couplings[:, index], said.agreement[:, index])
        ],
    )
