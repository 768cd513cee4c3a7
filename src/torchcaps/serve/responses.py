"""Response bodies of the API, one pydantic model for each, so that the OpenAPI schema describes them completely."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

DataUrl = Annotated[str, Field(pattern="^data:image/png;base64,", description="A PNG as a data URL.")]
Numbers = list[float]


def numbers(values: Tensor) -> Any:
    """Convert to plain numbers with six decimals; more would only double the size of a response."""
    return values.double().round(decimals=6).tolist()


class Response(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class ErrorResponse(Response):
    """The body of every response with a status of 400 or above."""

    detail: Annotated[str, Field(description="What was wrong, in one sentence.")]


class Health(Response):
    status: Literal["ok"] = "ok"
    version: str


class ImageShape(Response):
    channels: int
    height: int
    width: int


class Grid(Response):
    """The grid of primary capsules. The one at (row, column) sees `field` pixels from offset + stride · row on."""

    types: int
    rows: int
    columns: int
    stride: int
    field: int
    offset: Annotated[int, Field(description="Negative if the convolutions pad.")]


class Meaning(Response):
    """The image property that one dimension of a pose correlates with."""

    name: Annotated[str | None, Field(description="Null if no property correlates clearly enough.")]
    correlation: float
    others: dict[str, float]


class Lattice(Response):
    """The poses at which a model samples an image: every angle combined with every scale."""

    angles: Annotated[Numbers, Field(description="Degrees, counter-clockwise.")]
    scales: Numbers
    full_circle: bool
    searched: Annotated[int, Field(description="Number of views computed for each prediction.")]


class Drawing(Response):
    """How large and how bold to draw so that a drawing resembles the training images."""

    box: Annotated[float, Field(description="Size of a digit, as a share of the image's side.")]
    brush: Annotated[float, Field(description="Width of a stroke, as a share of the digit's size.")]


ExampleKind = Literal["drawn", "data", "none"]


class Example(Response):
    """An image of a model's own data; requests name it by its position."""

    classes: list[str]
    picture: DataUrl


class Examples(Response):
    kind: Annotated[
        ExampleKind,
        Field(description="drawn: the strokes that come with the page. data: `images`. none: there are none."),
    ]
    note: Annotated[str, Field(description="What they are, or why there are none.")]
    images: list[Example]


class ModelResponse(Response):
    name: str
    kind: Annotated[
        Literal["capsules", "poses", "cnn"],
        Field(description="capsules: routed, on a grid. poses: predicts a placement of each class. cnn: neither."),
    ]
    classes: list[str]
    image: ImageShape
    pose: Annotated[int | None, Field(description="Dimensions of a class capsule.")]
    part_pose: Annotated[int | None, Field(description="Dimensions of a part (primary capsule).")]
    part_types: Annotated[int | None, Field(description="Types of parts.")]
    iterations: Annotated[int | None, Field(description="Routing iterations.")]
    grid: Grid | None
    lattice: Annotated[Lattice | None, Field(description="Only for kind `poses`.")]
    placement: Annotated[
        list[str] | None, Field(description="Only for kind `poses`: the placement parameters that the model predicts.")
    ]
    decoder: Annotated[bool, Field(description="Whether the model has a decoder.")]
    none_below: Annotated[
        float | None, Field(description="Familiarity threshold; below it the prediction is none of the classes.")
    ]
    drawing: Drawing
    draws: Annotated[
        bool,
        Field(description="Whether it takes white ink on black, as drawn on the page; other images stay as they are."),
    ]
    examples: Examples
    role: Literal["main", "overlap", "comparison", "routing"]
    pairs: Annotated[bool, Field(description="Whether the model was trained on overlapping pairs of digits.")]
    card: Annotated[dict[str, Any], Field(description="The model card: how it was trained. Empty if it has none.")]
    meanings: list[list[Meaning]] | None


class ModelsResponse(Response):
    default: str
    models: list[ModelResponse]


