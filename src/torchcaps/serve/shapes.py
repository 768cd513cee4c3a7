"""Boats and houses of parts that a client places: votes, hypotheses in each iteration, and how far votes are apart.

Parts come with poses, types and presences, as a network that reads them from an image would return them.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from torchcaps.data.datasets.shapes.known import known_wholes
from torchcaps.data.datasets.shapes.parts import PART_KINDS
from torchcaps.data.datasets.shapes.wholes import member_table
from torchcaps.explain.wholes import WholeTrace, presence_near, whole_trace
from torchcaps.layers import WholeCaps
from torchcaps.serve.requests import ShapePart, ShapesRequest
from torchcaps.serve.responses import Numbers, Response, numbers
from torchcaps.similarity import Similarity

CLASSES = ("boat", "house")
TOLERANCE = (0.5, 3.0, 0.05)  # of a vote, in the frame of its whole: pixels, degrees, logarithm of the scale


class ShapePose(Response):
    x: Annotated[float, Field(description="Pixels; 0 is the centre of the leftmost.")]
    y: Annotated[float, Field(description="Pixels; 0 is the centre of the topmost.")]
    angle: Annotated[float, Field(description="Degrees, counter-clockwise.")]
    scale: float


class ShapeKind(Response):
    """A type of part: its corners at scale 1, around its centroid, and how many turns map it onto itself."""

    type: str
    corners: list[Numbers]
    symmetry: int


class ShapeMember(ShapePose):
    type: str


class ShapeClass(Response):
    name: str
    members: Annotated[list[ShapeMember], Field(description="Poses of the parts in the frame of the whole.")]


class ShapeTolerance(Response):
    """Standard deviations of a vote in the frame of a whole."""

    pixels: float
    degrees: float
    scale: Annotated[float, Field(description="As a factor.")]


class ShapeVote(ShapePose):
    """The whole that there would be if the part were one of its members."""

    part: int
    class_: Annotated[int, Field(alias="class")]
    weight: Annotated[float, Field(description="Presence of the part, times the probability of its type.")]


class ShapeGap(Response):
    """How far apart two parts vote for a class: of all their votes, the two that are closest."""

    parts: list[int]
    votes: Annotated[list[int], Field(description="Positions of the two in the list of votes.")]
    class_: Annotated[int, Field(alias="class")]
    pixels: float
    degrees: float
    scale: Annotated[float, Field(description="Factor between the voted scales, at least 1.")]
    presence: Annotated[float, Field(description="Of the whole, if these two were the only parts.")]


class ShapeWhole(ShapePose):
    """A hypothesis: a whole that may be there. It has the same place in the list in every iteration."""

    class_: Annotated[int, Field(alias="class")]
    presence: float
    couplings: Annotated[Numbers, Field(description="[part] share that this whole takes.")]


class ShapeStep(Response):
    wholes: list[ShapeWhole]
    unexplained: Annotated[Numbers, Field(description="[part] share that no whole takes.")]


class ShapesResponse(Response):
    kinds: list[ShapeKind]
    classes: list[ShapeClass]
    tolerance: ShapeTolerance
    votes: list[ShapeVote]
    gaps: Annotated[list[ShapeGap], Field(description="One for each class and two parts that may be members of it.")]
    steps: Annotated[list[ShapeStep], Field(description="[iteration]")]


@torch.inference_mode()
def find_wholes(request: ShapesRequest) -> ShapesResponse:
    """Let parts vote for boats and houses, and route them to those that they agree on."""
    layer = _layer()
    pose, presence, types = _given(request.parts)
    trace = whole_trace(layer, pose, presence, types, request.iterations)
    voted, weight = layer.votes(pose[None], presence[None], types[None])
    poses, weights = Similarity(voted[0]), weight[0]  # (I, J, M, S)
    pairs_P2 = _pairs(types, presence)
    return ShapesResponse(
        kinds=_kinds(),
        classes=_classes(),
        tolerance=_tolerance(),
        votes=_votes(poses, weights),
        gaps=_gaps(layer, (pose, presence, types), pairs_P2, poses, weights),
        steps=[_step(trace, index) for index in range(request.iterations)],
    )


def describe_layer() -> dict[str, Any]:
    """Return all that `find_wholes` knows: the numbers of its layer, and what every response has."""
    layer, names = _layer(), member_table(CLASSES).names
    known = layer.layouts(torch.zeros(0, dtype=torch.float64))
    columns = (
        known.types.argmax(-1).tolist(),
        known.pose.numbers.tolist(),
        known.tolerance.tolist(),
        known.missing.tolist(),
    )
    members = [
        [dict(zip(("type", "pose", "tolerance", "missing"), member)) for member in zip(*row)] for row in zip(*columns)
    ]
    classes = [{"prior": prior, "members": each} for prior, each in zip(known.prior.tolist(), members)]
    pixels, degrees, log_scale = TOLERANCE
    return {
        "layer": {
            "types": list(names),
            "symmetry": list(layer.symmetry),
            "tolerance": [pixels, pixels, math.radians(degrees), log_scale],
            "clutter": layer.clutter,
            "classes": classes,
        },
        "kinds": [kind.model_dump() for kind in _kinds()],
        "classes": [each.model_dump() for each in _classes()],
        "tolerance": _tolerance().model_dump(),
    }


def _tolerance() -> ShapeTolerance:
    pixels, degrees, log_scale = TOLERANCE
    return ShapeTolerance(pixels=pixels, degrees=degrees, scale=numbers(torch.tensor(log_scale).exp()))


@cache
def _layer() -> WholeCaps:
    """A layer that knows how parts stand in the classes; in float64, so that votes which agree differ by nothing."""
    return known_wholes(CLASSES, TOLERANCE)


def _given(parts: list[ShapePart]) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (I, 4), presence (I,) and types (I, T) of parts."""
    names = member_table(CLASSES).names
    values = [[part.x, part.y, part.angle, part.scale, part.presence] for part in parts]
    x, y, angle, scale, presence = torch.tensor(values, dtype=torch.float64).view(-1, 5).unbind(-1)
    label = torch.tensor([names.index(part.type) for part in parts], dtype=torch.long)
    types = functional.one_hot(label, len(names)).double()
    return Similarity.of(x=x, y=y, angle=angle, scale=scale).numbers, presence, types


