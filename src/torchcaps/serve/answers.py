"""What a client gets: one model for each answer, so that the schema tells all of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

DataUrl = Annotated[str, Field(pattern="^data:image/png;base64,", description="A PNG as a data URL.")]
Numbers = list[float]


class Answer(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class Problem(Answer):
    """Of every answer from 400 on."""

    detail: Annotated[str, Field(description="What was wrong, in one sentence.")]


class Health(Answer):
    status: Literal["ok"] = "ok"
    version: str


class ImageShape(Answer):
    channels: int
    height: int
    width: int


class Grid(Answer):
    """Where the primary capsules look: one at (row, column) at `field` pixels from offset + stride · row on."""

    types: int
    rows: int
    columns: int
    stride: int
    field: int
    offset: Annotated[int, Field(description="Below 0 where the convolutions pad.")]


class Meaning(Answer):
    """What a dimension of a pose goes along with."""

    name: Annotated[str | None, Field(description="Null where the evidence does not support a name.")]
    correlation: float
    others: dict[str, float]


class ModelAnswer(Answer):
    name: str
    kind: Literal["capsules", "cnn"]
    classes: list[str]
    image: ImageShape
    pose: int | None
    iterations: int | None
    grid: Grid | None
    role: Literal["main", "overlap", "comparison"]
    pairs: Annotated[bool, Field(description="Whether it was trained on two digits over each other.")]
    card: Annotated[dict[str, Any], Field(description="How the weights were made; empty if they have no card.")]
    meanings: list[list[Meaning]] | None


class ModelsAnswer(Answer):
    default: str
    models: list[ModelAnswer]


class Decoded(Answer):
    class_: Annotated[int, Field(alias="class")]
    length: float
    pose: Numbers
    reconstruction: DataUrl
    coloured: Annotated[
        DataUrl, Field(description="The same in a colour of its own, for those who only show pictures.")
    ]


class PredictAnswer(Answer):
    model: str
    seen: Annotated[DataUrl, Field(description="What the network saw.")]
    lengths: Annotated[Numbers, Field(description="Of every class capsule; of a CNN, probabilities.")]
    winners: list[int]
    decoded: list[Decoded]
    together: Annotated[DataUrl | None, Field(description="All reconstructions, each in its colour.")]
    missing: Annotated[DataUrl | None, Field(description="Red: drawn only. Blue: reconstructed only.")]
    error: Annotated[float | None, Field(description="Mean squared difference of drawing and reconstruction.")]


class Sweep(Answer):
    values: Numbers
    dimensions: int
    picture: Annotated[DataUrl, Field(description="A row for each dimension, a column for each value.")]
    height: int
    width: int


class ReconstructAnswer(Answer):
    reconstruction: DataUrl
    difference: DataUrl | None
    sweep: Sweep | None


class Step(Answer):
    """One iteration of routing."""

    lengths: Numbers
    entropy: Annotated[float, Field(description="1: the parts couple to all classes alike; 0: each has chosen one.")]
    support: Annotated[list[list[Numbers]], Field(description="[class][row][column] how much is said for the class.")]
    types: Annotated[list[Numbers], Field(description="[class][type] the same, summed over places.")]
    coupling: Annotated[
        list[list[Numbers]], Field(description="[class][row][column] the mean over types, a long part counting more.")
    ]


class PartStep(Answer):
    couplings: Numbers
    votes: Annotated[Numbers, Field(description="How long the vote for each class is.")]
    agreement: Annotated[Numbers, Field(description="Cosine of the vote and what the class became.")]


class PartAnswer(Answer):
    type: int
    row: int
    column: int
    length: float
    box: Annotated[list[int], Field(description="top, left, bottom, right in pixels; what lies between is seen.")]
    steps: list[PartStep]


class RoutingAnswer(Answer):
    model: str
    seen: DataUrl
    lengths_of_parts: Annotated[list[list[Numbers]], Field(description="[type][row][column]")]
    steps: list[Step]
    part: PartAnswer | None


class Comparison(Answer):
    name: str
    probabilities: Numbers


class Curve(Answer):
    along: str
    values: Numbers
    lengths: list[Numbers]
    comparison: list[Numbers] | None
    pictures: list[DataUrl]
    pictured: Numbers


class TransformAnswer(Answer):
    model: str
    seen: DataUrl
    lengths: Numbers
    comparison: Comparison | None
    curve: Curve | None
