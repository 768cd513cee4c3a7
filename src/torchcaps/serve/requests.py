"""Request bodies of the API. Every field is bounded, and unknown fields are rejected."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

MAX_TEXT_CHARACTERS = 1_400_200  # 1 MiB in base64, with the prefix of a data URL
MAX_ROWS = 1024  # rows of a pixel array, and values per row
MAX_CLASSES = 1000
MAX_FIELDS = 32  # fields of a JSON object; more than any request has
MAX_PARTS = 24  # parts of a scene of shapes
MAX_ITERATIONS = 10  # of routing
IMAGE_FIELDS = ("image", "compare")  # pydantic puts the union's tag after these in the path of an error
TRANSFORM_RANGES = {  # of each parameter of /api/transform
    "rotate": (-180.0, 180.0),
    "shift_x": (-14.0, 14.0),
    "shift_y": (-14.0, 14.0),
    "scale": (0.25, 4.0),
    "shear": (-1.0, 1.0),
}
EXAMPLE_IMAGE = {  # a 7, to try the API with
    "png": "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcAQAAAABaduI5AAAANElEQVR42mNgwAn+f2BgYmDgYGCC8gvgrAcQ"
    "FhMDI5zFcICBiYGJAaaEnQEmgWDxwWVxAADWTgUjY7wtzAAAAABJRU5ErkJggg==",
    "centre": True,
}


class Request(BaseModel):
    """Strict base: an unknown field is an error, and strings are never converted to numbers.

    Lists fail fast, because only the first error is reported and collecting a million of them takes seconds.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _example(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class ImageFile(Request):
    """An image file in base64."""

    model_config = _example(EXAMPLE_IMAGE)

    png: str = Field(
        max_length=MAX_TEXT_CHARACTERS,
        description="A PNG, JPEG or WebP file in base64, with or without `data:image/png;base64,` before it: at most "
        "1 MiB and 2048×2048 pixels. Dark ink on light paper is inverted.",
    )
    centre: bool = Field(
        False, description="Remove the background, make the ink white, and centre and scale it as in MNIST."
    )


def _whole(value: Any) -> Any:
    """Convert 8.0 to 8: JSON does not distinguish integers from floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Level = Annotated[float, Field(ge=0, le=1)]
Row = Annotated[list[Level], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]


class PixelArray(Request):
    """An array of grey values."""

    pixels: Annotated[list[Row], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)] = Field(
        description="Rows of values at the model's input size; 1 is white (ink), 0 is black (background).",
    )


class ExampleImage(Request):
    """One of the model's examples."""

    example: Annotated[int, Field(ge=0, lt=1000, description="Its position in `examples` of /api/model."), WHOLE]


def too_many_fields(value: Any) -> bool:
    """Return whether an object, or one nested in it, has more than MAX_FIELDS fields.

    Checked before validation, which would report an error for each field. Objects in lists fail on the first one.
    """
    if not isinstance(value, dict):
        return False
    return len(value) > MAX_FIELDS or any(too_many_fields(each) for each in value.values())


def _kind(value: Any) -> str:
    given = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Request) else {}
    return next((kind for kind in ("pixels", "example") if kind in given), "png")


AnyImage = Annotated[
    Annotated[ImageFile, Tag("png")] | Annotated[PixelArray, Tag("pixels")] | Annotated[ExampleImage, Tag("example")],
    Discriminator(_kind),
]
ModelName = Annotated[
    str | None, Field(max_length=200, description="A name listed by /api/model; the default model if omitted.")
]
ClassIndex = Annotated[int, Field(ge=0, lt=MAX_CLASSES), WHOLE]
Iterations = Annotated[
    Annotated[int, Field(ge=1, le=MAX_ITERATIONS), WHOLE] | None,
    Field(description="Routing iterations; by default the model's own number."),
]


class PredictRequest(Request):
    model_config = _example({"image": EXAMPLE_IMAGE, "top": 2})

    image: AnyImage
    model: ModelName = None
    top: Annotated[int, Field(ge=1, le=5, description="How many of the longest capsules to decode."), WHOLE] = 1
    decode: Annotated[
        list[ClassIndex] | None,
        Field(min_length=1, max_length=5, fail_fast=True, description="Decode these classes instead of the longest."),
    ] = None
    iterations: Iterations = None
    reject: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Field(description="Predict none of the classes below this length; overrides the model's own threshold."),
    ] = None