@cache
def _kinds() -> list[ShapeKind]:
    used = {member.type: PART_KINDS[member.type] for each in _classes() for member in each.members}
    return [
        ShapeKind(type=name, corners=[list(corner) for corner in kind.corners], symmetry=kind.symmetry)
        for name, kind in used.items()
    ]


@cache
def _classes() -> list[ShapeClass]:
    table = member_table(CLASSES)
    found = []
    for index, name in enumerate(CLASSES):
        poses = _poses(Similarity.of_affine(table.poses[index]))
        types = [table.names[label] for label in table.label[index].tolist()]
        found.append(ShapeClass(name=name, members=[ShapeMember(type=type, **own) for type, own in zip(types, poses)]))
    return found


def _poses(poses: Similarity) -> list[dict[str, float]]:
    """The numbers of poses (N,), by name."""
    rows = numbers(torch.stack([poses.x, poses.y, poses.angle, poses.scale], dim=-1))
    return [dict(zip(("x", "y", "angle", "scale"), row)) for row in rows]


def _votes(poses: Similarity, weights: Tensor) -> list[ShapeVote]:
    """The votes (I, J, M, S) that count."""
    places = weights.nonzero()
    counted = _poses(Similarity(poses.numbers[tuple(places.T)]))
    return [
        ShapeVote(part=part, class_=label, weight=weight, **own)
        for (part, label, _, _), weight, own in zip(places.tolist(), numbers(weights[weights > 0]), counted)
    ]


def _pairs(types: Tensor, presence: Tensor) -> Tensor:
    """Every two parts (P, 2) that may be two members of one class."""
    label = types.argmax(-1)
    pairs_P2 = torch.combinations((presence > 0).nonzero()[:, 0])
    return pairs_P2[label[pairs_P2[:, 0]] != label[pairs_P2[:, 1]]]  # no whole has two parts of one type


def _gaps(
    layer: WholeCaps, given: tuple[Tensor, ...], pairs_P2: Tensor, poses: Similarity, weights: Tensor
) -> list[ShapeGap]:
    """Compare the votes (I, J, M, S) of pairs of the given parts."""
    first, second = (Similarity(poses.numbers.flatten(2, 3)[part_P]) for part_P in pairs_P2.unbind(1))
    one, other = (weights.flatten(2, 3)[part_P] > 0 for part_P in pairs_P2.unbind(1))
    # (P, J, V, V, 4) from each vote of one part to each of the other, in the frame of the first.
    step = (first[..., :, None].inverse() @ second[..., None, :]).log()
    pixels, degrees, log_scale = TOLERANCE
    square = (step / torch.tensor([pixels, pixels, math.radians(degrees), log_scale])).square().sum(-1)
    square = square.masked_fill(~(one[..., :, None] & other[..., None, :]), math.inf)
    nearest_PJ1 = square.flatten(2).argmin(-1, keepdim=True)
    step = step.flatten(2, 3).take_along_dim(nearest_PJ1[..., None], 2)[:, :, 0]
    at_first, at_second = nearest_PJ1 // one.shape[-1], nearest_PJ1 % one.shape[-1]
    whole = Similarity(first.numbers.take_along_dim(at_first[..., None], 2)[:, :, 0])
    pose, presence, types = (each[pairs_P2] for each in given)
    label_PJ = torch.arange(len(CLASSES)).expand(whole.x.shape)
    alone_PJ = presence_near(layer, pose, presence, types, whole, label_PJ)
    distance = step[..., :2].norm(dim=-1) * whole.scale  # in pixels of the image
    apart_PJ3 = numbers(torch.stack([distance, step[..., 2].abs().rad2deg(), step[..., 3].abs().exp()], dim=-1))
    listed = (weights > 0).flatten().cumsum(0).view(weights.shape).flatten(2) - 1  # places in the list of votes
    ends = [listed[part_P].gather(2, at)[..., 0] for part_P, at in zip(pairs_P2.unbind(1), (at_first, at_second))]
    votes_PJ2 = torch.stack(ends, dim=-1).tolist()
    return [
        ShapeGap(parts=pair, votes=votes, class_=index, pixels=apart, degrees=turned, scale=ratio, presence=presence)
        for pair, *of_classes in zip(pairs_P2.tolist(), apart_PJ3, votes_PJ2, numbers(alone_PJ))
        for index, ((apart, turned, ratio), votes, presence) in enumerate(zip(*of_classes))
    ]


def _step(trace: WholeTrace, index: int) -> ShapeStep:
    poses = _poses(trace.pose[index])
    couplings = numbers(trace.couplings[index].mT)
    found = zip(trace.label.tolist(), numbers(trace.presence[index]), couplings, poses)
    wholes = [
        ShapeWhole(class_=label, presence=presence, couplings=taken, **own) for label, presence, taken, own in found
    ]
    return ShapeStep(wholes=wholes, unexplained=couplings[-1])