class Placements(Response):
    """The placement that each class would have if it were in the image: one number per class."""

    x: Annotated[Numbers, Field(description="Pixels; 0 is the centre of the leftmost pixel.")]
    y: Annotated[Numbers, Field(description="Pixels; 0 is the centre of the topmost pixel.")]
    angle: Annotated[Numbers, Field(description="Degrees, counter-clockwise.")]
    scale: Annotated[Numbers, Field(description="1 is the mean size of the training images.")]
    spread: Annotated[Numbers, Field(description="Standard deviation of the angle over the views, in degrees.")]
    stretch: Annotated[Numbers | None, Field(description="Null if the model does not predict it.")]
    shear: Annotated[Numbers | None, Field(description="Null if the model does not predict it.")]
    thickness: Annotated[
        Numbers | None, Field(description="Mean stroke width in pixels; null if the model does not predict it.")
    ] = None


class Decoded(Response):
    class_: Annotated[int, Field(alias="class")]
    length: float
    pose: Numbers
    reconstruction: Annotated[DataUrl | None, Field(description="Null if the model has no decoder.")]
    coloured: Annotated[DataUrl | None, Field(description="The reconstruction tinted with a colour of its own.")]
    upright: Annotated[
        DataUrl | None,
        Field(description="Only for kind `poses`: the reconstruction before it is rotated, scaled and moved."),
    ]


class PredictResponse(Response):
    model: str
    seen: Annotated[DataUrl, Field(description="The preprocessed image, as the model sees it.")]
    lengths: Annotated[Numbers, Field(description="Length of each class capsule; for a CNN, class probabilities.")]
    winners: Annotated[list[int], Field(description="The classes with the longest capsules, whatever their length.")]
    classes: Annotated[
        list[int], Field(description="The predicted classes, longest first; empty means none of the classes.")
    ]
    familiarity: Annotated[
        float | None, Field(description="Familiarity score, if the model's `none_below` threshold was applied.")
    ]
    placements: Annotated[Placements | None, Field(description="Only for kind `poses`.")]
    decoded: list[Decoded]
    together: Annotated[
        DataUrl | None, Field(description="The sum of all reconstructions, each in a colour of its own.")
    ]
    missing: Annotated[DataUrl | None, Field(description="Red: in the image only. Blue: in the reconstruction only.")]
    error: Annotated[float | None, Field(description="Mean squared error of the reconstruction.")]


class PlacementSweep(Response):
    """Reconstructions with one placement parameter changed."""

    name: str
    values: Annotated[Numbers, Field(description="Changes: factors for scale and stretch, otherwise offsets.")]
    picture: Annotated[DataUrl, Field(description="One column per value.")]


class Sweep(Response):
    values: Numbers
    dimensions: int
    picture: Annotated[DataUrl, Field(description="One row per dimension, one column per value.")]
    height: int
    width: int
    parts: Annotated[
        list[PlacementSweep],
        Field(description="Only for kind `poses`, otherwise empty: one sweep per placement parameter."),
    ]


class ReconstructResponse(Response):
    reconstruction: DataUrl
    upright: Annotated[
        DataUrl | None, Field(description="Only for kind `poses`: the reconstruction before it is placed.")
    ]
    difference: DataUrl | None
    sweep: Sweep | None


class LatticeResponse(Response):
    model: str
    seen: DataUrl
    angles: Annotated[Numbers, Field(description="Angles of the views, in degrees.")]
    scales: Annotated[Numbers, Field(description="Scales of the views.")]
    lengths: Annotated[
        list[list[Numbers]], Field(description="[class][angle][scale] length of the class capsule in each view.")
    ]
    presence: Annotated[Numbers, Field(description="Presence of each class, from all views together.")]
    placements: Placements


class Comparison(Response):
    name: str
    probabilities: Numbers


class Curve(Response):
    along: str
    values: Numbers
    lengths: list[Numbers]
    comparison: list[Numbers] | None
    placements: Annotated[
        list[Placements] | None, Field(description="Only for kind `poses`: the placements predicted at each value.")
    ]
    pictures: list[DataUrl]
    pictured: Annotated[Numbers, Field(description="The values at which `pictures` were taken.")]


class TransformResponse(Response):
    model: str
    seen: DataUrl
    lengths: Numbers
    placements: Annotated[Placements | None, Field(description="Only for kind `poses`.")]
    comparison: Comparison | None
    curve: Curve | None
