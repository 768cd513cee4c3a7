"""What a client gets: one model for each answer, so that the schema tells all of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

DataUrl = Annotated[str, Field(pattern="^data:image/png;base64,", description="A PNG as a data URL.")]
Numbers = list[float]


def numbers(values: Tensor) -> Any:
    """As plain numbers of six decimals: more would be noise, and twice as many bytes."""
    return values.double().round(decimals=6).tolist()


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


class Lattice(Answer):
    """The poses that a model can look through: every angle with every scale."""

    angles: Annotated[Numbers, Field(description="Degrees, counter-clockwise.")]
    scales: Numbers
    full_circle: bool
    searched: Annotated[int, Field(description="Views behind every answer; more take longer.")]


class Drawing(Answer):
    """How large and how bold to draw what looks like the training images."""

    box: Annotated[float, Field(description="Share of the picture's side that a digit takes.")]
    brush: Annotated[float, Field(description="Width of a stroke, as a share of the side of a digit's box.")]


class ModelAnswer(Answer):
    name: str
    kind: Annotated[
        Literal["capsules", "poses", "cnn"],
        Field(description="capsules: routed on a grid. poses: says how each class stands. cnn: neither."),
    ]
    classes: list[str]
    image: ImageShape
    pose: int | None
    iterations: int | None
    grid: Grid | None
    lattice: Annotated[Lattice | None, Field(description="Of the kind poses.")]
    placement: Annotated[list[str] | None, Field(description="Of the kind poses: which parts of a pose it reads.")]
    decoder: Annotated[bool, Field(description="Whether it can draw what a capsule saw.")]
    none_below: Annotated[
        float | None, Field(description="The familiarity below which the answer is none of the classes.")
    ]
    drawing: Drawing
    role: Literal["main", "overlap", "comparison"]
    pairs: Annotated[bool, Field(description="Whether it was trained on two digits over each other.")]
    card: Annotated[dict[str, Any], Field(description="How the weights were made; empty if they have no card.")]
    meanings: list[list[Meaning]] | None


class ModelsAnswer(Answer):
    default: str
    models: list[ModelAnswer]


class Placements(Answer):
    """How each class would stand in the picture if it were there: one number a class."""

    x: Annotated[Numbers, Field(description="Pixels; 0 is the middle of the leftmost pixel.")]
    y: Annotated[Numbers, Field(description="Pixels; 0 is the middle of the topmost pixel.")]
    angle: Annotated[Numbers, Field(description="Degrees, counter-clockwise.")]
    scale: Annotated[Numbers, Field(description="1 is the mean size of the training images.")]
    spread: Annotated[Numbers, Field(description="Standard deviation of the angle over the views, in degrees.")]
    stretch: Annotated[Numbers | None, Field(description="Null if the model does not read it.")]
    shear: Annotated[Numbers | None, Field(description="Null if the model does not read it.")]
    thickness: Annotated[
        Numbers | None, Field(description="Mean width of the strokes in pixels; null if the model does not read it.")
    ] = None


class Decoded(Answer):
    class_: Annotated[int, Field(alias="class")]
    length: float
    pose: Numbers
    reconstruction: Annotated[DataUrl | None, Field(description="Null if the model has no decoder.")]
    coloured: Annotated[
        DataUrl | None, Field(description="The same in a colour of its own, for those who only show pictures.")
    ]
    upright: Annotated[
        DataUrl | None, Field(description="Of the kind poses: the same before it is turned, enlarged and moved.")
    ]


class PredictAnswer(Answer):
    model: str
    seen: Annotated[DataUrl, Field(description="What the network saw.")]
    lengths: Annotated[Numbers, Field(description="Of every class capsule; of a CNN, probabilities.")]
    winners: Annotated[list[int], Field(description="The longest, whether or not they are long enough.")]
    classes: Annotated[list[int], Field(description="What is answered, longest first; empty: none of these.")]
    familiarity: Annotated[
        float | None, Field(description="How familiar the picture is, where that decides; compare with none_below.")
    ]
    placements: Annotated[Placements | None, Field(description="Of the kind poses.")]
    decoded: list[Decoded]
    together: Annotated[DataUrl | None, Field(description="All reconstructions, each in its colour.")]
    missing: Annotated[DataUrl | None, Field(description="Red: drawn only. Blue: reconstructed only.")]
    error: Annotated[float | None, Field(description="Mean squared difference of drawing and reconstruction.")]


class PartSweep(Answer):
    """A part of a placement changed, and what is then drawn."""

    name: str
    values: Annotated[Numbers, Field(description="Added to it; scale and stretch are multiplied by them.")]
    picture: Annotated[DataUrl, Field(description="A column for each value.")]


class Sweep(Answer):
    values: Numbers
    dimensions: int
    picture: Annotated[DataUrl, Field(description="A row for each dimension, a column for each value.")]
    height: int
    width: int
    parts: Annotated[list[PartSweep], Field(description="Of the kind poses: its placement changed; else empty.")]


class ReconstructAnswer(Answer):
    reconstruction: DataUrl
    upright: Annotated[DataUrl | None, Field(description="Of the kind poses: the drawing before it is placed.")]
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


class LatticeAnswer(Answer):
    model: str
    seen: DataUrl
    angles: Annotated[Numbers, Field(description="Of the views, in degrees.")]
    scales: Annotated[Numbers, Field(description="Of the views.")]
    lengths: Annotated[
        list[list[Numbers]], Field(description="[class][angle][scale] how long the capsule is in each view.")
    ]
    presence: Annotated[Numbers, Field(description="Of every class, all views together.")]
    placements: Placements


class Comparison(Answer):
    name: str
    probabilities: Numbers


class Curve(Answer):
    along: str
    values: Numbers
    lengths: list[Numbers]
    comparison: list[Numbers] | None
    placements: Annotated[list[Placements] | None, Field(description="Of the kind poses: what is read at each value.")]
    pictures: list[DataUrl]
    pictured: Numbers


class TransformAnswer(Answer):
    model: str
    seen: DataUrl
    lengths: Numbers
    placements: Annotated[Placements | None, Field(description="Of the kind poses.")]
    comparison: Comparison | None
    curve: Curve | None