class PlacementRequest(Request):
    """Where and how a model of kind `poses` draws a class."""

    x: Annotated[float, Field(ge=-1e4, le=1e4, description="Pixels; 0 is the centre of the leftmost pixel.")]
    y: Annotated[float, Field(ge=-1e4, le=1e4, description="Pixels; 0 is the centre of the topmost pixel.")]
    angle: Annotated[float, Field(ge=-360, le=360, description="Degrees, counter-clockwise.")] = 0.0
    scale: Annotated[float, Field(ge=0.05, le=20)] = 1.0
    stretch: Annotated[float, Field(ge=0.05, le=20, description="Aspect ratio of a square after stretching.")] = 1.0
    shear: Annotated[float, Field(ge=-5, le=5, description="Pixels to the right per pixel up.")] = 0.0


class ReconstructRequest(Request):
    model_config = _example({"class": 7, "pose": [0.2, -0.2] * 8})

    class_: ClassIndex = Field(alias="class", description="Index of the class to reconstruct.")
    pose: Annotated[list[Annotated[float, Field(ge=-10, le=10)]], Field(min_length=1, max_length=256, fail_fast=True)]
    model: ModelName = None
    placement: Annotated[
        PlacementRequest | None,
        Field(description="Only for kind `poses`: where to draw the class; by default upright in the centre."),
    ] = None
    sweep: Annotated[bool, Field(description="Also vary each dimension in turn from −0.25 to 0.25.")] = False
    compare: AnyImage | None = None


class Part(Request):
    """One primary capsule, given by its type and its position in the grid."""

    type: Annotated[int, Field(ge=0, lt=100_000), WHOLE]
    row: Annotated[int, Field(ge=0, lt=10_000), WHOLE]
    column: Annotated[int, Field(ge=0, lt=10_000), WHOLE]


class RoutingRequest(Request):
    model_config = _example({"image": EXAMPLE_IMAGE, "part": {"type": 0, "row": 2, "column": 3}})

    image: AnyImage
    model: ModelName = None
    iterations: Iterations = None
    part: Part | None = None


class LatticeRequest(Request):
    model_config = _example({"image": EXAMPLE_IMAGE})

    image: AnyImage
    model: ModelName = None


def _within(parameter: str, description: str) -> Any:
    low, high = TRANSFORM_RANGES[parameter]
    return Field(ge=low, le=high, description=description)


class TransformRequest(Request):
    model_config = _example({"image": EXAMPLE_IMAGE, "rotate": 15, "along": "rotate", "steps": 7})

    image: AnyImage
    model: ModelName = None
    rotate: Annotated[float, _within("rotate", "Degrees, counter-clockwise.")] = 0.0
    shift_x: Annotated[float, _within("shift_x", "Pixels to the right.")] = 0.0
    shift_y: Annotated[float, _within("shift_y", "Pixels down.")] = 0.0
    scale: Annotated[float, _within("scale", "Factor: 2 makes the image twice as large.")] = 1.0
    shear: Annotated[float, _within("shear", "Shift to the right per pixel above the centre.")] = 0.0
    along: Annotated[
        Literal["rotate", "shift_x", "shift_y", "scale", "shear"] | None,
        Field(description="Also return a curve along this parameter."),
    ] = None
    steps: Annotated[int, Field(ge=3, le=61, description="Number of points of the curve."), WHOLE] = 25


class ShapePart(Request):
    """A rectangle or a triangle in a scene of shapes. At scale 1 both are 14 pixels wide."""

    type: Literal["rectangle", "triangle"]
    x: Annotated[float, Field(ge=-1e3, le=1e3, description="Centroid in pixels; 0 is the centre of the leftmost.")]
    y: Annotated[float, Field(ge=-1e3, le=1e3, description="Centroid in pixels; 0 is the centre of the topmost.")]
    angle: Annotated[float, Field(ge=-360, le=360, description="Degrees, counter-clockwise.")] = 0.0
    scale: Annotated[float, Field(ge=0.05, le=20)] = 1.0
    presence: Annotated[float, Field(ge=0, le=1, description="How sure it is that the part is there.")] = 1.0


class ShapesRequest(Request):
    model_config = _example(
        {"parts": [{"type": "rectangle", "x": 32, "y": 32}, {"type": "triangle", "x": 32, "y": 26.7}], "iterations": 3}
    )

    parts: Annotated[list[ShapePart], Field(max_length=MAX_PARTS, fail_fast=True, description="In any order.")]
    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS), WHOLE] = 5
