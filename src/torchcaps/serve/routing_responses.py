"""The response body of /api/routing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchcaps.serve.responses import DataUrl, Numbers, Response


class RoutingStep(Response):
    """One iteration of routing."""

    lengths: Numbers
    entropy: Annotated[
        float, Field(description="Normalised entropy of the couplings. 1: uniform; 0: each part has one parent.")
    ]
    decided: Annotated[
        float, Field(description="Share of the parts that give more than half of their coupling to one class.")
    ]
    support: Annotated[list[list[Numbers]], Field(description="[class][row][column] support for the class.")]
    types: Annotated[list[Numbers], Field(description="[class][type] support, summed over positions.")]
    coupling: Annotated[
        list[list[Numbers]],
        Field(description="[class][row][column] mean coupling over types, weighted by the parts' lengths."),
    ]


class PartStep(Response):
    couplings: Numbers
    votes: Annotated[Numbers, Field(description="Length of the vote for each class.")]
    agreement: Annotated[Numbers, Field(description="Cosine between the vote and the class capsule.")]


class PartResponse(Response):
    type: int
    row: int
    column: int
    length: float
    box: Annotated[list[int], Field(description="Receptive field in pixels: top, left, bottom, right; end-exclusive.")]
    steps: list[PartStep]


class Finding(Response):
    """What routing decides for this image, with the model's own number of iterations (or fewer, if fewer were run)."""

    kind: Annotated[
        Literal["changed", "present", "parts", "none"],
        Field(
            description="What routing decided. changed: the longest class. present: that this class is present at all. "
            "parts: half of the parts decide. none: nothing of these."
        ),
    ]
    sentence: str
    winners: Annotated[list[int], Field(description="The longest class of each iteration.")]
    undecided: Annotated[float, Field(description="Normalised entropy of the last couplings; 1: uniform.")]
    decided: Annotated[int, Field(description="Parts that give more than half of their coupling to one class.")]
    parts: int
    strongest: Annotated[float, Field(description="Share of the winner's support that comes from a single part.")]
    starts_uniform: Annotated[bool, Field(description="Whether iteration 1 has equal couplings, as without routing.")]


class VotingPart(Response):
    """A part whose votes are shown in the plane."""

    type: int
    row: int
    column: int
    ink: Annotated[float, Field(description="Ink in the middle of what it sees; 1 for the most of all parts.")]
    votes: Annotated[list[Numbers], Field(description="[class] x and y of its vote in the plane.")]


class Votes(Response):
    """Votes for the longest classes, each class in a plane of its own.

    x is along the class capsule after the model's own number of iterations, y is the first principal component of the
    rest.
    """

    classes: Annotated[list[int], Field(description="The classes, longest first.")]
    kept: Annotated[Numbers, Field(description="[class] share of the votes' squared length that lies in the plane.")]
    parts: Annotated[list[VotingPart], Field(description="The parts, those that see most ink first.")]
    couplings: Annotated[list[list[Numbers]], Field(description="[iteration][part][class]")]
    capsules: Annotated[list[list[Numbers]], Field(description="[iteration][class] x and y of the class capsule.")]
    agreement: Annotated[
        list[Numbers],
        Field(description="[iteration][class] mean cosine of all votes and the class capsule, by coupling and length."),
    ]


class RoutingResponse(Response):
    model: str
    seen: DataUrl
    lengths_of_parts: Annotated[list[list[Numbers]], Field(description="[type][row][column]")]
    steps: list[RoutingStep]
    finding: Finding
    votes: Votes
    part: PartResponse | None
