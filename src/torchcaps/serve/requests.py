"""What a client may send: every field bounded, and nothing but these fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

MAX_TEXT_CHARACTERS = 1_400_200  # base64 of 1 MiB, and the words of a data URL before it
MAX_ROWS = 1024  # of an array of pixels, and values in a row
MAX_CLASSES = 1000
MAX_FIELDS = 32  # of an object: more than any question has
IMAGES = ("image", "compare")  # the fields that hold one: below them, the kind of image is no part of the path
MOVES = {  # of a picture, and how far each may go
    "rotate": (-180.0, 180.0),
    "shift_x": (-14.0, 14.0),
    "shift_y": (-14.0, 14.0),
    "scale": (0.25, 4.0),
    "shear": (-1.0, 1.0),
}
SEVEN = {  # a picture to try the API with
    "png": "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcAQAAAABaduI5AAAANElEQVR42mNgwAn+f2BgYmDgYGCC8gvgrAcQ"
    "FhMDI5zFcICBiYGJAaaEnQEmgWDxwWVxAADWTgUjY7wtzAAAAABJRU5ErkJggg==",
    "centre": True,
}


class Request(BaseModel):
    """Nothing is guessed: an unknown field is an error, and a number is never read out of a string.

    Lists fail fast: only the first thing wrong is told, and to collect a million others takes seconds.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _example(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class Picture(Request):
    """An image file in base64."""

    model_config = _example(SEVEN)

    png: str = Field(
        max_length=MAX_TEXT_CHARACTERS,
        description="A PNG, JPEG or WebP file in base64, with or without `data:image/png;base64,` before it: at most "
        "1 MiB and 2048×2048 pixels. Dark ink on light paper is inverted.",
    )
    centre: bool = Field(
        False, description="Take the paper away, make the ink white, and fit it into the middle, as in MNIST."
    )


def _whole(value: Any) -> Any:
    """JSON has one kind of numbers: 8.0 is 8."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Level = Annotated[float, Field(ge=0, le=1)]
Row = Annotated[list[Level], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]


class Pixels(Request):
    """The grey values themselves."""

    pixels: Annotated[list[Row], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)] = Field(
        description="Rows of the model's own size; 1 is white ink, 0 black paper.",
    )


def too_many_fields(value: Any) -> bool:
    """Whether an object, or one inside it, has more fields than any that is asked for.

    To be known before validation, which writes an error for each. Objects in lists never get that far.
    """
    if not isinstance(value, dict):
        return False
    return len(value) > MAX_FIELDS or any(too_many_fields(each) for each in value.values())


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "pixels" if "pixels" in value else "png"
    return "pixels" if isinstance(value, Pixels) else "png"


AnyImage = Annotated[Annotated[Picture, Tag("png")] | Annotated[Pixels, Tag("pixels")], Discriminator(_kind)]
Name = Annotated[str | None, Field(max_length=200, description="A name that /api/model lists; the first if left away.")]
ClassIndex = Annotated[int, Field(ge=0, lt=MAX_CLASSES), WHOLE]
Iterations = Annotated[
    Annotated[int, Field(ge=1, le=10), WHOLE] | None,
    Field(description="Of routing; the model's own if left away."),
]


class PredictRequest(Request):
    model_config = _example({"image": SEVEN, "top": 2})

    image: AnyImage
    model: Name = None
    top: Annotated[int, Field(ge=1, le=5, description="How many of the longest capsules are decoded."), WHOLE] = 1
    decode: Annotated[
        list[ClassIndex] | None,
        Field(min_length=1, max_length=5, fail_fast=True, description="Decode these classes instead of the longest."),
    ] = None
    iterations: Iterations = None
    reject: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Field(description="Answer none of the classes below this length, instead of by the model's own threshold."),
    ] = None


class PlacementRequest(Request):
    """Where and how a class is drawn, by a model of the kind `poses`."""

    x: Annotated[float, Field(ge=-1e4, le=1e4, description="Pixels; 0 is the middle of the leftmost pixel.")]
    y: Annotated[float, Field(ge=-1e4, le=1e4, description="Pixels; 0 is the middle of the topmost pixel.")]
    angle: Annotated[float, Field(ge=-360, le=360, description="Degrees, counter-clockwise.")] = 0.0
    scale: Annotated[float, Field(ge=0.05, le=20)] = 1.0
    stretch: Annotated[float, Field(ge=0.05, le=20, description="How much wider than high a square becomes.")] = 1.0
    shear: Annotated[float, Field(ge=-5, le=5, description="Pixels to the right for each pixel up.")] = 0.0


class ReconstructRequest(Request):
    model_config = _example({"class": 7, "pose": [0.2, -0.2] * 8})

    class_: ClassIndex = Field(alias="class", description="The class whose capsule has this pose.")
    pose: Annotated[list[Annotated[float, Field(ge=-10, le=10)]], Field(min_length=1, max_length=256, fail_fast=True)]
    model: Name = None
    placement: Annotated[
        PlacementRequest | None,
        Field(description="Of a model of the kind `poses`: where to draw it; upright in the middle if left away."),
    ] = None
    sweep: Annotated[bool, Field(description="Also change each dimension in turn by −0.25 … 0.25.")] = False
    compare: AnyImage | None = None


class Part(Request):
    """One primary capsule, by its type and its place in the grid."""

    type: Annotated[int, Field(ge=0, lt=100_000), WHOLE]
    row: Annotated[int, Field(ge=0, lt=10_000), WHOLE]
    column: Annotated[int, Field(ge=0, lt=10_000), WHOLE]


class RoutingRequest(Request):
    model_config = _example({"image": SEVEN, "part": {"type": 0, "row": 2, "column": 3}})

    image: AnyImage
    model: Name = None
    iterations: Iterations = None
    part: Part | None = None


class LatticeRequest(Request):
    model_config = _example({"image": SEVEN})

    image: AnyImage
    model: Name = None


def _within(move: str, description: str) -> Any:
    low, high = MOVES[move]
    return Field(ge=low, le=high, description=description)


class TransformRequest(Request):
    model_config = _example({"image": SEVEN, "rotate": 15, "along": "rotate", "steps": 7})

    image: AnyImage
    model: Name = None
    rotate: Annotated[float, _within("rotate", "Degrees, counter-clockwise.")] = 0.0
    shift_x: Annotated[float, _within("shift_x", "Pixels to the right.")] = 0.0
    shift_y: Annotated[float, _within("shift_y", "Pixels down.")] = 0.0
    scale: Annotated[float, _within("scale", "1 leaves it as it is, 2 makes it twice as large.")] = 1.0
    shear: Annotated[float, _within("shear", "A row moves right by so much of its height above the middle.")] = 0.0
    along: Literal["rotate", "shift_x", "shift_y", "scale", "shear"] | None = None
    steps: Annotated[int, Field(ge=3, le=61, description="Points of the curve."), WHOLE] = 25
